"""How a rank's share of a parameter follows from the whole parameter, and the way back.

A parameter is cut along one dimension into equal parts over the ranks of the tensor axis. Where there are more ranks
than parts, neighbouring ranks hold the same part (key/value heads); where the parts are not equal, the last ones are
filled up with zeros (the vocabulary), which belong to no whole parameter and never leave the rank.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
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

    def copy(self, axis: Axis) -> tuple[int, int]:
        """(which copy of its part this rank holds, how many ranks hold that part)."""
        copies = axis.size // self.parts
        return axis.rank % copies, copies

    def extent(self, shape: torch.Size, axis: Axis) -> tuple[int, int]:
        """(first index along `dim`, length) of this rank's share of the whole, unfilled; (0, 0) where it is not cut."""
        if self.dim is None:
            return 0, 0
        first = min(self.part(axis) * self.size, shape[self.dim])
        return first, min(self.size, shape[self.dim] - first)

    def take(self, whole: torch.Tensor, axis: Axis) -> torch.Tensor:
        """This rank's share of a whole tensor; a view where nothing is filled up."""
        if self.dim is None:
            return whole
        first, length = self.extent(whole.shape, axis)
        share = whole.narrow(self.dim, first, length)
        if length == self.size:
            return share
        return F.pad(share, (0, 0) * (whole.dim() - 1 - self.dim) + (0, self.size - length))
