"""The mesh: degrees -> a grid of ranks -> process groups by axis name.

    mesh = build_mesh({"tensor": 2, "pipeline": 2})     # the data axis takes the ranks that are left
    mesh.axis("tensor").size                            # along one axis
    mesh.replicas, mesh.parts                           # along two: who sums gradients, who shares one model

The mesh is an argument, never a global. It is built from an initialised torch.distributed, or from none: one process.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field

import torch
import torch.distributed as dist

from megaxf.parallel.clock import COMMUNICATION, Clock

AXES = ("pipeline", "data", "context", "tensor")
"""Outermost first: neighbours in rank order lie along the last axis, which so stays inside a node."""


@dataclass(frozen=True)
class Axis:
    """One axis of the mesh, or several as one, as one rank sees it."""

    name: str
    rank: int
    """Place of this rank along the axis."""
    ranks: tuple[int, ...]
    """The ranks of the world along the axis, in order; this one is ranks[rank]."""
    group: dist.ProcessGroup | None
    """These ranks; None where there is no torch.distributed."""
    clock: Clock = field(default_factory=Clock, compare=False, repr=False)
    """Of the mesh: counts what messages along the axis cost."""

    @property
    def size(self) -> int:
        """The number of ranks along the axis."""
        return len(self.ranks)

    def message(self, device: torch.device) -> AbstractContextManager[None]:
        """Count what is waited for within as communication; what is compiled is a part of the computation."""
        return nullcontext() if torch.compiler.is_compiling() else self.clock.part(COMMUNICATION, device)


@dataclass(frozen=True)
class Mesh:
    """Where one rank stands among all."""

    rank: int
    world_size: int
    group: dist.ProcessGroup | None
    """All ranks; None where there is no torch.distributed."""
    axes: Mapping[str, Axis]
    replicas: Axis
    """Data and context: the ranks that hold the same weights, see different tokens and sum their gradients."""
    parts: Axis
    """Pipeline and tensor: the ranks that hold one model together."""
    everyone: Axis
    """All ranks."""
    clock: Clock
    """Where this rank's time goes."""

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


def build_mesh(degrees: Mapping[str, int] | None = None, order: Sequence[str] = AXES) -> Mesh:
    """The mesh of this rank; collective: every rank calls it with the same arguments.

    degrees: size of each axis; the data axis takes the ranks that the others leave.
    order: the axes, outermost first.
    Raises ValueError where the degrees are below 1 or do not multiply to the number of ranks, or an axis is unknown.
    """
    started = dist.is_available() and dist.is_initialized()
    rank, world_size = (dist.get_rank(), dist.get_world_size()) if started else (0, 1)
    sizes = axis_sizes(degrees or {}, world_size, order)
    grid = torch.arange(world_size).view(*sizes.values())
    dims = {name: [dim] for dim, name in enumerate(sizes)}
    clock = Clock()
    axes = {name: _axis(grid, dim, name, rank, started, clock) for name, dim in dims.items()}
    replicas = _axis(grid, dims["data"] + dims["context"], "replicas", rank, started, clock)
    parts = _axis(grid, dims["pipeline"] + dims["tensor"], "parts", rank, started, clock)
    group = dist.group.WORLD if started else None
    everyone = Axis("world", rank, tuple(range(world_size)), group, clock)
    return Mesh(rank, world_size, group, axes, replicas, parts, everyone, clock)


def subaxis(axis: Axis, size: int) -> Axis:
    """The block of `size` neighbours along an axis in which this rank is; collective along the axis."""
    first = axis.rank // size * size
    ranks = axis.ranks[first : first + size]
    whole = size == axis.size
    group = axis.group if whole or axis.group is None else dist.new_group(list(ranks), use_local_synchronization=True)
    return Axis(f"{axis.name}, {size} neighbours", axis.rank - first, ranks, group, axis.clock)


def axis_sizes(degrees: Mapping[str, int], world_size: int, order: Sequence[str] = AXES) -> dict[str, int]:
    """The size of every axis, in order; raises ValueError as `build_mesh` does."""
    if sorted(order) != sorted(AXES):
        raise ValueError(f"the order {', '.join(order)} of the mesh does not name each of {', '.join(AXES)} once")
    unknown = set(degrees) - set(AXES)
    if unknown:
        raise ValueError(f"the mesh has no axis {', '.join(sorted(unknown))}; it has {', '.join(AXES)}")
    sizes = {name: degrees.get(name, 1) for name in order}
    if small := [f"{name} {size}" for name, size in sizes.items() if size < 1]:
        raise ValueError(f"the mesh cannot have {', '.join(small)}; a degree is 1 or more")
    others = torch.Size(size for name, size in sizes.items() if name != "data").numel()
    sizes["data"] = degrees.get("data", world_size // others)
    if sizes["data"] * others != world_size:
        product = " x ".join(f"{name} {size}" for name, size in sizes.items())
        raise ValueError(f"the degrees {product} do not multiply to the number of ranks, {world_size}")
    return sizes


def _axis(grid: torch.Tensor, dims: Sequence[int], name: str, rank: int, started: bool, clock: Clock) -> Axis:
    """The ranks of the grid that differ from `rank` along `dims` only, the first of these outermost."""
    place = (grid == rank).nonzero()[0].tolist()
    row = grid[tuple(slice(None) if dim in dims else place[dim] for dim in range(grid.dim()))]
    if list(dims) != sorted(dims):
        row = row.transpose(0, 1)
    ranks = row.flatten().tolist()
    group = _group(ranks, grid.numel()) if started else None
    return Axis(name, ranks.index(rank), tuple(ranks), group, clock)


def _group(ranks: list[int], world_size: int) -> dist.ProcessGroup | None:
    """Made by its members alone: were all ranks to make all groups, a start would take time with their number."""
    if len(ranks) == world_size:
        return dist.group.WORLD
    return dist.new_group(ranks, use_local_synchronization=True)
