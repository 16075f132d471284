"""The state of an engine as pieces of whole tensors, and whole tensors from the pieces of all ranks."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch

from megaxf.engine.protocol import Engine
from megaxf.parallel.apply import Placed
from megaxf.parallel.boxes import PARTS, Piece, share_pieces
from megaxf.parallel.collectives import sum_tensor
from megaxf.parallel.mesh import Axis, Mesh


def pieces_of(
    placed: Placed, name: str, start: int, tensors: Mapping[str, torch.Tensor], replicas: Axis | None = None
) -> Iterator[Piece]:
    """The pieces of a range of this rank's flattened share of a parameter, as `share_pieces` says."""
    axis = placed.mesh.axis("tensor")
    return share_pieces(name, placed.shapes[name], placed.cuts[name], axis, start, tensors, replicas)


def read_whole(engine: Engine, mesh: Mesh, device: torch.device | str, parts: tuple[str, ...] = PARTS) -> Whole:
    """Copies of the whole fp32 tensors of every parameter by name and part, on the CPU of every rank; collective.

    device: that ranks communicate with. For inference and for tests: a checkpoint never needs a whole tensor.
    """
    whole: Whole = {name: {part: torch.zeros(shape) for part in parts} for name, shape in engine.state_shapes().items()}
    for piece in engine.pieces():
        if piece.part in parts and piece.copy == 0:
            piece.box_in(whole[piece.name][piece.part]).copy_(piece.values)
    for tensors in whole.values():
        for part, tensor in tensors.items():
            tensors[part] = sum_tensor(tensor.to(device), mesh.everyone).cpu()
    return whole


Whole = dict[str, dict[str, torch.Tensor]]
"""Parameter name -> part -> whole tensor."""
