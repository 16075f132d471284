"""What ranks say to each other without autograd. Every function is collective along its axis or mesh."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist

from megaxf.parallel.mesh import Axis, Mesh

# torch 2.13 gave them new names and warns of the old ones; ranks are joined and cut along the first dimension.
all_gather: Any = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
reduce_scatter: Any = getattr(dist, "reduce_scatter_single", None) or dist.reduce_scatter_tensor


def sum_tensor(tensor: torch.Tensor, axis: Axis) -> torch.Tensor:
    """Sum over the axis, in place."""
    if axis.size > 1:
        with axis.message(tensor.device):
            dist.all_reduce(tensor, group=axis.group)
    return tensor


def sum_numbers(values: Sequence[float | torch.Tensor], axis: Axis, device: torch.device | str) -> list[float]:
    """Each value summed over the axis, in one message of float64: whole numbers stay exact up to 2^53."""
    row = torch.stack([torch.as_tensor(value, dtype=torch.float64, device=device) for value in values])
    return sum_tensor(row, axis).tolist()


def broadcast_object(value: Any, mesh: Mesh) -> Any:
    """Rank 0's value on every rank; the value must be picklable and small."""
    if mesh.world_size == 1:
        return value
    box = [value]
    dist.broadcast_object_list(box, src=0, group=mesh.group)
    return box[0]


def gather_objects(value: Any, mesh: Mesh) -> list[Any]:
    """The values of all ranks in rank order, on every rank; picklable and small."""
    if mesh.world_size == 1:
        return [value]
    values: list[Any] = [None] * mesh.world_size
    dist.all_gather_object(values, value, group=mesh.group)
    return values


def gather_to_first(value: Any, mesh: Mesh) -> list[Any] | None:
    """The values of all ranks in rank order on rank 0, None elsewhere; picklable."""
    if mesh.world_size == 1:
        return [value]
    values: list[Any] | None = [None] * mesh.world_size if mesh.rank == 0 else None
    dist.gather_object(value, values, dst=0, group=mesh.group)
    return values


def barrier(mesh: Mesh) -> None:
    """Wait until every rank is here."""
    if mesh.world_size > 1:
        dist.barrier(group=mesh.group)
