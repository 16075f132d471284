"""The rows of a split in their fixed order, every token once: what a validation loss is computed on."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from data_pipeline.format.dataset import TokenDataset
from data_pipeline.rows.batch import IGNORE, Batch, join
from data_pipeline.rows.concat import document_numbers, isolate, read_rows, row_count


class EvaluationRows:
    """A split cut into rows, the last of which may be partial: it is filled up with EOD whose labels do not count.

    So every token but the very first is a target exactly once (with isolated documents: all but each document's first).
    """

    def __init__(self, dataset: TokenDataset, sequence_length: int, isolate_documents: bool):
        self.dataset, self.sequence_length, self.isolate_documents = dataset, sequence_length, isolate_documents
        self._whole = row_count(dataset.tokens, sequence_length)

    def __len__(self) -> int:
        return -(-(self.dataset.tokens - 1) // self.sequence_length)

    def __iter__(self) -> Iterator[Batch]:
        """Batches of one row each."""
        return (self.rows(index, 1) for index in range(len(self)))

    def rows(self, first: int, count: int) -> Batch:
        """Rows first, first + 1, ...: `count` of them, or fewer at the end."""
        stop = min(first + count, len(self))
        whole = read_rows(
            self.dataset, np.arange(first, min(stop, self._whole)), self.sequence_length, self.isolate_documents
        )
        if stop <= self._whole or first >= len(self):
            return whole
        return join([whole, self._partial()])

    def _partial(self) -> Batch:
        size = self.sequence_length
        start = self._whole * size
        found = self.dataset.read(start, self.dataset.tokens).astype(np.int64)
        block = np.full(size + 1, self.dataset.manifest.eod_id, dtype=np.int64)
        block[: len(found)] = found
        tokens, labels = block[None, :-1].copy(), block[None, 1:].copy()
        labels[:, len(found) - 1 :] = IGNORE
        if not self.isolate_documents:
            return Batch(tokens, labels)
        ids = np.empty((1, size + 1), dtype=np.int64)
        ids[:, : len(found)] = document_numbers(self.dataset, np.asarray([start]), len(found))
        # The filling is a document of its own.
        ids[:, len(found) :] = ids[0, len(found) - 1] + 1
        return isolate(tokens, labels, ids)
