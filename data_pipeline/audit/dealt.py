"""What a start deals to whom: which samples lie at its positions, and which rows of each source they are.

Positions count the samples that are read; numbers count all, skipped ones included. A source's rows are counted from
the beginning of its first epoch on, in the length that they have there: row k of a length of which an epoch has R is
the (k mod R)-th of epoch k // R in an order that is a permutation of the epoch (tests/data_pipeline/test_order_*.py).
So what must be shown is that each source's counter never goes back and never jumps.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from data_pipeline.audit.positions import Session
from data_pipeline.order.permutation import Int64
from data_pipeline.order.phases import Phase, Phases, Stretch
from data_pipeline.order.skips import Skips

Span = tuple[int, int]
"""From a sample's number to another's, the last one not included."""


class Place(NamedTuple):
    """Where a source stands."""

    row: int
    """How many rows it has given, those of skipped samples and those that changes of length cost included."""
    sequence_length: int

    @property
    def tokens(self) -> int:
        """The same in tokens: comparable where lengths differ."""
        return self.row * self.sequence_length


class Dealt:
    """The order of one start of a run, from what the run has recorded of it; needs no data."""

    def __init__(self, session: Session):
        state = session.state
        self.names = sorted(state["sources"])
        self.epoch_tokens = {name: session.rows[name] * state["longest"] for name in self.names}
        self._skips = Skips(state["skips"])
        phases = [Phase(step, batch, length, tuple(weights)) for step, _, batch, length, weights in state["phases"]]
        units = [session.rows[name] for name in self.names]
        self._stretches = Phases(phases, state["longest"], units, self._skips).stretches

    def span(self, first: int, end: int) -> Span:
        """From the number of the sample at a position to behind that of the one before another position."""
        ends = self._skips.apply(np.asarray([first, end - 1], dtype=np.int64)).tolist()
        return ends[0], ends[1] + 1

    def skipped(self, first: int, end: int) -> list[Span]:
        """What is skipped by declaration of the numbers from first to end."""
        clipped = ((max(first, begin), min(end, last + 1)) for begin, last in self._skips.ranges)
        return [(begin, stop) for begin, stop in clipped if begin < stop]

    def read(self, first: int, end: int) -> list[Span]:
        """What is not skipped."""
        edges = [first, *(edge for span in self.skipped(first, end) for edge in span), end]
        pairs = zip(edges[::2], edges[1::2], strict=True)
        return [(begin, stop) for begin, stop in pairs if begin < stop]

    def places(self, number: int) -> dict[str, Place]:
        """Where each source stands after all samples before this one."""
        # A change of length that comes right here costs nothing yet: it is part of what follows.
        stretch = [one for one in self._stretches if one.first_unskipped < max(number, 1)][-1]
        rows = (stretch.taken + _given(stretch, number)).tolist()
        return {name: Place(row, stretch.sequence_length) for name, row in zip(self.names, rows, strict=True)}

    def tokens(self, first: int, end: int) -> dict[str, int]:
        """Tokens of each source in the samples from one number to another."""
        found = np.zeros(len(self.names), dtype=np.int64)
        for stretch, begin, stop in self._pieces(first, end):
            found += (_given(stretch, stop) - _given(stretch, begin)) * stretch.sequence_length
        return dict(zip(self.names, found.tolist(), strict=True))

    def _pieces(self, first: int, end: int) -> Iterator[tuple[Stretch, int, int]]:
        begins = [stretch.first_unskipped for stretch in self._stretches]
        for stretch, stop in zip(self._stretches, [*begins[1:], end], strict=True):
            low, high = max(first, stretch.first_unskipped), min(end, stop)
            if low < high:
                yield stretch, low, high


def _given(stretch: Stretch, number: int) -> Int64:
    return np.asarray(stretch.blend.counts(number - stretch.first_unskipped), dtype=np.int64)
