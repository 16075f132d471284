"""Ranks that are slower than the others: every rank waits for the slowest, so that steps alone do not tell which it is.

Compared is what a rank does by itself: waiting for data, and forward passes without what they wait for other ranks.
"""

from __future__ import annotations

import platform
from statistics import median
from typing import NamedTuple

from megaxf.config_guards import Guards
from megaxf.parallel.collectives import gather_objects
from megaxf.parallel.mesh import Mesh

MOST = 3
"""Ranks that are named."""


class Slow(NamedTuple):
    """A rank and its own seconds a step."""

    rank: int
    host: str
    seconds: float


class Stragglers:
    """Means of each rank's own seconds over some steps."""

    def __init__(self, settings: Guards, mesh: Mesh) -> None:
        self._every, self._ratio, self._mesh = settings.stragglers_every, settings.straggler_ratio, mesh
        self._seconds, self._steps = 0.0, 0

    def look(self, seconds: float) -> tuple[float, list[Slow]] | None:
        """Count a step's own seconds of this rank; collective.

        Every so many steps (median of all ranks, the slowest ranks among those that are slow), the slowest first.
        """
        self._seconds, self._steps = self._seconds + seconds, self._steps + 1
        if self._mesh.world_size == 1 or self._steps != self._every:
            return None
        own = Slow(self._mesh.rank, platform.node(), self._seconds / self._steps)
        self._seconds, self._steps = 0.0, 0
        ranks = gather_objects(own, self._mesh)
        middle = median(one.seconds for one in ranks)
        slow = [one for one in ranks if one.seconds > self._ratio * middle]
        return middle, sorted(slow, key=lambda one: -one.seconds)[:MOST]


def explain_slow(step: int, middle: float, slow: list[Slow]) -> str:
    """What to say about them."""
    named = ", ".join(f"rank {one.rank} ({one.host}) {one.seconds:.3g} s" for one in slow)
    return f"up to step {step}, slow by themselves: {named} a step, where the median of all ranks is {middle:.3g} s"
