"""How long this rank's own work has taken, without what it has waited for others."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

import torch


class Stopwatch:
    """Adds up the seconds within `running`, on the clock of the device that works: nothing waits for it."""

    def __init__(self) -> None:
        self._seconds = 0.0
        self._events: list[tuple[torch.cuda.Event, torch.cuda.Event]] = []

    @contextmanager
    def running(self, device: torch.device) -> Iterator[None]:
        """Count what is done within, unless it is evaluation."""
        if not torch.is_grad_enabled():
            yield
        elif device.type == "cuda":
            events = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            events[0].record(torch.cuda.current_stream(device))
            yield
            events[1].record(torch.cuda.current_stream(device))
            self._events.append(events)
        else:
            started = time.perf_counter()
            yield
            self._seconds += time.perf_counter() - started

    def read(self) -> float:
        """Seconds since the last reading; to be called where the device has done its work, as after a step."""
        seconds = self._seconds + sum(start.elapsed_time(end) for start, end in self._events) / 1000
        self._seconds = 0.0
        self._events.clear()
        return seconds
