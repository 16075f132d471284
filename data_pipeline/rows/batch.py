"""Rows with their labels, as a step of training takes them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from data_pipeline.format.dataset import Int64

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


def join(batches: Sequence[Batch], order: Int64 | slice = slice(None)) -> Batch:
    """The rows of all batches, one below the other, then taken in the given order."""
    tokens = np.concatenate([batch.tokens for batch in batches])[order]
    labels = np.concatenate([batch.labels for batch in batches])[order]
    positions = [batch.positions for batch in batches if batch.positions is not None]
    ids = [batch.document_ids for batch in batches if batch.document_ids is not None]
    if not positions:
        return Batch(tokens, labels)
    return Batch(tokens, labels, np.concatenate(positions)[order], np.concatenate(ids)[order])
