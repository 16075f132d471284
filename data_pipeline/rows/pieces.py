"""Rows as pieces of the split: what a packing decides, what is copied, and what an audit traces back to documents.

A batch has a few rows of a few pieces: for so few, lists are faster than arrays. One call of numpy copies all of them.
While it waits for a disk other threads go on; joining memoryviews would be faster still, but holds them up.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
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


def fill_pieces(
    dataset: TokenDataset, pieces: Sequence[Piece], rows: Sequence[int], out: Buffer, pads: bool
) -> list[int]:
    """Copies pieces, which come in the order of rows and columns, into these rows of a buffer.

    No label counts of a row that holds tokens of a shard which the run goes without. With `pads` rows are filled up
    with EOD whose labels do not count: gives the places of the flattened block where that begins behind tokens.
    """
    found = _find(dataset, pieces, rows, out)
    padding = _pad(dataset, found, pieces, rows, out) if pads else []
    out.fill(rows, found)
    return padding


def _find(dataset: TokenDataset, pieces: Sequence[Piece], rows: Sequence[int], out: Buffer) -> list[NDArray[Any]]:
    """The tokens of each piece as stored."""
    maps, starts, are_out = dataset.maps, dataset.shard_starts_list, dataset.files.out
    found = []
    for row, _, start, length in pieces:
        shard = bisect_right(starts, start) - 1
        local = start - starts[shard]
        piece = maps[shard][local : local + length]
        if (are_out and shard in are_out) or len(piece) < length:
            piece = dataset.read(start, start + length)
            if not are_out.isdisjoint(range(shard, bisect_right(starts, start + length - 1))):
                out.ignore([rows[row]])
        found.append(piece)
    return found


def _pad(
    dataset: TokenDataset, found: list[NDArray[Any]], pieces: Sequence[Piece], rows: Sequence[int], out: Buffer
) -> list[int]:
    """Puts EOD behind what was found for each row that is not full; the places where that begins behind tokens."""
    width, eod_id = out.block.shape[1], dataset.manifest.eod_id
    filled, counts = [0] * len(rows), [0] * len(rows)
    for row, _, _, length in pieces:
        filled[row] += length
        counts[row] += 1
    places = []
    added = 0
    for row, column, behind in zip(rows, filled, accumulate(counts), strict=True):
        if column < width:
            found.insert(behind + added, np.full(width - column, eod_id, dataset.dtype))
            added += 1
            out.ignore_from(row, max(0, column - 1))
            if column:
                places.append(row * width + column)
    return places


def boundaries(dataset: TokenDataset, pieces: Sequence[Piece], rows: Sequence[int], width: int, inner: bool) -> Int64:
    """The places of a flattened block of rows of this width at which documents begin, other than at a row's beginning.

    inner: pieces may hold several documents.
    """
    starts, ends_of = dataset.shard_starts_list, dataset.ends
    found: list[int] = []
    for row, column, start, length in pieces:
        place = rows[row] * width + column
        if column:
            found.append(place)
        if not inner:
            continue
        shard = bisect_right(starts, start) - 1
        if start + length > starts[shard + 1]:
            found += (dataset.boundaries(start, start + length) + (place - start)).tolist()
            continue
        # For every row of a batch: a binary search takes as long as its copy, a look into a table does not.
        ends, firsts, bits = ends_of[shard]
        local = start - starts[shard]
        stop, shift, number = local + length, place - local, firsts[local >> bits]
        while ends[number] <= local:
            number += 1
        while (end := ends[number]) < stop:
            found.append(end + shift)
            number += 1
    return np.fromiter(found, np.int64, len(found))
