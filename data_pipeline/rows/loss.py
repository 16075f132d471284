"""Which labels of a source count: all of them, none, or those behind a token that begins what is to be learned."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from data_pipeline.errors import DataError
from data_pipeline.format.dataset import Int64

ALL, NONE = "all", "none"
_AFTER = "after:"


def read_train_on(value: str) -> int | None:
    """The token of `after:<id>`, None for `all` and `none`; raises DataError where it is none of these."""
    number = value.removeprefix(_AFTER)
    if value.startswith(_AFTER) and number.isdecimal():
        return int(number)
    if value in (ALL, NONE):
        return None
    raise DataError(f"train_on = {value!r} is not known; use {ALL}, {NONE} or {_AFTER}<token id>, e.g. {_AFTER}32001")


def before_token(block: Int64, rows: Sequence[int], starts: Int64, token: int) -> NDArray[np.bool_]:
    """The labels [n, sequence_length] of these rows of a block that do not count: those not behind the token.

    A label counts when the token stands somewhere before it in the same document's piece in the row; `starts` are the
    places of the flattened block at which documents begin.
    """
    width = block.shape[1]
    begin = np.zeros(block.shape, np.int64)
    row, column = np.divmod(starts, width)
    begin[row, column] = column
    chosen = np.asarray(rows, np.int64)
    begin = np.maximum.accumulate(begin[chosen], axis=1)
    last = np.where(block[chosen, :-1] == token, np.arange(width - 1), -1)
    ignored: NDArray[np.bool_] = np.maximum.accumulate(last, axis=1) < begin[:, 1:]
    return ignored
