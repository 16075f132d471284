"""Cuts a split into rows of S inputs and S labels.

Row k is the tokens [kS, kS + S + 1): its inputs are the first S of them, its labels the last S, so neighbouring rows
share one token and every pair (token, next token) is in exactly one row.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from data_pipeline.dataset import Int64, TokenDataset

IGNORE = -100
"""The label that does not count."""


class Batch(NamedTuple):
    """Rows of a batch; every array is [rows, sequence_length] int64 and owned by the batch."""

    tokens: Int64
    labels: Int64
    """The token after each input token, or -100 where it does not count."""
    positions: Int64 | None = None
    """With isolated documents: the position within the document. 0 again where a row begins inside a document."""
    document_ids: Int64 | None = None
    """With isolated documents: 0, 1, 2, ... along each row."""


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


def join(batches: Sequence[Batch], order: Int64 | slice = slice(None)) -> Batch:
    """The rows of all batches, one below the other, then taken in the given order."""
    tokens = np.concatenate([batch.tokens for batch in batches])[order]
    labels = np.concatenate([batch.labels for batch in batches])[order]
    positions = [batch.positions for batch in batches if batch.positions is not None]
    ids = [batch.document_ids for batch in batches if batch.document_ids is not None]
    if not positions:
        return Batch(tokens, labels)
    return Batch(tokens, labels, np.concatenate(positions)[order], np.concatenate(ids)[order])


def document_numbers(dataset: TokenDataset, starts: Int64, length: int) -> Int64:
    """For `length` tokens from each start: 0 in the first document, 1 in the next, and so on; [rows, length]."""
    steps = np.zeros((len(starts), length), dtype=np.int64)
    for i, start in enumerate(starts.tolist()):
        steps[i, dataset.boundaries(start, start + length) - start] = 1
    return np.cumsum(steps, axis=1)
