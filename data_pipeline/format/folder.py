"""A data set folder appears whole or not at all: built under `<name>.building`, renamed at the end.

A build that is killed leaves only that sibling; the next build of the same name removes it.
"""

from __future__ import annotations

import fcntl
import os
import shutil
from pathlib import Path
from types import TracebackType

from data_pipeline.errors import DataError
from data_pipeline.format.manifest import is_dataset


class Building:
    """The folder to build in, locked; `finish` gives it its name, leaving the `with` without that removes it."""

    def __init__(self, folder: str | Path, overwrite: bool = False):
        """Raises DataError as `check_output`, and when another build is at work on the same name."""
        self.folder = Path(os.path.abspath(folder))
        self.path = self.folder.with_name(self.folder.name + ".building")
        check_output(self.folder, overwrite)
        self._lock = _claim(self.path)
        self._finished = False

    def finish(self) -> None:
        """Gives the folder its name, once its manifest is written; replaces an older one wholly."""
        replace_folder(self.path, self.folder)
        self._finished = True

    def __enter__(self) -> Building:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self._finished:
            shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._lock)


def check_output(folder: Path, overwrite: bool) -> None:
    """Raises DataError when building at this place would mix with or destroy something; call it before any work."""
    if not folder.exists() or (folder.is_dir() and not any(folder.iterdir())):
        return
    if not is_dataset(folder):
        raise DataError("exists and is not a data set, so it will not be replaced; choose another --output", folder)
    if not overwrite:
        raise DataError("already holds a data set; use --overwrite to replace it, or another --output", folder)


def replace_folder(building: Path, folder: Path) -> None:
    """Gives a finished folder its name; what had it before goes at once and wholly."""
    old = folder.with_name(folder.name + ".old")
    shutil.rmtree(old, ignore_errors=True)
    if folder.exists():
        os.rename(folder, old)
    os.rename(building, folder)
    shutil.rmtree(old, ignore_errors=True)


def _claim(building: Path) -> int:
    """Makes the folder to build in and locks it; a left-over of a killed build is removed, a live one is respected."""
    building.parent.mkdir(parents=True, exist_ok=True)
    building.mkdir(exist_ok=True)
    handle = os.open(building, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(handle)
        raise DataError("another build is writing here; wait for it or choose another --output", building) from None
    for child in building.iterdir():
        shutil.rmtree(child) if child.is_dir() else child.unlink()
    return handle


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
