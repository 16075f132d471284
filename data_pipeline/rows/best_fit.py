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
    wholes = (documents - 1) // sequence_length * (documents > sequence_length)
    begins = np.cumsum(documents) - documents
    rest = documents - wholes * sequence_length
    # A single token that is left of a cut document is the last label of the row before.
    kept = np.flatnonzero((rest > 1) | (wholes == 0))
    rows, count = best_fit(rest[kept], sequence_length + 1)
    cut = np.repeat(np.arange(len(documents)), wholes)
    turn = np.arange(len(cut)) - np.repeat(np.cumsum(wholes) - wholes, wholes)
    return in_rows(
        np.concatenate([np.arange(len(cut)), rows + len(cut)]),
        len(cut) + count,
        np.concatenate([begins[cut] + turn * sequence_length, (begins + wholes * sequence_length)[kept]]),
        np.concatenate([np.full(len(cut), sequence_length + 1), rest[kept]]),
    )


def in_rows(rows: Int64, count: int, starts: Int64, lengths: Int64) -> Packed:
    """Pieces with the number of the row of each, brought into the order of `count` rows."""
    order = _order(rows)
    firsts = np.concatenate([[0], np.cumsum(np.bincount(rows, minlength=count))])
    return Packed(firsts, starts[order], lengths[order])


def best_fit(lengths: Int64, capacity: int) -> tuple[Int64, int]:
    """Best-fit decreasing: the row [pieces] of each piece, and the number of rows. No length is over the capacity."""
    free = _Free(capacity)
    rooms, ranges, keep = free.rooms, free.ranges, free.keep
    firsts: list[int] = []
    sizes: list[int] = []
    opened = 0
    counts = np.bincount(lengths, minlength=1)
    longest_first = np.flatnonzero(counts)[::-1]
    for length, left in zip(longest_first.tolist(), counts[longest_first].tolist(), strict=True):
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
                firsts += [first] * each
                sizes += [full] * each
                left -= full * each
                if rest := room - each * length:
                    keep(rest, first, full)
            if full < size:
                firsts += [first + full] * left
                sizes += [1] * left
                keep(room - left * length, first + full, 1)
                if behind := size - full - 1:
                    keep(room, first + full + 1, behind)
                left = 0
    found = np.empty(len(lengths), np.int64)
    found[_order(capacity - lengths)] = _runs(firsts, sizes)
    return found, opened


class _Free:
    """Rows that are being filled, as ranges of neighbours that have the same room left."""

    def __init__(self, capacity: int):
        self.ranges: list[list[tuple[int, int]]] = [[] for _ in range(capacity + 1)]
        """First row and number of rows, by room."""
        self.rooms: list[int] = []
        """The rooms for which there are ranges, ascending."""

    def keep(self, room: int, first: int, size: int) -> None:
        """Keeps rows for later."""
        ranges = self.ranges[room]
        if not ranges:
            insort(self.rooms, room)
        ranges.append((first, size))


def _runs(firsts: list[int], lengths: list[int]) -> Int64:
    """firsts[0], firsts[0] + 1, ... so many numbers, then those from firsts[1] on, ..."""
    sizes = np.asarray(lengths, np.int64)
    steps = np.asarray(firsts, np.int64) - (np.cumsum(sizes) - sizes)
    return np.arange(sizes.sum()) + np.repeat(steps, sizes)


def _order(keys: Int64) -> Int64:
    """What a stable argsort gives, of keys below 2^31: sorting whole numbers is several times as fast."""
    return np.sort((keys << 32) | np.arange(len(keys))) & 0xFFFFFFFF
