"""The files of one split of a data set in a store, brought to a bounded cache on the node's disk when needed or before.

Files come whole. Each MiB of a .bin is compared with its hash before it is written, each other file with the hash in
the manifest; files found from an earlier run are compared when a process first uses them. Processes of a node that
share the folder share the files: one fetches, the others wait for it.
"""

from __future__ import annotations

import errno
import os
import shutil
import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext, suppress
from pathlib import Path

import numpy as np

from data_pipeline.errors import DataError
from data_pipeline.format.files import Quarantined
from data_pipeline.format.hashes import HASH_DTYPE
from data_pipeline.format.manifest import MANIFEST, ORIGINS, Manifest, Shard, parse_manifest, write_whole
from data_pipeline.stream.ahead import Ahead
from data_pipeline.stream.fetch import Expected, download, expected_blocks, expected_whole, local_fault
from data_pipeline.stream.options import CacheOptions
from data_pipeline.stream.quarantine import Quarantine
from data_pipeline.stream.room import IN_USE, NoRoom, Room
from data_pipeline.stream.store import DamageError, Store

_POLL = 0.05
"""Seconds until a process looks again whether another has finished a file, or has let go of some."""

_SURE = 2.0
"""Seconds for which all who share the cache must have been seen waiting before it is called too small."""

_FULL = {errno.ENOSPC, errno.EDQUOT}


def open_store(url: str, options: CacheOptions) -> tuple[Store, Manifest]:
    """A data set in a store and its manifest, read anew. Raises DataError when there is none."""
    store = Store(url, options.storage_options, options.retries)
    try:
        data = store.read(MANIFEST)
    except DamageError:
        raise DataError(f"is not a data set: no {MANIFEST}; is the URL right, and was all of it copied?", url) from None
    return store, parse_manifest(data, f"{store.url}/{MANIFEST}")


