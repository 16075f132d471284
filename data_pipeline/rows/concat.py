"""Cuts a split into rows of S inputs and S labels.

Row k is the tokens [kS, kS + S + 1): its inputs are the first S of them, its labels the last S, so neighbouring rows
share one token and every pair (token, next token) is in exactly one row.
"""

from __future__ import annotations

import numpy as np

from data_pipeline.format.dataset import Int64, TokenDataset
from data_pipeline.rows.batch import IGNORE, Batch


def row_count(tokens: int, sequence_length: int) -> int:
    """Whole rows in a split of so many tokens; what is left over (under sequence_length tokens) is not trained on."""
    return max(0, (tokens - 1) // sequence_length)


def read_rows(dataset: TokenDataset, rows: Int64, sequence_length: int, isolate_documents: bool) -> Batch:
    """The whole rows with these numbers, in this order."""
    starts = rows * sequence_length
    block = dataset.gather(starts, sequence_length + 1)
    tokens, labels = block[:, :-1].copy(), block[:, 1:].copy()
    if not isolate_documents:
        return Batch(tokens, labels)
    ids = document_numbers(dataset, starts, sequence_length + 1)
    return isolate(tokens, labels, ids)


def isolate(tokens: Int64, labels: Int64, ids: Int64) -> Batch:
    """Documents kept apart: `ids` [rows, S + 1] numbers the documents along each row and beyond it by one token."""
    labels[ids[:, 1:] != ids[:, :-1]] = IGNORE
    ids = ids[:, :-1]
    column = np.arange(ids.shape[1])
    begins = np.diff(ids, axis=1, prepend=-1) != 0
    positions = column - np.maximum.accumulate(np.where(begins, column, 0), axis=1)
    return Batch(tokens, labels, positions, ids.copy())


def document_numbers(dataset: TokenDataset, starts: Int64, length: int) -> Int64:
    """For `length` tokens from each start: 0 in the first document, 1 in the next, and so on; [rows, length]."""
    steps = np.zeros((len(starts), length), dtype=np.int64)
    for i, start in enumerate(starts.tolist()):
        steps[i, dataset.boundaries(start, start + length) - start] = 1
    return np.cumsum(steps, axis=1)
