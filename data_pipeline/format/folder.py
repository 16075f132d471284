"""A data set folder appears whole or not at all: built under `<name>.building`, renamed at the end.

A build that is killed leaves only that sibling; the next build of the same name removes it.
"""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
from collections.abc import Collection, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import TracebackType

from data_pipeline.errors import DataError
from data_pipeline.format.manifest import is_dataset

LOCK = "lock"
"""The file in a folder to build in that every builder holds."""

_NO_LOCKS = (errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS, errno.EINVAL)
"""How a file system says that it knows no locks: then who starts two builds of one output is on his own."""


class Building:
    """The folder to build in, locked; `finish` gives it its name, leaving the `with` without that removes it."""

    def __init__(self, folder: str | Path, overwrite: bool = False):
        """Raises DataError as `check_output`, and when another build is at work on the same name."""
        self.folder = Path(os.path.abspath(folder))
        self.path = self.folder.with_name(self.folder.name + ".building")
        check_output(self.folder, overwrite)
        self._held = ExitStack()
        self._claim()
        self._finished = False

    def finish(self) -> None:
        """Gives the folder its name, once its manifest is written; replaces an older one wholly."""
        (self.path / LOCK).unlink()
        replace_folder(self.path, self.folder)
        self._finished = True

    def __enter__(self) -> Building:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._finished:
            shutil.rmtree(self.path, ignore_errors=True)
        self._held.close()

    def _claim(self) -> None:
        """Makes the folder and locks it; a left-over of a killed build is removed, a live one is respected."""
        self.path.mkdir(parents=True, exist_ok=True)
        if not self._held.enter_context(locked(self.path / LOCK, fcntl.LOCK_EX)):
            self._held.close()
            raise busy(self.path)
        clear_folder(self.path, kept=(LOCK,))


def check_output(folder: Path, overwrite: bool) -> None:
    """Raises DataError when building at this place would mix with or destroy something; call it before any work."""
    if not folder.exists() or (folder.is_dir() and not any(folder.iterdir())):
        return
    if not is_dataset(folder):
        raise DataError("exists and is not a data set, so it will not be replaced; choose another --output", folder)
    if not overwrite:
        raise DataError("already holds a data set; use --overwrite to replace it, or another --output", folder)


def names_of(folder: str | Path) -> frozenset[str]:
    """The folders that building a data set makes, by their real paths: its own, that to build in, and an older one."""
    name = Path(os.path.abspath(folder))
    beside = os.path.realpath(name.parent)
    return frozenset(os.path.join(beside, name.name + ending) for ending in ("", ".building", ".old"))


def replace_folder(building: Path, folder: Path) -> None:
    """Gives a finished folder its name; what had it before goes at once and wholly."""
    old = folder.with_name(folder.name + ".old")
    shutil.rmtree(old, ignore_errors=True)
    if folder.exists():
        os.rename(folder, old)
    os.rename(building, folder)
    shutil.rmtree(old, ignore_errors=True)


def busy(building: Path) -> DataError:
    """What to say when the folder to build in is locked."""
    return DataError("another build is writing here; wait for it or choose another --output", building)


def clear_folder(folder: Path, kept: Collection[str]) -> None:
    """Removes all but some of what is in a folder."""
    for child in folder.iterdir():
        if child.name not in kept:
            shutil.rmtree(child) if child.is_dir() else child.unlink()


@contextmanager
def locked(path: Path, kind: int) -> Iterator[bool]:
    """Holds a lock of this kind on a file; false when it cannot be had now. It ends with the process."""
    # A file opened for writing: over NFS no other can be locked.
    handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
    try:
        yield _lock(handle, kind)
    finally:
        os.close(handle)


def _lock(handle: int, kind: int) -> bool:
    try:
        fcntl.flock(handle, kind | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        return error.errno in _NO_LOCKS
    return True


def link_file(source: Path, target: Path, copy: bool = False) -> None:
    """A second name for a file that is never changed, or a copy where the file system has no such names."""
    if not copy:
        try:
            return os.link(source, target)
        except OSError:
            pass
    with open(source, "rb") as read, open(target, "xb") as write:
        shutil.copyfileobj(read, write, 1 << 24)
        write.flush()
        os.fsync(write.fileno())