class CachedFiles:
    """A `ShardFiles` over a store; each process has its own.

    What a thread asked for last is not dropped before it can be mapped, so one thread at a time should read.
    """

    def __init__(self, store: Store, manifest: Manifest, split: str, options: CacheOptions):
        """Raises DataError when the folder cannot be used or is too small for the largest shard."""
        self._store, self._manifest, self._split, self._options = store, manifest, split, options
        self._shards = manifest.splits[split].shards
        # Another version of the data set has another digest: files of the two never mix.
        self._digest = manifest.digest[:32]
        self._room = Room(options.folder, options.limit_bytes)
        self._quarantine = None if options.quarantine is None else Quarantine(options.quarantine, manifest, split)
        known = self._quarantine.reasons if self._quarantine else {}
        self.out = {number for number, shard in enumerate(self._shards) if shard.name in known}
        """See `ShardFiles`."""
        self._trusted: set[str] = set()
        self._given: set[int] = set()
        self._asked: tuple[list[int], int] | None = None
        self._batch: list[int] = []
        self._next: list[int] = []
        self._latest: int | None = None
        self._ahead = Ahead(self._bring_ahead)
        if self._shards:
            largest = max(range(len(self._shards)), key=lambda number: self._shards[number].bytes)
            self._check_batch([largest])

    def path(self, shard_number: int, ending: str) -> Path:
        """See `ShardFiles`. Waits until the file is here and right; raises `Quarantined` for a shard that is out."""
        shard = self._shards[shard_number]
        covered = ending in ("bin", "xxh")
        if covered and shard_number in self.out:
            raise Quarantined("is out of this run, since its bytes in the store are damaged", self._url(shard))
        self._use(shard_number)
        if ending not in shard.file_hashes() and (made := self.place(f"{self._split}/{shard.name}.{ending}")).exists():
            return made
        waiting = nullcontext() if self._file(shard, ending).exists() else self._room.waiting()
        try:
            with waiting, self._room.fetching(self._key(shard)):
                path = self._bring(shard, ending, IN_USE)
        except DamageError as error:
            if self._quarantine is None or not covered:
                raise
            self._quarantine.add(shard, str(error))
            self.out.add(shard_number)
            raise Quarantined(f"is out of this run from now on ({error})", self._url(shard)) from None
        os.utime(path)
        return path

    def need(self, shards: Sequence[int], now: int = 1) -> list[int]:
        """See `ShardFiles`. Raises DataError if the batch, the first `now` shards, is larger than the limit."""
        asked = (list(shards), now)
        if asked == self._asked:
            return []
        batch = list(dict.fromkeys(shards[:now]))
        self._check_batch(batch)
        self._asked, self._batch, self._latest = asked, batch, None
        self._next = self._within(self._options.limit_bytes, list(dict.fromkeys(shards[now:])))
        self._announce()
        ahead = self._within(self._options.ahead_bytes, self._next)
        self._ahead.want([(number, IN_USE) for number in batch] + [(number, i) for i, number in enumerate(ahead)])
        gone = self._given - {*batch, *self._next}
        self._given -= gone
        return sorted(gone)

    def common(self, name: str) -> Path:
        """See `ShardFiles`."""
        path = self.place(name)
        expected = expected_whole(0, self._manifest.origins_xxh3_128 if name == ORIGINS else None)
        with self._room.fetching(str(path)):
            if not path.exists():
                data = self._store.read(name, fault=lambda data: expected.fault(0, data))
                try:
                    write_whole(path, data)
                except OSError as error:
                    raise DataError(f"cannot be written ({error}); check the cache folder", path) from None
        return path

    def folder(self, name: str, files: Sequence[str]) -> Path:
        """See `ShardFiles`."""
        for file in files:
            with suppress(DamageError):  # missing
                self.common(f"{name}/{file}")
        return self.place(name)

    def place(self, name: str) -> Path:
        """See `ShardFiles`. Such files are not dropped: the store may not have them."""
        path = Path(self._options.folder) / ".common" / self._digest / name
        path.parent.mkdir(parents=True, exist_ok=True)
        return path

    def sizes(self) -> Mapping[str, int] | None:
        """See `ShardFiles`."""
        return self._store.sizes(self._split)

    def close(self) -> None:
        """Stops fetching ahead, and no longer holds files for this process."""
        self._ahead.close()
        self._room.close()

    def _use(self, shard_number: int) -> None:
        """Keeps the files of a shard from being dropped before they are mapped."""
        self._given.add(shard_number)
        if shard_number != self._latest and shard_number not in self._batch:
            self._latest = shard_number
            self._announce()

    def _announce(self) -> None:
        latest = [] if self._latest is None else [self._latest]
        in_use, following = ([self._key(self._shards[i]) for i in part] for part in (self._batch + latest, self._next))
        self._room.announce(in_use, following)

    def _bring_ahead(self, shard_number: int, place: int) -> bool:
        """Fetches a shard before it is asked for; False if another process is at it. Raises NoRoom."""
        shard = self._shards[shard_number]
        with self._room.fetching(self._key(shard), wait=False) as free:
            for ending in ("len", "bin") if free else ():
                if not self._file(shard, ending).exists():
                    self._bring(shard, ending, place, wait=False)
        return free

    def _bring(self, shard: Shard, ending: str, place: int, wait: bool = True) -> Path:
        """The file, fetched unless it is here and right; only with the shard's `fetching` held."""
        path = self._file(shard, ending)
        if path.exists():
            if ending not in shard.file_hashes() or self._is_trusted(path, shard.file_size(ending)):
                return path
            if local_fault(path, self._expected(shard, ending, place, wait)) is None:
                self._trusted.add(path.name)
                return path
            path.unlink()
        self._fetch(path, self._expected(shard, ending, place, wait), place, wait)
        self._trusted.add(path.name)
        return path

    def _is_trusted(self, path: Path, size: int) -> bool:
        return path.name in self._trusted and path.stat().st_size == size

    def _expected(self, shard: Shard, ending: str, place: int, wait: bool) -> Expected:
        digest = shard.file_hashes().get(ending)
        if digest is None:  # not in the manifest, such as a pack index: what reads it checks it
            return expected_whole(self._store.size(f"{self._split}/{shard.name}.{ending}"), None)
        if ending != "bin":
            return expected_whole(shard.file_size(ending), digest)
        return expected_blocks(shard.bytes, np.fromfile(self._bring(shard, "xxh", place, wait), HASH_DTYPE))

    def _fetch(self, path: Path, expected: Expected, place: int, wait: bool) -> None:
        """Fetches a file that is not here; waits for room if told to, else raises NoRoom."""
        disk_full, hopeful = False, time.monotonic()
        while True:
            try:
                return self._try_fetch(path, expected, place, disk_full)
            except NoRoom as error:
                if not wait:
                    raise
                if error.for_now:
                    hopeful = time.monotonic()
                elif time.monotonic() > hopeful + _SURE:
                    raise DataError(self._no_room(expected.size, error.kept, disk_full), path) from None
                time.sleep(_POLL)
            except OSError as error:
                disk_full = error.errno in _FULL
                if not disk_full:
                    raise DataError(f"cannot be written ({error}); check the cache folder", path) from None

    def _try_fetch(self, path: Path, expected: Expected, place: int, disk_full: bool) -> None:
        part, whole = self._room.reserve(path, expected.size, place, disk_full), False
        try:
            download(self._store, f"{self._split}/{path.name}", part, expected, self._options.connections)
            whole = True
        finally:
            self._room.settle(part, whole)

    def _no_room(self, size: int, kept: int, disk_full: bool) -> str:
        folder = self._options.folder
        if disk_full:
            free = shutil.disk_usage(folder).free
            return (
                f"the disk of the cache folder {folder} is full: {size} bytes are needed, {free} are free, and the "
                f"{kept} bytes kept there are all in use; free space or choose a larger disk"
            )
        return (
            f"limit_bytes = {self._options.limit_bytes} of the cache folder {folder} is too small: {kept} bytes are in "
            f"use by the batches of this node's processes, and {size} more are needed; raise it to the sum or more"
        )

    def _check_batch(self, batch: Sequence[int]) -> None:
        needed = sum(self._size(self._shards[number]) for number in batch)
        if needed > self._options.limit_bytes:
            raise DataError(
                f"limit_bytes = {self._options.limit_bytes} of the cache is too small: the {len(batch)} shards that a "
                f"batch needs at once have {needed} bytes; raise it to that or more for each process of a node",
                self._options.folder,
            )

    def _within(self, limit: int, shards: list[int]) -> list[int]:
        """As many of the first shards as have no more than `limit` bytes together."""
        sizes = np.cumsum([self._size(self._shards[number]) for number in shards])
        return shards[: int(np.searchsorted(sizes, limit, side="right"))]

    def _size(self, shard: Shard) -> int:
        return sum(map(shard.file_size, shard.file_hashes()))

    def _file(self, shard: Shard, ending: str) -> Path:
        return Path(self._options.folder) / f"{self._key(shard)}.{ending}"

    def _key(self, shard: Shard) -> str:
        return f"{self._digest}/{self._split}/{shard.name}"

    def _url(self, shard: Shard) -> str:
        return f"{self._store.url}/{self._split}/{shard.name}.bin"
