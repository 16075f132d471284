"""The state of an engine in whole tensors, whichever share of them a rank of the tensor axis holds."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from megaxf.parallel.apply import Placed


def gather_state(placed: Placed, name: str, tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Copies on the CPU of the whole tensors of one parameter, from this rank's shares; collective.

    tensors: by their keys, of the parameter's shape on this rank, on the device that the ranks communicate with.
    """
    cut, shape, axis = placed.cuts[name], placed.shapes[name], placed.mesh.axis("tensor")
    return {key: cut.gather(share.detach(), shape, axis).to("cpu", copy=True) for key, share in tensors.items()}


def take_state(placed: Placed, name: str, tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """This rank's shares of the whole tensors of one parameter, views where nothing is filled up."""
    cut, axis = placed.cuts[name], placed.mesh.axis("tensor")
    return {key: cut.take(tensor, axis) for key, tensor in tensors.items()}
