"""Times contenders in turn in one process, so that a machine whose speed drifts drifts for all of them."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable


def alternate(
    steps: dict[str, Callable[[], object]],
    rounds: int,
    warmup: int = 2,
    clock: Callable[[], float] = time.perf_counter,
    before: Callable[[], object] = lambda: None,
) -> dict[str, list[float]]:
    """Seconds of each contender in each round.

    steps: name -> the work of one round; every round runs all of them once, in an order that rotates.
    clock: time.process_time for the seconds of the CPU, which other work on the machine does not lengthen.
    before: done before each work, and not timed.
    """
    names = list(steps)
    for name in names:
        for _ in range(warmup):
            steps[name]()
    seconds: dict[str, list[float]] = {name: [] for name in names}
    for number in range(rounds):
        shift = number % len(names)
        for name in names[shift:] + names[:shift]:
            before()
            start = clock()
            steps[name]()
            seconds[name].append(clock() - start)
    return seconds


def median_ratio(ours: list[float], theirs: list[float]) -> float:
    """How many times faster `ours` is: the ratio of the medians."""
    return statistics.median(theirs) / statistics.median(ours)
