"""What would make a planned run faster, each tried by a search of its own."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

from megaxf.plan.budget.plan import Plan
from megaxf.plan.conventions import SECONDS_PER_DAY
from megaxf.plan.errors import PlanError
from megaxf.plan.search.find import GIB, describe, search

WORTH = 0.01
"""Share of the time from which on it is told."""


class Help(NamedTuple):
    """One change."""

    change: str
    saved: float
    """Share of the days that it saves."""
    more: str


def helps(found: Plan) -> list[Help]:
    """Those that save time, the most first."""
    changes = [*_memory(found), *_compile(found), *_twice(found)]
    return sorted((change for change in changes if change.saved > WORTH), key=lambda change: -change.saved)


def _memory(found: Plan) -> Iterator[Help]:
    """GPUs of the same speed without a limit on memory."""
    task = found.found.task
    free = search(replace(task, memory=float("inf")), 1).best[0]
    saved = 1 - float(free.step.seconds) / float(found.first.step.seconds)
    yield Help("more memory", saved, f"{free.need / GIB:.0f} GiB for {describe(free.candidate, task.world_size)}")


def _compile(found: Plan) -> Iterator[Help]:
    if not found.request.compile:
        best = search(replace(found.found.task, compile=True), 1).best[0]
        saved = 1 - float(best.step.seconds) / float(found.first.step.seconds)
        yield Help("--compile", saved, "torch.compile fuses norms and activations")


def _twice(found: Plan) -> Iterator[Help]:
    """Twice the GPUs, with the same batch."""
    means, size = found.means, 2 * found.means.world_size
    try:
        best = search(replace(found.found.task, world_size=size), 1).best[0]
    except PlanError:
        return
    rate = float(best.step.tokens_per_second_per_gpu) * size
    days = found.training.tokens / rate * means.failures.factor(size) / SECONDS_PER_DAY
    cost = days * size / (found.days * means.world_size) - 1
    yield Help("twice the GPUs", 1 - days / found.days, f"for {cost:+.1%} GPU-hours")
