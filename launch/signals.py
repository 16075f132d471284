"""Signals that ask a run to stop while nothing listens to them yet, or no longer: they are held, and never kill.

A program that holds them inherits this to what it starts, so that no moment is left open: not the start of Python,
the imports and the meeting of the ranks, nor the last moments of a process. The trainer's `Signals` listens between.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import TracebackType

import psutil

HELD = frozenset({signal.SIGTERM, signal.SIGUSR1})
STOPPED = 75
"""The exit code of what was asked to stop; `megaxf.train.guards.Outcome` without torch."""


@contextmanager
def held() -> Iterator[None]:
    """While it lasts, these signals wait. What the process blocked before does not change by it."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, HELD)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def asked() -> bool:
    """Whether one of these signals waits."""
    return bool(signal.sigpending() & HELD)


@contextmanager
def leaving() -> Iterator[None]:
    """While it lasts, SIGTERM ends the process as an error would, so that what is half written is removed."""
    before = signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


class HandOn:
    """While it lasts, these signals and Ctrl-C go to the children of this process, once there are any.

    Before `begin` there is nothing to be saved, and they end this process with code 75. They stay blocked afterwards.
    """

    CAUGHT = HELD | {signal.SIGINT}

    def __init__(self) -> None:
        self._began, self._ended = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name="signals", daemon=True)

    def __enter__(self) -> HandOn:
        signal.pthread_sigmask(signal.SIG_BLOCK, self.CAUGHT)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        signal.pthread_kill(self._thread.ident or 0, signal.SIGUSR1)
        self._thread.join()

    def begin(self) -> None:
        """From now on there are children, or will be."""
        self._began.set()

    def _run(self) -> None:
        while True:
            number = signal.sigwait(self.CAUGHT)
            if not self._began.is_set() and not self._ended.is_set():
                os._exit(STOPPED)
            while not (children := psutil.Process().children()) and not self._ended.is_set():
                time.sleep(0.1)
            if self._ended.is_set():
                return
            for child in children:
                with suppress(psutil.NoSuchProcess):
                    child.send_signal(number)
