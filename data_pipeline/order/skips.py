"""Samples that a run passes over, such as those before a spike of the loss: the rest keep their order."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from data_pipeline.errors import DataError
from data_pipeline.order.permutation import Int64


class Skips:
    """Ranges (first, last) of samples, both included, numbered as if none were skipped."""

    def __init__(self, ranges: Sequence[tuple[int, int]]):
        """Raises DataError when ranges are empty, negative, overlapping or not in ascending order."""
        self.ranges = [(int(first), int(last)) for first, last in ranges]
        end = -1
        for first, last in self.ranges:
            if not end < first <= last:
                raise DataError(
                    f"skips holds the range ({first}, {last}) after sample {end}; "
                    "give (first, last) with first <= last, ascending and without overlap"
                )
            end = last
        lengths = np.asarray([last - first + 1 for first, last in self.ranges], dtype=np.int64)
        self._skipped = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        # How many samples are kept before each range: from there on, positions lie behind it.
        firsts = np.asarray([first for first, _ in self.ranges], dtype=np.int64)
        self._kept = firsts - self._skipped[:-1]

    def apply(self, positions: Int64) -> Int64:
        """The numbers, among all samples, of the samples at these positions among those that are kept."""
        return positions + self._skipped[np.searchsorted(self._kept, positions, side="right")]
