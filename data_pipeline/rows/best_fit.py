"""Puts documents into rows so that none is cut that fits: best-fit decreasing, a shard at a time.

A document longer than a row of S + 1 tokens is cut into whole rows, neighbours of which share one token as in `concat`,
so that each of its pairs (token, next token) is in exactly one row; what is left (2 to S tokens) is packed with the
short documents. Packing takes the longest first and puts each into the row with the least room that is enough (D. S.
Johnson, Near-optimal bin packing algorithms, 1973).

The lengths are small whole numbers, so the rows are kept by the room that they have left, and all pieces of one length
are placed at once: the work is a few steps for each length that occurs, not for each document.
"""

from __future__ import annotations

from bisect import bisect_left, insort
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


def best_fit(lengths: Int64, capacity: int) -> tuple[Int64, int]:
    """Best-fit decreasing: the row [pieces] of each piece, and the number of rows. No length is over the capacity."""
    counts = np.bincount(lengths, minlength=1)
    longest_first = np.flatnonzero(counts)[::-1]
    # What is longer than half a row opens a row of its own.
    alone, several = np.split(longest_first, [np.count_nonzero(longest_first > capacity // 2)])
    free = _Free(capacity, alone.tolist(), counts[alone].tolist())
    rooms, ranges, keep = free.rooms, free.ranges, free.keep
    opened = int(counts[alone].sum())
    placed = [0, opened, 1]
    for length, left in zip(several.tolist(), counts[several].tolist(), strict=True):
        while left:
            # The rows with the least room that is enough, or new ones.
            place = bisect_left(rooms, length)
            if place < len(rooms):
                room = rooms[place]
                first, size = ranges[room].pop()
                if not ranges[room]:
                    del rooms[place]
            else:
                room, first, size = capacity, opened, -(-left // (capacity // length))
                opened += size
            # Best fit fills a row with pieces of this length before it touches the next one.
            each = room // length
            full = size if each * size <= left else left // each
            if full:
                placed += first, full, each
                left -= full * each
                if rest := room - each * length:
                    keep(rest, first, full)
            if full < size:
                placed += first + full, 1, left
                keep(room - left * length, first + full, 1)
                if behind := size - full - 1:
                    keep(room, first + full + 1, behind)
                left = 0
    found = np.empty(len(lengths), np.int64)
    found[_order(capacity - lengths)] = _rows(placed)
    return found, opened


class _Free:
    """Rows that are being filled, as ranges of neighbours that have the same room left."""

    def __init__(self, capacity: int, longest_first: list[int], counts: list[int]):
        """Rows of `capacity` with one piece each: so many for each of the lengths."""
        self.ranges: list[list[tuple[int, int]]] = [[] for _ in range(capacity + 1)]
        """First row and number of rows, by room."""
        first = 0
        for length, count in zip(longest_first, counts, strict=True):
            self.ranges[capacity - length].append((first, count))
            first += count
        self.rooms = [capacity - length for length in longest_first if length < capacity]
        """The rooms for which there are ranges, ascending."""

    def keep(self, room: int, first: int, size: int) -> None:
        """Keeps rows for later."""
        ranges = self.ranges[room]
        if not ranges:
            insort(self.rooms, room)
        ranges.append((first, size))


def _rows(placed: list[int]) -> Int64:
    """The rows of pieces from (first row, rows, times), ...: the numbers of so many rows, so many times over."""
    firsts, rows, times = np.asarray(placed, np.int64).reshape(-1, 3).T
    sizes = np.repeat(rows, times)
    steps = np.repeat(firsts, times) - (np.cumsum(sizes) - sizes)
    return np.arange(sizes.sum()) + np.repeat(steps, sizes)


def _order(keys: Int64) -> Int64:
    """What a stable argsort gives, of keys below 2^31: sorting whole numbers is several times as fast."""
    return np.sort((keys << 32) | np.arange(len(keys))) & 0xFFFFFFFF
