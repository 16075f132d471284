"""What more GPUs bring: the best layout on each number of them, its speed, days and dollars with failures."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from megaxf.plan.conventions import SECONDS_PER_DAY
from megaxf.plan.errors import PlanError
from megaxf.plan.search.failures import Failures
from megaxf.plan.search.find import Choice, search
from megaxf.plan.search.space import Task


class Point(NamedTuple):
    """One number of GPUs."""

    world_size: int
    chosen: Choice | None
    """None where no layout is allowed or fits; then `reason` says why."""
    reason: str
    failures: Failures

    @property
    def tokens_per_second(self) -> float:
        """Of all GPUs, while they train."""
        return 0.0 if self.chosen is None else float(self.chosen.step.tokens_per_second_per_gpu) * self.world_size

    def days(self, tokens: float) -> float:
        """Of the whole run, saves and failures with it."""
        work = tokens / self.tokens_per_second / SECONDS_PER_DAY
        return work * self.failures.factor(self.world_size)

    def dollars(self, tokens: float, price: float) -> float:
        """price: for an hour of a GPU."""
        return self.days(tokens) * 24 * self.world_size * price


def scale(task: Task, sizes: Sequence[int], failures: Failures) -> list[Point]:
    """The fastest layout of the same batch on each number of GPUs. Raises PlanError where none has one."""
    points = [_point(task, size, failures) for size in sizes]
    if all(point.chosen is None for point in points):
        raise PlanError(points[-1].reason)
    return points


def sizes_up_to(most: int, node_size: int) -> list[int]:
    """Numbers of GPUs: whole nodes, doubled up to the most."""
    sizes, size = [], min(node_size, most)
    while size < most:
        sizes.append(size)
        size *= 2
    return [*sizes, most]


def _point(task: Task, size: int, failures: Failures) -> Point:
    try:
        chosen = search(replace(task, world_size=size), 1).best[0]
    except PlanError as error:
        return Point(size, None, str(error), failures)
    return Point(size, chosen, "", failures)
