"""Locates the samples of many batches at once: a call of numpy costs more than the few rows of one batch of a rank."""

from __future__ import annotations

import numpy as np

from data_pipeline.loader.order import SampleOrder, Samples

_BLOCKS = 64
_SAMPLES = 1 << 16
"""At most so many at a time, however large the blocks."""


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

    def samples(self, first: int, count: int) -> Samples:
        """Samples first, first + 1, ...; raises DataError when they do not lie in one phase."""
        block, rest = divmod(first - self._first, self._stride)
        if count != self._count or rest or not 0 <= block < self._usable:
            self._plan(first, count)
            block = 0
        self._asked = first
        return self._samples.take(slice(block * count, (block + 1) * count))

    def coming(self) -> Samples:
        """The samples that were asked for last, and those of the blocks that are expected next."""
        block = (self._asked - self._first) // self._stride
        return self._samples.take(slice(block * self._count, None))

    def _plan(self, first: int, count: int) -> None:
        stretch, end = self._order.phases.stretch(first, count)
        blocks = 1
        if count == self._count and first > self._asked:
            self._stride = first - self._asked
            blocks = max(1, min(_BLOCKS, _SAMPLES // max(1, count))) + self._ahead
            if end is not None:
                blocks = min(blocks, (end - first - count) // self._stride + 1)
        begins = first + self._stride * np.arange(blocks, dtype=np.int64)
        self._samples = self._order.locate(stretch, (begins[:, None] + np.arange(count)).ravel())
        self._first, self._count, self._usable = first, count, max(1, blocks - self._ahead)
