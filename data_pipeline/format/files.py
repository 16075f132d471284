"""Where the files of a split lie, and whether they have the sizes that the manifest tells."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence, Set
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple, Protocol

import numpy as np

from data_pipeline.errors import DataError
from data_pipeline.format.manifest import MANIFEST, Manifest

_NAMED = 20
"""Faults that a message lists before it only counts."""

_THREADS = 16
"""A file system over a network answers many questions at once."""


class ShardFiles(Protocol):
    """The files of one split, as a reader asks for them."""

    @property
    def out(self) -> Set[int]:
        """The shards whose tokens the run goes without, because they are damaged: those that were found up to now."""

    def path(self, shard_number: int, ending: str) -> Path:
        """A local file, present and of the size the manifest tells; ending: bin, len, xxh, org, or pack-2048.

        Raises DataError, and Quarantined when the run goes without the tokens of the shard.
        """

    def need(self, shards: Sequence[int], now: int = 1) -> Sequence[int]:
        """These shards are needed in this order, the first `now` together; gives those whose maps to let go of."""

    def sizes(self) -> Mapping[str, int] | None:
        """Bytes by name of the files of the split, from one listing; None where the store has no listings."""

    def common(self, name: str) -> Path:
        """A local copy of a file of the data set's own folder, such as origins.json. Raises DataError."""

    def folder(self, name: str, files: Sequence[str]) -> Path:
        """A local copy of a folder in it, with those of the named files that it has."""

    def place(self, name: str) -> Path:
        """Where a file lies that is made from the data set on this machine, such as train/pack-2048.json."""


class Quarantined(DataError):
    """The tokens of this shard are damaged, and the run goes without them."""


class LocalFiles:
    """The files of a split in a folder on a disk or a shared file system."""

    out: Set[int] = frozenset()
    """None: what lies here is compared with its hashes by `megaxf data verify`."""

    def __init__(self, folder: str | Path, split: str, manifest: Manifest):
        self._folder, self._split = Path(folder), split
        self._shards = manifest.splits[split].shards

    def path(self, shard_number: int, ending: str) -> Path:
        """See `ShardFiles`. Asks the file system each time."""
        shard = self._shards[shard_number]
        path = self._folder / self._split / f"{shard.name}.{ending}"
        size = shard.file_size(ending) if ending in shard.file_hashes() else None
        if fault := _fault(_size(path), size):
            raise DataError(fault, path)
        return path

    def need(self, shards: Sequence[int], now: int = 1) -> Sequence[int]:
        """Nothing to do."""
        return ()

    def sizes(self) -> Mapping[str, int]:
        """See `ShardFiles`."""
        return list_sizes(self._folder / self._split)

    def place(self, name: str) -> Path:
        """See `ShardFiles`."""
        return self._folder / name

    def folder(self, name: str, files: Sequence[str]) -> Path:
        """See `ShardFiles`."""
        return self._folder / name

    def common(self, name: str) -> Path:
        """See `ShardFiles`."""
        path = self._folder / name
        if fault := _fault(_size(path), None):
            raise DataError(fault, path)
        return path


class Fault(NamedTuple):
    """One thing that is wrong with a data set."""

    path: str
    message: str


def raise_faults(faults: Sequence[Fault], named: int | None = _NAMED) -> None:
    """Raises one DataError that names all faults, up to a number that can be read; None names them all."""
    if not faults:
        return
    named = named or len(faults)
    more = len(faults) - named
    rest = [f"{fault.path}: {fault.message}" for fault in faults[1:named]]
    last = [f"and {more:,} more of {len(faults):,} faults"] if more > 0 else []
    raise DataError("\n".join([faults[0].message, *rest, *last]), faults[0].path)


def check_sizes(folder: str | Path, manifest: Manifest, split: str, found: Mapping[str, int] | None = None) -> None:
    """Raises DataError if files of a split are missing or cut, or if the manifest contradicts itself.

    `found`: bytes by file name in the folder of the split, from the listing of a store; by default the disk is asked.
    """
    raise_faults(size_faults(folder, manifest, split, found))


def size_faults(
    folder: str | Path, manifest: Manifest, split: str, found: Mapping[str, int] | None = None
) -> list[Fault]:
    """What `check_sizes` raises, as a list."""
    faults = list(_contradictions(folder, manifest, split))
    if faults:
        return faults
    found = list_sizes(Path(folder) / split) if found is None else found
    for shard in manifest.splits[split].shards:
        for ending in shard.file_hashes():
            name = f"{shard.name}.{ending}"
            if fault := _fault(found.get(name), shard.file_size(ending)):
                faults.append(Fault(f"{folder}/{split}/{name}", fault))
    return faults


def list_sizes(folder: Path) -> dict[str, int]:
    """Bytes by name of the files in a folder, asked for by several threads; nothing where there is no folder."""
    try:
        with os.scandir(folder) as entries:
            files = [entry for entry in entries if entry.is_file()]
    except FileNotFoundError:
        return {}
    size = len(files) // _THREADS + 1
    groups = [files[start : start + size] for start in range(0, len(files), size)]
    with ThreadPoolExecutor(_THREADS) as pool:
        sizes = pool.map(lambda group: [entry.stat().st_size for entry in group], groups)
        return dict(zip((entry.name for entry in files), (size for group in sizes for size in group), strict=True))


def _contradictions(folder: str | Path, manifest: Manifest, split: str) -> Iterable[Fault]:
    path = f"{folder}/{MANIFEST}"
    record = manifest.splits[split]
    itemsize = np.dtype(manifest.dtype).itemsize
    for unit in ("tokens", "documents"):
        total = sum(getattr(shard, unit) for shard in record.shards)
        if total != getattr(record, unit):
            yield Fault(path, f"{split} has {getattr(record, unit)} {unit}, its shards {total}")
    for shard in record.shards:
        if shard.bytes != shard.tokens * itemsize:
            yield Fault(path, f"{shard.name}: {shard.tokens} tokens in {shard.bytes} bytes")


def _size(path: Path) -> int | None:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return None


def _fault(found: int | None, expected: int | None) -> str | None:
    """What is wrong with the size of a file; found None: missing, expected None: any size will do."""
    if found is None:
        listed = "" if expected is None else ", though the manifest lists it"
        return f"is missing{listed}; build or copy the data set again"
    if expected is not None and found != expected:
        return f"has {found} bytes, the manifest says {expected}; it was cut or changed: build or copy it again"
    return None
