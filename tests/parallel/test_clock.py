"""The clock counts each moment once, for the innermost part."""

import pytest

from megaxf.parallel import clock as module
from megaxf.parallel.clock import Clock


class Event:
    """A moment on a GPU, known once it has been reached."""

    reached = 0.0

    def __init__(self, moment):
        self.moment = moment

    def query(self):
        return self.moment <= self.reached

    def elapsed_time(self, end):
        assert end.query(), "read before the device was there"
        return 1000 * (end.moment - self.moment)


@pytest.fixture(params=[float, Event])
def moments(request, monkeypatch):
    """A list of moments that the clock is given in turn, of the host or of a GPU."""
    coming = []
    monkeypatch.setattr(module, "_now", lambda device: request.param(coming.pop(0)))
    monkeypatch.setattr(Event, "reached", 1e9)
    return coming


def test_what_lies_within_is_not_counted_twice(moments):
    clock = Clock()
    moments += [0.0, 1.0, 3.0, 3.5, 4.5, 10.0]
    with clock.part("forward"):
        with clock.part("communication"):
            pass
        with clock.part("communication"):
            pass
    assert clock.read() == {"forward": 7.0, "communication": 3.0}
    assert clock.read() == {}


def test_parts_after_one_another_add_up_and_can_be_forgotten(moments):
    clock = Clock()
    moments += [0.0, 1.0, 5.0, 7.0, 9.0, 10.0]
    for name in ("data", "forward"):
        with clock.part(name):
            pass
    clock.clear()
    with clock.part("forward"):
        pass
    assert clock.read() == {"forward": 1.0}


def test_an_error_within_leaves_the_part(moments):
    clock = Clock()
    moments += [0.0, 1.0, 2.0, 4.0]
    with pytest.raises(ValueError), clock.part("forward"):
        raise ValueError
    with clock.part("backward"):
        pass
    assert clock.read() == {"forward": 1.0, "backward": 2.0}


def test_a_clock_that_nobody_reads_keeps_few_events(monkeypatch):
    moment = iter(range(10**6))
    monkeypatch.setattr(module, "_now", lambda device: Event(float(next(moment))))
    monkeypatch.setattr(module, "MOST_OPEN", 8)
    monkeypatch.setattr(Event, "reached", 1e9)
    clock = Clock()
    for _ in range(100):
        with clock.part("forward"):
            pass
    assert len(clock._open) <= 9
    assert clock.read() == {"forward": 100.0}
