"""Where the time of a training step goes on this rank: parts of it, each without the parts that lie within it.

    with clock.part("forward", device):         # on the clock of the device that works: nothing waits for it
        with clock.part(COMMUNICATION, device): # is not counted as forward
            ...
    clock.read()                                # {"forward": 0.31, "communication": 0.04}

On a GPU a part is what lies between two events of the stream that computes. A message counts for as long as that stream
(on a CPU: the program) stands still for it, so that one hidden behind computation costs what it costs: nothing.
A profiler shows the parts by their names.
"""

from __future__ import annotations

import time
from collections import defaultdict, deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch.profiler import record_function

FORWARD, BACKWARD, OPTIMIZER, COMMUNICATION = "forward", "backward", "optimizer", "communication"

MOST_OPEN = 4096
"""Parts on a GPU that are kept while nobody reads the clock."""


class Span(NamedTuple):
    """A part that has been gone through."""

    name: str
    outer: str | None
    """The part that it lies within."""
    start: float | torch.cuda.Event
    end: float | torch.cuda.Event

    def seconds(self) -> float:
        """Its length."""
        if isinstance(self.start, float) or isinstance(self.end, float):
            return float(self.end) - float(self.start)  # type: ignore[arg-type]
        return self.start.elapsed_time(self.end) / 1000


class Clock:
    """See the head of this module. Parts of one step follow or enclose one another, on one thread at a time."""

    def __init__(self) -> None:
        self._seconds: dict[str, float] = defaultdict(float)
        self._open: deque[Span] = deque()
        """What the GPU may not have gone through yet."""
        self._part: str | None = None

    @contextmanager
    def part(self, name: str, device: torch.device | None = None) -> Iterator[None]:
        """Count what is done within as `name`. device: that does it; None for what the program itself waits for."""
        outer, self._part = self._part, name
        start = _now(device)
        try:
            with record_function(name):
                yield
        finally:
            self._part = outer
            self._count(Span(name, outer, start, _now(device)))

    def read(self) -> dict[str, float]:
        """Seconds of each part since the last reading; to be called where the device has done its work."""
        while self._open:
            self._add(self._open.popleft())
        seconds = dict(self._seconds)
        self.clear()
        return seconds

    def clear(self) -> None:
        """Forget what has been counted."""
        self._seconds.clear()
        self._open.clear()

    def _count(self, span: Span) -> None:
        if isinstance(span.end, float):
            self._add(span)
            return
        self._open.append(span)
        while len(self._open) > MOST_OPEN and self._open[0].end.query():  # type: ignore[union-attr]
            self._add(self._open.popleft())

    def _add(self, span: Span) -> None:
        took = span.seconds()
        self._seconds[span.name] += took
        if span.outer is not None:
            self._seconds[span.outer] -= took


def _now(device: torch.device | None) -> float | torch.cuda.Event:
    if device is None or device.type != "cuda":
        return time.perf_counter()
    event = torch.cuda.Event(enable_timing=True)
    event.record(torch.cuda.current_stream(device))
    return event
