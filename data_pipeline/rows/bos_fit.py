"""Rows in which every piece is the beginning of a document: no token is without the start of its text.

A document longer than a row of S + 1 tokens is cropped to it, and what is behind is thrown away; the rows are packed
as in `best_fit` and the little room that stays free is padded. Filling that room with the beginnings of yet more
documents, as others do, would throw away far more tokens than it saves.
"""

from __future__ import annotations

import numpy as np

from data_pipeline.format.dataset import Int64
from data_pipeline.rows.best_fit import Packed, best_fit, in_rows


def pack_bos_fit(documents: Int64, sequence_length: int) -> Packed:
    """Rows for the documents of a shard, given by their lengths [documents] with EOD."""
    lengths = np.minimum(documents, sequence_length + 1)
    rows, count = best_fit(lengths, sequence_length + 1)
    return in_rows(rows, count, np.cumsum(documents) - documents, lengths)
