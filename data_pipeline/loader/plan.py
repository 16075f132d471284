"""Locates the samples of many batches at once: a call of numpy costs more than the few rows of one batch of a rank."""

from __future__ import annotations

import numpy as np

from data_pipeline.loader.order import Block, Part, SampleOrder, Samples

_SAMPLES = 1 << 14
"""Located at a time, unless one block has more: enough that the calls of numpy cost less than the arithmetic."""

_GROWTH = 16
"""Each plan has so many times the blocks of the one before: who reads a few batches does not wait for thousands."""


class Planner:
    """Blocks of samples as a rank asks for them: equally many each time, equally far apart.

    How far is known from the second block on; the next ones are located with it. What comes out does not depend on it.
    """

    def __init__(self, order: SampleOrder, ahead: int = 0):
        """`ahead`: blocks that are known, at the least, beyond the one that was asked for last."""
        self._order, self._ahead = order, ahead
        self._asked = 0
        """The first sample that was asked for last."""
        self._first, self._stride, self._count = 0, 1, -1
        self._usable = 0
        """Blocks of the plan that are given out: first, first + stride, ..., each of `count` samples."""
        self._samples: Samples
        self._parts: list[list[Part]]

    def samples(self, first: int, count: int) -> Samples:
        """Samples first, first + 1, ...; raises DataError when they do not lie in one phase."""
        block = self._find(first, count)
        return self._samples.take(slice(block * count, (block + 1) * count))

    def block(self, first: int, count: int) -> Block:
        """The same samples by source, as they are read."""
        block = self._find(first, count)
        source = self._samples.source[block * count : (block + 1) * count]
        return Block(self._parts[block], source, self._samples.sequence_length)

    def coming(self) -> Samples:
        """The samples that were asked for last, and those of the `ahead` blocks that are expected next."""
        block = (self._asked - self._first) // self._stride
        return self._samples.take(slice(block * self._count, (block + 1 + self._ahead) * self._count))

    def _find(self, first: int, count: int) -> int:
        """The number of a block in the plan, which is made anew where it has none."""
        block, rest = divmod(first - self._first, self._stride)
        if count != self._count or rest or not 0 <= block < self._usable:
            self._plan(first, count)
            block = 0
        self._asked = first
        return block

    def _plan(self, first: int, count: int) -> None:
        stretch, end = self._order.phases.stretch(first, count)
        blocks = 1
        if count == self._count and first > self._asked:
            self._stride = first - self._asked
            blocks = max(1, min(_GROWTH * self._usable, _SAMPLES // max(1, count))) + self._ahead
            if end is not None:
                blocks = min(blocks, (end - first - count) // self._stride + 1)
        begins = first + self._stride * np.arange(blocks, dtype=np.int64)
        self._samples = self._order.locate(stretch, (begins[:, None] + np.arange(count)).ravel())
        self._first, self._count, self._usable = first, count, max(1, blocks - self._ahead)
        self._parts = self._samples.take(slice(self._usable * count)).parts(max(1, count)) or [[]] * self._usable
