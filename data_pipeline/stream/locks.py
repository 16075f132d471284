"""Locks between the processes that share a cache folder: they end with their holder, however it ends."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def take(path: Path, wait: bool = True) -> int | None:
    """A locked handle to close later; None if another handle, of whatever process or thread, has the lock."""
    handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError:
        os.close(handle)
        return None
    except BaseException:
        os.close(handle)
        raise
    return handle


@contextmanager
def locked(path: Path, wait: bool = True) -> Iterator[bool]:
    """Holds the lock inside the `with`; False if it is taken and `wait` is off."""
    handle = take(path, wait)
    try:
        yield handle is not None
    finally:
        if handle is not None:
            os.close(handle)
