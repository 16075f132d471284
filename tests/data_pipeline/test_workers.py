"""Results in the order of the items, whatever the processes do."""

from __future__ import annotations

import os
import signal
import time

import pytest

from data_pipeline.errors import DataError
from data_pipeline.prepare.workers import Workers


def slow_when_odd(item: int) -> int:
    time.sleep(0.02 * (item % 2))
    return item * item


def fail_at_five(item: int) -> int:
    if item == 5:
        raise DataError("five", "input", 5)
    return item


def die(item: int) -> int:
    os.kill(os.getpid(), signal.SIGKILL)
    return item


@pytest.mark.parametrize("processes", [1, 2, 3])
def test_results_keep_the_order_of_the_items(processes):
    taken = []

    def items():
        for item in range(40):
            taken.append(item)
            yield item

    with Workers(processes) as workers:
        results = workers.map(slow_when_odd, items())
        assert next(results) == 0
        # Items are asked for as they are needed, so that the memory stays bounded.
        assert len(taken) <= 4 * processes
        assert list(results) == [item * item for item in range(1, 40)]
        assert list(workers.map(abs, [-1, -2])) == [1, 2], "they serve more than once"


def test_an_error_of_a_worker_arrives_in_its_turn():
    with pytest.raises(ValueError, match="five"), Workers(2) as workers:
        results = workers.map(fail_at_five, range(20))
        assert [next(results) for _ in range(5)] == list(range(5))
        next(results)


def test_a_killed_worker_is_named():
    with pytest.raises(DataError, match="a worker process was killed"), Workers(2) as workers:
        list(workers.map(die, range(4)))


def test_an_error_does_not_wait_for_long_work():
    before = time.monotonic()
    with pytest.raises(KeyboardInterrupt), Workers(2) as workers:
        results = workers.map(time.sleep, [0, 600, 600])
        next(results)
        raise KeyboardInterrupt
    assert time.monotonic() - before < 300
