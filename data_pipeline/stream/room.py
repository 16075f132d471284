"""The cache folder of a node, shared by its processes: what lies there, who needs it, what is dropped for new files.

    <folder>/<manifest digest>/<split>/<shard>.bin     whole files, each renamed from .part when all of it was right
    <folder>/.common/<manifest digest>/...             files beside the shards, not counted, never dropped
    <folder>/.locks/room                               held while the folder is measured, changed or announced to
    <folder>/.locks/<0 to 255>                         held while a file of a shard is fetched: its hash says which
    <folder>/.needs/<process>-<n>                      what one reader of one process needs next, in order

A .part takes its full size at once: what the folder holds is also what is promised, and the limit is kept by looking
at the disk, which no kill can put out of step.

Files may be dropped while a process has them mapped: on POSIX systems the map stays whole, and the disk gets the space
back when the last map goes (`TokenDataset.need` lets go of them).
"""

from __future__ import annotations

import errno
import os
import zlib
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path

from data_pipeline.errors import DataError
from data_pipeline.stream.locks import locked
from data_pipeline.stream.needs import Needs

IN_USE = -1
"""The place in the order of need of what is read now: never dropped."""

NEVER = 1 << 62
"""The place of what nobody has announced to need."""

PART = ".part"

_SLOTS = 256
"""Lock files for fetching: two shards seldom share one, and then only wait for each other."""


class NoRoom(Exception):
    """No file may be dropped for a new one: what is left is needed sooner, or is being fetched."""

    def __init__(self, kept: int, for_now: bool):
        """`kept`: bytes that stay; `for_now`: another process is at work, and will let go of files."""
        super().__init__(kept, for_now)
        self.kept, self.for_now = kept, for_now


@dataclass(slots=True)
class _Entry:
    """The files of one shard in the cache."""

    paths: list[str]
    size: int
    last_use: float
    """Modification time of the youngest file."""


class Room:
    """The folder as one reader of one process sees it. A shard's key is `<manifest digest>/<split>/<shard>`."""

    def __init__(self, folder: str | Path, limit_bytes: int):
        """Raises DataError when the folder cannot be written to."""
        self.folder, self.limit_bytes = Path(folder), limit_bytes
        self._locks = self.folder / ".locks"
        try:
            self._locks.mkdir(parents=True, exist_ok=True)
            with self._closed():
                self._needs = Needs(self.folder / ".needs")
        except OSError as error:
            raise DataError(f"cannot be used as a cache ({error}); choose another cache folder", folder) from None

    def close(self) -> None:
        """Takes back what was announced."""
        self._needs.close()

    def announce(self, in_use: Sequence[str], next_keys: Sequence[str]) -> None:
        """Replaces what this reader uses now, and needs next in this order."""
        with self._closed():
            self._needs.announce(in_use, next_keys)

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Lets the others know that this reader waits for a file inside, and lets go of none meanwhile."""
        with self._closed():
            self._needs.wait(True)
        try:
            yield
        finally:
            with self._closed():
                self._needs.wait(False)

    def fetching(self, key: str, wait: bool = True) -> AbstractContextManager[bool]:
        """Held by the one who fetches files of this shard; False inside if another does and `wait` is off."""
        return locked(self._slot(key), wait)

    def reserve(self, path: Path, size: int, place: int, disk_full: bool) -> Path:
        """Makes room for a file and returns its .part, of its full size; only with the shard's `fetching` held.

        Drops whole shards, the one needed furthest in the future first, and none that is needed at `place` or sooner.
        `disk_full`: the disk refused these bytes, so as many are dropped whatever the limit says. Raises NoRoom.
        """
        part = path.with_name(path.name + PART)
        with self._closed():
            part.unlink(missing_ok=True)
            self._drop(self._key(str(path)), size, place, disk_full)
            path.parent.mkdir(parents=True, exist_ok=True)
            with open(part, "wb") as file:
                _allocate(file.fileno(), size)
        return part

    def settle(self, part: Path, whole: bool) -> None:
        """Gives a .part its final name if it is whole, else removes it."""
        with self._closed():
            if whole:
                os.replace(part, part.with_suffix(""))
            else:
                part.unlink(missing_ok=True)

    def _drop(self, key: str, size: int, place: int, disk_full: bool) -> None:
        entries = self._entries()
        used = sum(entry.size for entry in entries.values())
        excess = max(used + size - self.limit_bytes, size if disk_full else 0)
        if excess <= 0:
            return
        places = self._places()
        fetched = {name for name, entry in entries.items() if any(path.endswith(PART) for path in entry.paths)}
        droppable = [
            name for name in entries if name != key and name not in fetched and places.get(name, NEVER) > place
        ]
        droppable.sort(key=lambda name: (-places.get(name, NEVER), entries[name].last_use))
        chosen = []
        while excess > 0 and droppable:
            chosen.append(droppable.pop(0))
            excess -= entries[chosen[-1]].size
        if excess > 0:
            kept = used - sum(entries[name].size for name in chosen)
            raise NoRoom(kept, bool(fetched - {key}) or self._needs.others_go_on())
        for name in chosen:
            for path in entries[name].paths:
                Path(path).unlink(missing_ok=True)

    def _entries(self) -> dict[str, _Entry]:
        """What lies in the folder by key, without what dead processes left unfinished."""
        entries: dict[str, _Entry] = {}
        for found in _files(str(self.folder), 2):
            key = self._key(found.path)
            if found.name.endswith(PART) and self._left_over(key):
                os.unlink(found.path)
                continue
            size, time = found.stat().st_size, found.stat().st_mtime
            if (entry := entries.get(key)) is None:
                entries[key] = _Entry([found.path], size, time)
            else:
                entry.paths.append(found.path)
                entry.size += size
                entry.last_use = max(entry.last_use, time)
        return entries

    def _left_over(self, key: str) -> bool:
        with self.fetching(key, wait=False) as free:
            return free

    def _places(self) -> dict[str, int]:
        """Where each key stands in the order of need: the soonest of all living readers."""
        places: dict[str, int] = {}
        for in_use, following in self._needs.all():
            places.update(dict.fromkeys(in_use, IN_USE))
            for place, key in enumerate(following):
                places[key] = min(place, places.get(key, NEVER))
        return places

    def _key(self, path: str) -> str:
        """`<digest>/<split>/<shard>` of one of the shard's files, finished or not."""
        return path[len(str(self.folder)) + 1 :].removesuffix(PART).rpartition(".")[0]

    def _slot(self, key: str) -> Path:
        return self._locks / str(zlib.crc32(key.encode()) % _SLOTS)

    def _closed(self) -> AbstractContextManager[bool]:
        return locked(self._locks / "room")


def _files(folder: str, depth: int) -> Iterator[os.DirEntry[str]]:
    """The files so many folders further down, past hidden folders."""
    with os.scandir(folder) as found:
        for entry in found:
            if not depth:
                yield entry
            elif entry.is_dir() and not entry.name.startswith("."):
                yield from _files(entry.path, depth - 1)


def _allocate(handle: int, size: int) -> None:
    """Takes the space on the disk; where the file system cannot, the file at least shows its full size."""
    os.ftruncate(handle, size)
    try:
        os.posix_fallocate(handle, 0, max(size, 1))
    except OSError as error:
        if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL):
            raise
    os.ftruncate(handle, size)
