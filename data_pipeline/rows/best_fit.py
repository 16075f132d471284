"""Puts documents into rows so that none is cut that fits: best-fit decreasing, a shard at a time.

A document longer than a row of S + 1 tokens is cut into whole rows, neighbours of which share one token as in `concat`,
so that each of its pairs (token, next token) is in exactly one row; what is left (2 to S tokens) is packed with the
short documents. Packing takes the longest first and puts each into the row with the least room that is enough (D. S.
Johnson, Near-optimal bin packing algorithms, 1973).

The lengths are small whole numbers, so the rows are kept by the room that they have left, and all pieces of one length
are placed at once: the work is a few steps for each length that occurs, not for each document.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from data_pipeline.format.dataset import Int64


class Packed(NamedTuple):
    """Rows of a shard: row k holds the pieces [firsts[k], firsts[k + 1]), in the order of the shard."""

    firsts: Int64
    """[rows + 1]"""
    starts: Int64
    """[pieces], in tokens of the shard."""
    lengths: Int64
    """[pieces]"""


def pack_best_fit(documents: Int64, sequence_length: int) -> Packed:
    """Rows for the documents of a shard, given by their lengths [documents] with EOD."""
    long = np.flatnonzero(documents > sequence_length)
    wholes = (documents[long] - 1) // sequence_length
    starts, lengths = np.cumsum(documents) - documents, documents.copy()
    turn = np.arange(wholes.sum()) - np.repeat(np.cumsum(wholes) - wholes, wholes)
    cut = np.repeat(starts[long], wholes) + turn * sequence_length
    starts[long] += wholes * sequence_length
    lengths[long] -= wholes * sequence_length
    # A single token that is left of a cut document is the last label of the row before.
    kept = np.ones(len(documents), bool)
    kept[long] = lengths[long] > 1
    if not kept.all():
        starts, lengths = starts[kept], lengths[kept]
    packed = in_rows(*best_fit(lengths, sequence_length + 1), starts, lengths)
    return Packed(
        np.concatenate([np.arange(len(cut)), packed.firsts + len(cut)]),
        np.concatenate([cut, packed.starts]),
        np.concatenate([np.full(len(cut), sequence_length + 1), packed.lengths]),
    )


def in_rows(rows: Int64, count: int, starts: Int64, lengths: Int64) -> Packed:
    """Pieces with the number of the row of each, brought into the order of `count` rows."""
    order = _order(rows)
    firsts = np.concatenate([[0], np.cumsum(np.bincount(rows, minlength=count))])
    return Packed(firsts, starts[order], lengths[order])


_Rows = tuple[int, int, int, "_Rows | None"]
"""Neighbouring rows that have the same room left: the room, the first row, their number, and more with that room."""


def best_fit(lengths: Int64, capacity: int) -> tuple[Int64, int]:
    """Best-fit decreasing: the row [pieces] of each piece, and the number of rows. No length is over the capacity."""
    half = capacity // 2
    counts = np.bincount(lengths, minlength=capacity + 1)
    # What is longer than half a row opens a row of its own.
    alone = counts[:half:-1]
    opened = int(alone.sum())
    placed = [0, opened, 1]
    # Lengths descend, so that rows with too little room wait, by their room, until the length is down to it. Then they
    # have the least room of all that fit: those that fit are a stack, with the best fit on top.
    waiting = _waiting(alone, half)
    fitting: list[_Rows] = []
    for length, left in zip(range(half, 0, -1), counts[half:0:-1].tolist(), strict=True):
        if rows := waiting[length]:
            fitting.append(rows)
        while left:
            if fitting:
                room, first, size, more = fitting.pop()
                if more:
                    fitting.append(more)
            else:
                room, first, size = capacity, opened, -(-left // (capacity // length))
                opened += size
            # Best fit fills a row with pieces of this length before it touches the next one.
            each = room // length
            full = left // each
            if full > size:
                full = size
            if full:
                placed += first, full, each
                left -= full * each
                rest = room - each * length
                waiting[rest] = (rest, first, full, waiting[rest])
            if full == size:
                continue
            # Fewer pieces of this length are left than fill one more row, which keeps room for another.
            part = 1 if left else 0
            if size > full + part:
                fitting.append((room, first + full + part, size - full - part, None))
            if part:
                placed += first + full, 1, left
                fitting.append((room - left * length, first + full, 1, None))
            break
    found = np.empty(len(lengths), np.int64)
    found[_order(capacity - lengths)] = _rows(placed)
    return found, opened


def _waiting(alone: Int64, half: int) -> list[_Rows | None]:
    """By their room, 0 to `half`, the rows of one piece each: so many [rooms] leave each room."""
    waiting: list[_Rows | None] = [None] * (half + 1)
    rooms = np.flatnonzero(alone)
    firsts = (np.cumsum(alone) - alone)[rooms]
    for room, first, size in zip(rooms.tolist(), firsts.tolist(), alone[rooms].tolist(), strict=True):
        waiting[room] = (room, first, size, None)
    return waiting


def _rows(placed: list[int]) -> Int64:
    """The rows of pieces from (first row, rows, times), ...: the numbers of so many rows, so many times over."""
    firsts, rows, times = np.fromiter(placed, np.int64, len(placed)).reshape(-1, 3).T
    sizes = np.repeat(rows, times)
    steps = np.repeat(firsts, times) - (np.cumsum(sizes) - sizes)
    return np.arange(sizes.sum()) + np.repeat(steps, sizes)


def _order(keys: Int64) -> Int64:
    """What a stable argsort gives, of keys below 2^31: sorting whole numbers is several times as fast."""
    return np.sort((keys << 32) | np.arange(len(keys))) & 0xFFFFFFFF
