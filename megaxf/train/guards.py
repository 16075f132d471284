"""What ends a run before its time: signals, faults on one rank, numbers that are not finite. All ranks do the same."""

from __future__ import annotations

import math
import signal
import threading
import time
from collections.abc import Callable
from enum import IntEnum
from types import FrameType, TracebackType
from typing import TypeVar

import torch

from megaxf.engine import StepResult
from megaxf.parallel.collectives import gather_objects, sum_numbers
from megaxf.parallel.mesh import Axis, Mesh

Result = TypeVar("Result")


class Outcome(IntEnum):
    """How a run ended; the exit code of the command."""

    DONE = 0
    """Trained to the last step, or was so already."""
    DIVERGED = 3
    """Loss or gradient were not finite; nothing was saved after them."""
    STOPPED = 75
    """Asked to stop, and saved: starting again continues (sysexits' EX_TEMPFAIL)."""


class Signals:
    """While it lasts, SIGTERM, SIGUSR1 and Ctrl-C are requests to stop after the step; a second Ctrl-C stops at once.

    with Signals() as signals:
        ... signals.asked()
    """

    CAUGHT = (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT)
    ECHO_SECONDS = 1.0
    """A launcher passes on the Ctrl-C that the terminal has sent already: one this soon after another is the same."""

    def __init__(self) -> None:
        self.name: str | None = None
        """The first signal that came."""
        self._interrupted = math.inf
        self._before: dict[int, Callable[[int, FrameType | None], object] | int | None] = {}

    def asked(self) -> bool:
        """Whether a signal has come."""
        return self.name is not None

    def __enter__(self) -> Signals:
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.signal(number, self._receive) for number in self.CAUGHT}
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _receive(self, number: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        if number == signal.SIGINT:
            if now - self._interrupted > self.ECHO_SECONDS:
                raise KeyboardInterrupt
            self._interrupted = min(self._interrupted, now)
        self.name = self.name or signal.Signals(number).name


def agreed(mesh: Mesh, work: Callable[[], Result]) -> Result:
    """What `work` gives on this rank; collective. A fault of the user's on any rank is raised on all: the first one.

    `work` itself must not be collective, and its errors must pickle.
    """
    result, fault = attempt(work)
    raise_first(mesh, fault)
    assert result is not None or fault is None
    return result  # type: ignore[return-value]


def attempt(work: Callable[[], Result]) -> tuple[Result | None, ValueError | None]:
    """(what `work` gives, the fault of the user's that it met); other errors pass through."""
    try:
        return work(), None
    except ValueError as error:
        if not getattr(error, "user_fault", False):
            raise
        return None, error


def raise_first(mesh: Mesh, fault: ValueError | None) -> None:
    """Raise the fault of the lowest rank that has one, on every rank; collective."""
    for found in gather_objects(fault, mesh):
        if found is not None:
            raise found


def any_rank(mesh: Mesh, device: torch.device, *flags: bool) -> list[bool]:
    """Each flag, true where it is on any rank: one tiny message; collective."""
    everyone = Axis("world", mesh.rank, tuple(range(mesh.world_size)), mesh.group)
    return [count > 0 for count in sum_numbers([float(flag) for flag in flags], everyone, device)]


def is_sound(result: StepResult) -> bool:
    """Whether a run goes on after a step. Its numbers are sums over all ranks, so all ranks see the same."""
    numbers = (result.loss, result.z_loss) if result.skipped else (result.loss, result.z_loss, result.grad_norm)
    return all(map(math.isfinite, numbers))
