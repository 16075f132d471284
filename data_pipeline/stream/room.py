"""The cache folder of a node, shared by its processes: what lies there, who needs it, what is dropped for new files.

    <folder>/<manifest digest>/<split>/<shard>.bin     whole files, each renamed from .part when all of it was right
    <folder>/.common/<manifest digest>/...             files beside the shards, not counted, never dropped
    <folder>/.locks/room                               held while the folder is measured, changed or announced to
    <folder>/.locks/<0 to 255>                         held while a file of a shard is fetched: its hash says which
    <folder>/.needs/<pid>-<n>                          what one reader of one process needs next, in order

Each reader keeps a lock on its .needs file for as long as it lives, so that those of dead processes are known without
a look at process numbers, which mean nothing between containers. A .part takes its full size at once: what the folder
holds is also what is promised, and the limit is kept by looking at the disk, which no kill can put out of step.

Files may be dropped while a process has them mapped: on POSIX systems the map stays whole, and the disk gets the space
back when the last map goes (`TokenDataset.need` lets go of them).
"""

from __future__ import annotations

import errno
import itertools
import os
import zlib
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

import orjson

from data_pipeline.errors import DataError
from data_pipeline.stream.locks import locked, take

IN_USE = -1
"""The place in the order of need of what is read now: never dropped."""

NEVER = 1 << 62
"""The place of what nobody has announced to need."""

PART = ".part"

_SLOTS = 256
"""Lock files for fetching: two shards seldom share one, and then only wait for each other."""

_numbers = itertools.count()


class NoRoom(Exception):
    """No file may be dropped for a new one: what is left is needed sooner, or is being fetched."""

    def __init__(self, kept: int, fetching: bool):
        super().__init__(kept, fetching)
        self.kept, self.fetching = kept, fetching


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
        self._locks, self._needs = self.folder / ".locks", self.folder / ".needs"
        try:
            self._locks.mkdir(parents=True, exist_ok=True)
            self._needs.mkdir(exist_ok=True)
            with self._closed():
                self._mine = self._needs / f"{os.getpid()}-{next(_numbers)}"
                # A left-over of another process with this number, in another container, may be alive: then its name
                # is taken, and the next number is ours.
                while (handle := take(self._mine, wait=False)) is None:
                    self._mine = self._needs / f"{os.getpid()}-{next(_numbers)}"
                self._handle = handle
        except OSError as error:
            raise DataError(f"cannot be used as a cache ({error}); choose another cache folder", folder) from None
        self._in_use: list[str] = []
        self._next: list[str] = []

    def close(self) -> None:
        """Takes back what was announced."""
        self._mine.unlink(missing_ok=True)
        os.close(self._handle)

    def announce(self, in_use: Sequence[str], next_keys: Sequence[str]) -> None:
        """Replaces what this reader uses now, and needs next in this order."""
        with self._closed():
            self._in_use, self._next = list(in_use), list(next_keys)
            try:
                self._mine.write_bytes(orjson.dumps([self._in_use, self._next]))
            except OSError:
                # A full disk: the others do not hear of it, and may drop what is then fetched again.
                os.truncate(self._mine, 0)

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
            raise NoRoom(used - sum(entries[name].size for name in chosen), bool(fetched - {key}))
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
        announced = [(self._in_use, self._next)]
        for path in self._needs.iterdir():
            if path == self._mine:
                continue
            with locked(path, wait=False) as dead:
                if dead:
                    path.unlink()
                elif data := path.read_bytes():
                    announced.append(orjson.loads(data))
        places: dict[str, int] = {}
        for in_use, following in announced:
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
