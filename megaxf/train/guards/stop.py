"""What asks a run to end before its time: signals, a file STOP, the end of its slot, a lost launcher."""

from __future__ import annotations

import math
import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType, TracebackType

import psutil

from megaxf.config_errors import ConfigError

STOP = "STOP"
"""The file's name, in the run folder."""
LAUNCHERS = ("torchrun", "mpirun", "srun")
"""Where one of these is killed, its ranks remain, and nobody waits for them."""
FIRST_SAVE = 0.1
"""Share of the slot that is kept for a save as long as none was measured."""
MARGIN = 1.25
"""Of the measured time of a save."""


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
        self._blocked: set[int | signal.Signals] = set()

    def asked(self) -> bool:
        """Whether a signal has come."""
        return self.name is not None

    def __enter__(self) -> Signals:
        if threading.current_thread() is threading.main_thread():
            self._before = {number: signal.signal(number, self._receive) for number in self.CAUGHT}
            # What came during the start is received now.
            self._blocked = signal.pthread_sigmask(signal.SIG_UNBLOCK, self.CAUGHT) & set(self.CAUGHT)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        signal.pthread_sigmask(signal.SIG_BLOCK, self._blocked)
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _receive(self, number: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        if number == signal.SIGINT:
            if now - self._interrupted > self.ECHO_SECONDS:
                raise KeyboardInterrupt
            self._interrupted = min(self._interrupted, now)
        self.name = self.name or signal.Signals(number).name


class Requests:
    """All that asks this run to stop, put together; `reason` says what did first.

    A file STOP stays where it is, and a start is refused as long as it is there: were it removed when it is obeyed, a
    requeue or the next job of a chain would take up the run that somebody wanted to end.
    """

    def __init__(
        self, asked: Callable[[], bool], folder: Path | None, minutes: float | None, launched: bool = False
    ) -> None:
        """asked: by a signal. folder: of the run, on the one rank that looks for the file. minutes: of the slot, from
        the start of this process. launched: by a program that may die and leave its ranks behind, as torchrun does."""
        self._asked, self._file = asked, None if folder is None else folder / STOP
        self._parent = os.getppid() if launched else None
        self._end = math.inf if minutes is None else psutil.Process().create_time() + 60 * minutes
        self._first_save = 0.0 if minutes is None else FIRST_SAVE * 60 * minutes
        self.reason = ""

    def refuse_start(self) -> None:
        """Raises ConfigError while the file is there."""
        if self._file is not None and self._file.exists():
            raise ConfigError(
                str(self._file),
                ["is there, so the run is to stay stopped; remove the file to go on with the run"],
            )

    def stop(self, step_seconds: float, save_seconds: float) -> bool:
        """Whether this rank wants to stop now.

        step_seconds: of a step. save_seconds: of a save; 0 where none was measured.
        """
        save = MARGIN * (save_seconds or self._first_save)
        if self._asked():
            self.reason = "a signal"
        elif self._parent is not None and os.getppid() != self._parent:
            self.reason = "the launcher is gone"
        elif time.time() + step_seconds + save > self._end:
            self.reason = f"train.exit_after_minutes, with {save:.1f} s left for saving"
        elif self._file is not None and self._file.exists():
            self.reason = f"{self._file}; remove it to go on"
        return bool(self.reason)
