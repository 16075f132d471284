"""Sample of the run -> source, epoch and row: phases, blend and the permutation of each epoch put together."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from data_pipeline.order.cuts import CutOrder, EpochOrder
from data_pipeline.order.permutation import Int64
from data_pipeline.order.phases import Phases, Stretch


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

    def groups(self) -> Iterator[tuple[int, int, Int64]]:
        """For each source and epoch that occurs: (source, epoch, the places [n] of its samples, ascending)."""
        order = np.lexsort((self.epoch, self.source))
        source, epoch = self.source[order], self.epoch[order]
        edges = np.flatnonzero((np.diff(source) != 0) | (np.diff(epoch) != 0)) + 1
        for places in np.split(order, edges) if len(order) else []:
            yield int(self.source[places[0]]), int(self.epoch[places[0]]), places

    def by_source(self) -> dict[tuple[int, int], tuple[list[int], list[int]]]:
        """(source, epoch) -> the places of its samples and their rows: as `groups`, faster for a few samples."""
        found: dict[tuple[int, int], tuple[list[int], list[int]]] = {}
        samples = zip(self.source.tolist(), self.epoch.tolist(), self.row.tolist(), strict=True)
        for place, (source, epoch, row) in enumerate(samples):
            places, rows = found.setdefault((source, epoch), ([], []))
            places.append(place)
            rows.append(row)
        return found


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
