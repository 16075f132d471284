"""The mesh: degrees -> a grid of ranks -> process groups by axis name.

    mesh = build_mesh()                 # every rank is a data-parallel rank
    mesh.axis("data").size

The mesh is an argument, never a global. It is built from an initialised torch.distributed, or from none: one process.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
import torch.distributed as dist

AXES = ("data",)
"""Outermost first: neighbours in rank order lie along the last axis, which so stays inside a node."""


@dataclass(frozen=True)
class Axis:
    """One axis of the mesh as one rank sees it."""

    name: str
    rank: int
    """Place of this rank along the axis."""
    size: int
    group: dist.ProcessGroup | None
    """The ranks that differ from this one along the axis only; None where there is no torch.distributed."""


@dataclass(frozen=True)
class Mesh:
    """Where one rank stands among all."""

    rank: int
    world_size: int
    group: dist.ProcessGroup | None
    """All ranks; None where there is no torch.distributed."""
    axes: Mapping[str, Axis]

    def axis(self, name: str) -> Axis:
        """The axis of that name; raises KeyError for an unknown one."""
        return self.axes[name]

    @property
    def data_rank(self) -> int:
        """Which share of the global batch this rank reads."""
        return self.axes["data"].rank

    @property
    def data_size(self) -> int:
        """The number of shares of the global batch."""
        return self.axes["data"].size


def build_mesh(degrees: Mapping[str, int] | None = None) -> Mesh:
    """The mesh of this rank; collective: every rank calls it with the same degrees.

    degrees: size of each axis; the data axis takes the ranks that the others leave.
    Raises ValueError where the degrees do not multiply to the number of ranks.
    """
    started = dist.is_available() and dist.is_initialized()
    rank, world_size = (dist.get_rank(), dist.get_world_size()) if started else (0, 1)
    sizes = _axis_sizes(degrees or {}, world_size)
    grid = torch.arange(world_size).view(*sizes.values())
    axes = {name: _axis(grid, dim, name, rank, started) for dim, name in enumerate(sizes)}
    return Mesh(rank, world_size, dist.group.WORLD if started else None, axes)


def _axis_sizes(degrees: Mapping[str, int], world_size: int) -> dict[str, int]:
    unknown = set(degrees) - set(AXES)
    if unknown:
        raise ValueError(f"the mesh has no axis {', '.join(sorted(unknown))}; it has {', '.join(AXES)}")
    sizes = {name: degrees.get(name, 1) for name in AXES}
    others = torch.Size(size for name, size in sizes.items() if name != "data").numel()
    sizes["data"] = degrees.get("data", world_size // others)
    if sizes["data"] * others != world_size:
        product = " x ".join(f"{name} {size}" for name, size in sizes.items())
        raise ValueError(f"the degrees {product} do not multiply to the number of ranks, {world_size}")
    return sizes


def _axis(grid: torch.Tensor, dim: int, name: str, rank: int, started: bool) -> Axis:
    """The row of the grid along `dim` in which `rank` lies; every rank creates all groups, in one order."""
    own_row: list[int] = []
    own_group = None
    for row in grid.movedim(dim, -1).reshape(-1, grid.shape[dim]).tolist():
        group = _group(row, grid.numel()) if started else None
        if rank in row:
            own_row, own_group = row, group
    return Axis(name, own_row.index(rank), len(own_row), own_group)


def _group(ranks: list[int], world_size: int) -> dist.ProcessGroup | None:
    return dist.group.WORLD if len(ranks) == world_size else dist.new_group(ranks)
