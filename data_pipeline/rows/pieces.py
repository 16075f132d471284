"""Rows as pieces of the split: what a packing decides, what is copied, and what an audit traces back to documents.

A batch has a few rows of a few pieces, each copied by a call of its own: for so few, lists are faster than arrays.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from data_pipeline.format.dataset import Int64, TokenDataset
from data_pipeline.rows.batch import Buffer

Piece = tuple[int, int, int, int]
"""(row, column, start, length): tokens [start, start + length) of a split that stand in a row from a column on.

Rows are numbered within those that were asked for. A piece at a column other than 0 begins a document, or follows the
split's last token with its first. A plain tuple: one with names would cost as much to make as a fifth of the copy.
"""


def part(piece: Piece, number: int, length: int) -> Piece:
    """What of it stands in the columns [number * length, (number + 1) * length]; its length may be below 1."""
    row, column, start, size = piece
    low = number * length
    begin = max(column, low)
    return row, begin - low, start + begin - column, min(column + size, low + length + 1) - begin


def fill_pieces(dataset: TokenDataset, pieces: Sequence[Piece], rows: Sequence[int], out: Buffer) -> None:
    """Copies pieces into these rows of a buffer: once, from the map of the shard.

    No label counts of a row that holds tokens of a shard which the run goes without.
    """
    flat, width = out.flat, out.block.shape[1]
    is_out, tokens, starts = dataset.files.is_out, dataset.shard_tokens, dataset.shard_starts_list
    # One call copies all pieces that stand one behind the other in the block.
    run: list[NDArray[Any]] = []
    begin = end = 0
    for row, column, start, length in pieces:
        shard = bisect_right(starts, start) - 1
        local = start - starts[shard]
        found = tokens(shard)[local : local + length]
        out_of_run = is_out(shard)
        if len(found) < length:
            found = dataset.read(start, start + length)
            out_of_run = any(map(is_out, range(shard, bisect_right(starts, start + length - 1))))
        place = rows[row] * width + column
        if run and place != end:
            np.concatenate(run, out=flat[begin:end])
            run = []
        if not run:
            begin = place
        run.append(found)
        end = place + length
        if out_of_run:
            out.ignore([rows[row]])
    if run:
        np.concatenate(run, out=flat[begin:end])


def pad(pieces: Sequence[Piece], rows: Sequence[int], out: Buffer, eod_id: int) -> list[int]:
    """Fills these rows up with EOD whose labels do not count; gives the places where that begins behind tokens."""
    width = out.block.shape[1]
    filled = [0] * len(rows)
    for row, _, _, length in pieces:
        filled[row] += length
    places = []
    for row, column in zip(rows, filled, strict=True):
        if column < width:
            out.block[row, column:] = eod_id
            out.ignore_from(row, max(0, column - 1))
            if column:
                places.append(row * width + column)
    return places


def boundaries(dataset: TokenDataset, pieces: Sequence[Piece], rows: Sequence[int], width: int, inner: bool) -> Int64:
    """The places of a flattened block of rows of this width at which documents begin, other than at a row's beginning.

    inner: pieces may hold several documents.
    """
    starts = dataset.shard_starts_list
    found: list[int] = []
    for row, column, start, length in pieces:
        place = rows[row] * width + column
        if column:
            found.append(place)
        if inner:
            shard, stop = bisect_right(starts, start) - 1, start + length
            alone = stop <= starts[shard + 1]
            ends = dataset.ends_around(shard, start, stop) if alone else dataset.boundaries(start, stop)
            shift = place - start
            found += [end + shift for end in ends.tolist() if start < end < stop]
    return np.array(found, np.int64)
