"""The rows of a split in their fixed order, every token once: what a validation loss is computed on."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from data_pipeline.format.dataset import TokenDataset
from data_pipeline.rows.batch import Batch, Buffer
from data_pipeline.rows.pieces import boundaries, fill_pieces


class EvaluationRows:
    """A split cut into rows, the last of which may be partial: it is filled up with EOD whose labels do not count.

    So every token but the very first is a target exactly once (with isolated documents: all but each document's first).
    """

    def __init__(self, dataset: TokenDataset, sequence_length: int, isolate_documents: bool):
        self.dataset, self.sequence_length, self.isolate_documents = dataset, sequence_length, isolate_documents

    def __len__(self) -> int:
        return -(-(self.dataset.tokens - 1) // self.sequence_length)

    def __iter__(self) -> Iterator[Batch]:
        """Batches of one row each."""
        return (self.rows(index, 1) for index in range(len(self)))

    def rows(self, first: int, count: int, size: int = 0) -> Batch:
        """Rows first, first + 1, ...: `count` or fewer at the end; then rows that do not count, up to `size`."""
        width = self.sequence_length + 1
        starts = [row * self.sequence_length for row in range(first, min(first + count, len(self)))]
        pieces = [(i, 0, start, min(width, self.dataset.tokens - start)) for i, start in enumerate(starts)]
        every = range(max(len(starts), size))
        out = Buffer(len(every), self.sequence_length, self.isolate_documents)
        padding = fill_pieces(self.dataset, pieces, every, out, pads=True)
        if self.isolate_documents:
            found = boundaries(self.dataset, pieces, every, width, inner=True)
            out.begin_documents(np.append(found, np.asarray(padding, np.int64)))
        return out.finish()
