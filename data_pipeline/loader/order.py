"""Sample of the run -> source, epoch and row: phases, blend and the permutation of each epoch put together."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from data_pipeline.order.cuts import CutOrder, EpochOrder
from data_pipeline.order.permutation import Int64
from data_pipeline.order.phases import Phases, Stretch

Part = tuple[int, int, Sequence[int], list[int]]
"""(source, epoch, places, rows): the samples of a block that come from one epoch of one source, by place in the block.

A plain tuple, since every batch has one or more.
"""


class Samples(NamedTuple):
    """Where the samples of a stretch of the run come from; arrays [n]."""

    source: Int64
    """Number of the source in `Batches.names`."""
    epoch: Int64
    row: Int64
    sequence_length: int
    """Of the rows, which are numbered by it."""

    def take(self, chosen: slice) -> Samples:
        """Some of them."""
        return Samples(self.source[chosen], self.epoch[chosen], self.row[chosen], self.sequence_length)

    def parts(self, size: int) -> list[list[Part]]:
        """For each block of `size` samples, the last of which may be shorter: what it takes from each source."""
        order, edges = self._runs(np.arange(len(self.row)) // size)
        first = order[edges[:-1]]
        places, rows = (order % size).tolist(), self.row[order].tolist()
        blocks: list[list[Part]] = [[] for _ in range(0, len(order), size)]
        numbers, sources, epochs = (first // size).tolist(), self.source[first].tolist(), self.epoch[first].tolist()
        for block, source, epoch, begin, end in zip(numbers, sources, epochs, edges[:-1], edges[1:], strict=True):
            whole = end - begin == size
            blocks[block].append((source, epoch, range(size) if whole else places[begin:end], rows[begin:end]))
        return blocks

    def groups(self) -> Iterator[tuple[int, int, Int64]]:
        """For each source and epoch that occurs: (source, epoch, the places [n] of its samples, ascending)."""
        order, edges = self._runs(np.zeros_like(self.row))
        for begin, end in pairwise(edges):
            places = order[begin:end]
            yield int(self.source[places[0]]), int(self.epoch[places[0]]), places

    def _runs(self, block: Int64) -> tuple[Int64, list[int]]:
        """The places by block, source and epoch, and where in that order another of them begins; the end too."""
        order = np.lexsort((self.epoch, self.source, block))
        changed = np.zeros(max(0, len(order) - 1), np.bool_)
        for key in (block, self.source, self.epoch):
            sorted_key = key[order]
            changed |= sorted_key[1:] != sorted_key[:-1]
        changes = np.flatnonzero(changed) + 1
        return order, [0, *changes.tolist(), len(order)] if len(order) else [0]


class Block(NamedTuple):
    """Samples that are read together."""

    parts: list[Part]
    source: Int64
    """As in `Samples`."""
    sequence_length: int


class SampleOrder:
    """The order of all samples of a run. Holds nothing that depends on a position, but for tables it can make again."""

    def __init__(self, phases: Phases, orders: Sequence[EpochOrder], names: Sequence[str], seed: int):
        """`orders`: of the rows of the longest length, for each source."""
        self.phases, self._orders, self._names, self._seed = phases, orders, names, seed
        self._rows = np.asarray([order.rows for order in orders], dtype=np.int64)
        self._cut = lru_cache(maxsize=None)(self._cut_order)

    def locate(self, stretch: Stretch, positions: Int64) -> Samples:
        """The samples at these positions, all of which lie in one stretch."""
        source, index = self.phases.locate(stretch, positions)
        epoch, place = np.divmod(index, self._rows[source] * stretch.parts)
        found = Samples(source, epoch, np.empty_like(place), stretch.sequence_length)
        for number, turn, chosen in found.groups():
            found.row[chosen] = self._cut(number, stretch.parts).locate(turn, place[chosen])
        return found

    def _cut_order(self, source: int, parts: int) -> CutOrder:
        return CutOrder(self._orders[source], parts, self._seed, self._names[source])
