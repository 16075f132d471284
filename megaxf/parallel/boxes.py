"""Where what a rank holds of a parameter lies in the whole parameter: boxes of it, which any other layout can read.

A rank's share of a parameter is a box of the whole (`Cut`). ZeRO keeps a range of the flattened share, which is not a
box, but a few: the end of a row, whole rows, the beginning of a row.
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import torch

from megaxf.parallel.cut import Cut
from megaxf.parallel.mesh import Axis

PARTS = ("master", "exp_avg", "exp_avg_sq")
"""What there is of each parameter, in fp32: the weights, and what AdamW keeps, by torch's names."""
SPLIT = 1 << 18
"""Elements from which on equal copies share the writing of a piece; a smaller one is written by one of them."""


class Piece(NamedTuple):
    """A box of one tensor of a parameter in this rank's memory."""

    name: str
    """Of the parameter."""
    part: str
    """Which of PARTS."""
    offsets: tuple[int, ...]
    """Where the box begins in the whole tensor, in each dimension."""
    values: torch.Tensor
    """fp32; what is written into it is written into the engine."""
    copy: int = 0
    copies: int = 1
    """How many ranks hold this box, and which of them this one is."""

    @property
    def key(self) -> str:
        """The name of the tensor in a checkpoint."""
        return f"{self.name}/{self.part}"

    def box_in(self, whole: torch.Tensor) -> torch.Tensor:
        """The view of a whole tensor that these values are."""
        return whole[tuple(slice(at, at + size) for at, size in zip(self.offsets, self.values.shape, strict=True))]

    def own(self) -> Piece | None:
        """The rows of it that this rank writes into a checkpoint, so that each is written once; None for none."""
        if self.copies == 1:
            return self
        if self.values.numel() < SPLIT:
            return self if zlib.crc32(self.key.encode()) % self.copies == self.copy else None
        rows = len(self.values)
        first, end = rows * self.copy // self.copies, rows * (self.copy + 1) // self.copies
        offsets = (self.offsets[0] + first, *self.offsets[1:])
        return self._replace(offsets=offsets, values=self.values[first:end]) if end > first else None


def flat_boxes(shape: Sequence[int], start: int, stop: int) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
    """(offsets, sizes) of the boxes that are the elements start to stop of a flattened tensor, in order."""
    if start >= stop:
        return
    if not shape:
        yield (), ()
        return
    row = math.prod(shape[1:])
    while start < stop:
        index, within = divmod(start, row)
        rows = 0 if within else (stop - start) // row
        if rows:
            yield (index, *[0] * (len(shape) - 1)), (rows, *shape[1:])
            start += rows * row
        else:
            end = min(stop, (index + 1) * row)
            for offsets, sizes in flat_boxes(shape[1:], within, end - index * row):
                yield (index, *offsets), (1, *sizes)
            start = end


def share_pieces(
    name: str,
    shape: torch.Size,
    cut: Cut,
    axis: Axis,
    start: int,
    tensors: Mapping[str, torch.Tensor],
    replicas: Axis | None = None,
) -> Iterator[Piece]:
    """The pieces of a rank's range of a flattened share, without what fills it up.

    shape: of the whole parameter. axis: over which it is cut. start: the first element of the range in the share.
    tensors: the range of each part, of one dimension; what is beyond the share is padding.
    replicas: the ranks that hold the same range, beside those of the cut; None where each holds another.
    """
    copy, copies = cut.copy(axis)
    if replicas is not None:
        copy, copies = copy * replicas.size + replicas.rank, copies * replicas.size
    share = list(shape)
    origin, length = cut.extent(shape, axis)
    if cut.dim is not None:
        share[cut.dim] = cut.size
    stop = min(start + len(next(iter(tensors.values()))), math.prod(share))
    place = 0
    for offsets, sizes in flat_boxes(share, start, stop):
        end = place + math.prod(sizes)
        for part, flat in tensors.items():
            values, where = flat[place:end].view(sizes), offsets
            if cut.dim is not None:
                values = values.narrow(cut.dim, 0, max(0, min(sizes[cut.dim], length - offsets[cut.dim])))
                where = (*offsets[: cut.dim], origin + offsets[cut.dim], *offsets[cut.dim + 1 :])
            if values.numel():
                yield Piece(name, part, where, values, copy, copies)
        place = end
