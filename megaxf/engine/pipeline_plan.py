"""Interleaved 1F1B (arXiv 2104.04473, section 2.2): when each stage computes what, and when messages pass.

Stage r of p holds parts r and p + r of 2p. Micro-batches go in groups of p, first through all first parts, then through
all second ones. Every stage makes the plan of all, in which a forward pass takes 1 and a backward pass 2; a message
passes as soon as neither side is within a pass. So both sides list it at the same time of one plan, and no two stages
can wait for each other.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple


class Step(NamedTuple):
    """A pass of one micro-batch through one part."""

    backward: bool
    part: int
    batch: int

    def taker(self, stages: int) -> Step | None:
        """The pass that takes the result of this one; the last backward pass has none."""
        if not self.backward and self.part == 2 * stages - 1:
            return self._replace(backward=True)
        part = self.part - 1 if self.backward else self.part + 1
        return self._replace(part=part) if part >= 0 else None


class Plan(NamedTuple):
    """Times of one training step, on all stages."""

    starts: dict[Step, int]
    arrivals: dict[Step, int]
    """When the result of a pass reaches the one that takes it."""


def interleaved_order(stage: int, stages: int, micro_batches: int) -> list[Step]:
    """A stage's passes: some forward, then one forward and one backward in turn, then the other backward ones."""
    groups = range(0, micro_batches, stages)
    turns = [(second, group + index) for group in groups for second in (0, 1) for index in range(stages)]
    forward = [Step(False, stage + second * stages, batch) for second, batch in turns]
    backward = [Step(True, stage + (1 - second) * stages, batch) for second, batch in turns]
    ahead = min(3 * stages - 2 * stage - 2, len(forward))
    pairs = [step for pair in zip(forward[ahead:], backward, strict=False) for step in pair]
    return [*forward[:ahead], *pairs, *backward[len(forward) - ahead :]]


@lru_cache(maxsize=8)
def interleaved_plan(stages: int, micro_batches: int) -> Plan:
    """The plan for a number of micro-batches that is a multiple of the stages; each pass as early as may be."""
    orders = [interleaved_order(stage, stages, micro_batches)[::-1] for stage in range(stages)]
    free = [0] * stages
    plan = Plan({}, {})
    ready = {Step(False, 0, batch) for batch in range(micro_batches)}
    under_way: dict[Step, Step] = {}
    time = 0
    while any(orders):
        quiet = [stage for stage in range(stages) if free[stage] <= time]
        for step, taker in list(under_way.items()):
            if step.part % stages in quiet and taker.part % stages in quiet:
                plan.arrivals[step] = time
                ready.add(under_way.pop(step))
        for stage in quiet:
            if orders[stage] and orders[stage][-1] in ready:
                step = orders[stage].pop()
                plan.starts[step] = time
                free[stage] = time + 1 + step.backward
                if (next_one := step.taker(stages)) is not None:
                    under_way[step] = next_one
        time += 1
    return plan
