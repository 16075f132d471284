"""Where documents begin in a batch, as attention over variable lengths wants it."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from data_pipeline.rows.batch import Batch


def cu_seqlens(batch: Batch) -> NDArray[np.int32]:
    """Where each document (or row) begins in the flattened tokens, and the end of all: [documents + 1] int32.

    No segment is empty, and none goes over the end of a row. Padding is a segment. Without isolated documents each
    row is one segment.
    """
    rows, length = batch.tokens.shape
    if batch.bounds is None:
        return np.arange(0, rows * length + 1, length, dtype=np.int32)
    return batch.bounds.astype(np.int32)


def longest(bounds: NDArray[np.int32]) -> int:
    """The tokens of the longest segment (max_seqlen); 0 in an empty batch."""
    return int(np.diff(bounds).max(initial=0))
