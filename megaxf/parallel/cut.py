"""How a rank's share of a parameter follows from the whole parameter, and the way back.

A parameter is cut along one dimension into equal parts over the ranks of the tensor axis. Where there are more ranks
than parts, neighbouring ranks hold the same part (key/value heads); where the parts are not equal, the last ones are
filled up with zeros (the vocabulary), which belong to no whole parameter and never leave the rank.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.distributed as dist
import torch.nn.functional as F

from megaxf.parallel.mesh import Axis


@dataclass(frozen=True)
class Cut:
    """The cut of one parameter over the tensor axis, the same on every rank."""

    dim: int | None = None
    """None: every rank holds the whole parameter."""
    parts: int = 1
    """Different parts; rank r of R holds part r * parts / R."""
    size: int = 0
    """Extent of a part along `dim`; parts * size is at least the whole extent."""

    def part(self, axis: Axis) -> int:
        """Which part this rank holds."""
        return axis.rank * self.parts // axis.size

    def is_counted(self, axis: Axis) -> bool:
        """Whether this rank is the first of those that hold its part, and so counts it in a sum over all ranks."""
        return axis.rank * self.parts % axis.size == 0 if self.parts > 1 else axis.rank == 0

    def take(self, whole: torch.Tensor, axis: Axis) -> torch.Tensor:
        """This rank's share of a whole tensor; a view where nothing is filled up."""
        if self.dim is None:
            return whole
        first = min(self.part(axis) * self.size, whole.shape[self.dim])
        length = min(self.size, whole.shape[self.dim] - first)
        share = whole.narrow(self.dim, first, length)
        if length == self.size:
            return share
        return F.pad(share, (0, 0) * (whole.dim() - 1 - self.dim) + (0, self.size - length))

    def gather(self, share: torch.Tensor, shape: torch.Size, axis: Axis) -> torch.Tensor:
        """The whole tensor, of that shape, on every rank of the axis; collective along it."""
        if self.dim is None or axis.size == 1:
            return share if self.dim is None else share.narrow(self.dim, 0, shape[self.dim])
        shares = [torch.empty_like(share) for _ in range(axis.size)]
        dist.all_gather(shares, share.contiguous(), group=axis.group)
        parts = shares[:: axis.size // self.parts]
        return torch.cat(parts, dim=self.dim).narrow(self.dim, 0, shape[self.dim])
