"""Faults beneath the file layer: calls of the operating system are counted, and one fails, or ends the process.

    with planted(folder, 7, enospc): save(folder, ...)      # the seventh call that concerns the folder fails
    killed(folder, 7, save, folder, ...)                    # a child process ends in it; tells whether it came so far

A write stops in its middle; a rename is stopped both before and after it is done. Of the many writes of a file the
first, second, fourth, eighth, ... count.
"""

import builtins
import errno
import io
import os
import sys
import threading
from contextlib import contextmanager

import pytest

from megaxf.checkpoint import files

KILLED = 86
CALLS = [(os, "mkdir"), (os, "rename"), (os, "unlink"), (os, "remove"), (os, "rmdir"), (io, "open"), (builtins, "open")]


class Faults:
    """Counts calls, of all threads, and acts at one of them."""

    def __init__(self, at, act):
        self.at, self.act, self.calls = at, act, []
        self._lock = threading.Lock()

    def meet(self, call, path=""):
        """A call begins; gives nothing back where it is the one."""
        with self._lock:
            self.calls.append((call, str(path)))
            due = len(self.calls) == self.at
        if due:
            self.act()


class TornStream(files.Stream):
    """A file of which the write that is hit is half done."""

    faults = None
    writes = 0

    def write(self, content):
        view = memoryview(content).cast("B")
        self.writes += 1
        if not self.writes & (self.writes - 1):
            if len(self.faults.calls) + 1 == self.faults.at:
                self._file.write(view[: view.nbytes // 2])
                self._file.flush()
            try:
                self.faults.meet("write")
            except OSError as error:
                self.failure = error
                raise
        return super().write(content)

    def sync(self):
        self.faults.meet("sync")
        super().sync()


@contextmanager
def planted(folder, at, act=lambda: None):
    """A fault at call `at`, counted from 1, of those for files within a folder; gives the Faults."""
    faults = Faults(at, act)

    def met(call):
        def meets(path, *others, **options):
            concerned = str(folder) in os.fspath(path) if isinstance(path, (str, os.PathLike)) else False
            if concerned or "dir_fd" in options:
                faults.meet(call.__name__, path)
            result = call(path, *others, **options)
            if concerned and call.__name__ == "rename":
                faults.meet("renamed", path)
            return result

        meets.__name__ = call.__name__
        return meets

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(files, "Stream", type("Torn", (TornStream,), {"faults": faults}))
        for module, name in CALLS:
            patch.setattr(module, name, met(getattr(module, name)))
        yield faults


def enospc():
    """What a full disk says."""
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def killed(folder, at, work, *args):
    """Do `work(*args)` in a child process that ends at call `at`; false where it was done before that."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            sys.stderr = io.StringIO()
            with planted(folder, at, lambda: os._exit(KILLED)):
                work(*args)
            code = 0
        finally:
            os._exit(code)
    _, status = os.waitpid(child, 0)
    code = os.waitstatus_to_exitcode(status)
    assert code in (0, KILLED), f"call {at}: the child failed with {code}"
    return code == KILLED
