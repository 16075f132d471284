"""A data set in a store, looked at as a whole: each of its files is here for as long as it takes to check it."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from data_pipeline.format.manifest import MANIFEST, Manifest, parse_manifest
from data_pipeline.format.place import Folder, Place
from data_pipeline.stream.store import DamageError, Retries, Store, is_url

_THREADS = 16
_PIECE = 1 << 26
"""Bytes asked for at a time."""


class StoreFolder:
    """See `Place`."""

    def __init__(self, url: str, options: Mapping[str, Any] | None = None, retries: Retries | None = None):
        self._store = Store(url, options, retries)
        self.name = self._store.url

    def manifest(self) -> Manifest:
        """See `Place`."""
        return parse_manifest(self._store.read(MANIFEST), f"{self.name}/{MANIFEST}")

    def sizes(self, split: str) -> Mapping[str, int]:
        """See `Place`. Where a store has no listings it is asked for each file of the manifest."""
        found = self._store.sizes(split)
        if found is None:
            shards = self.manifest().splits[split].shards
            names = [f"{shard.name}.{ending}" for shard in shards for ending in shard.file_hashes()]
            with ThreadPoolExecutor(_THREADS) as pool:
                sizes = pool.map(lambda name: self._size(f"{split}/{name}"), names)
                found = {name: size for name, size in zip(names, sizes, strict=True) if size is not None}
        return found

    @contextmanager
    def files(self, folder: str, names: Sequence[str]) -> Iterator[Path]:
        """Copies, which go with the end of the block: as many bytes on the disk as one shard has."""
        with tempfile.TemporaryDirectory(prefix="megaxf-verify-") as here:
            for name in names:
                self._fetch(f"{folder}/{name}".lstrip("/"), Path(here) / name)
            yield Path(here)

    def _size(self, name: str) -> int | None:
        try:
            return self._store.size(name)
        except DamageError:
            return None

    def _fetch(self, name: str, to: Path) -> None:
        """A copy of a file; none where the store has no such file."""
        size = self._size(name)
        if size is None:
            return
        with to.open("wb") as file:
            for start in range(0, size, _PIECE):
                file.write(self._store.read(name, start, min(start + _PIECE, size)))


def open_place(path: str | Path, options: Mapping[str, Any] | None = None) -> Place:
    """The data set at a path or URL."""
    return StoreFolder(str(path), options) if is_url(path) else Folder(path)
