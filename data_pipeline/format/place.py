"""Where a data set lies, for commands that look at all of it: a folder here, or in a store (data_pipeline.stream)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol

from data_pipeline.format.files import list_sizes
from data_pipeline.format.manifest import Manifest, read_manifest


class Place(Protocol):
    """A data set that is looked at file by file."""

    name: str
    """As the user wrote it; faults begin with it."""

    def manifest(self) -> Manifest:
        """Raises DataError as `read_manifest`."""

    def sizes(self, split: str) -> Mapping[str, int]:
        """Bytes by name of the files of a split."""

    @contextmanager
    def files(self, folder: str, names: Sequence[str]) -> Iterator[Path]:
        """A local folder with those of the named files of `folder` ("" for the data set's own) that are there."""


class Folder:
    """A shard folder on this machine."""

    def __init__(self, path: str | Path):
        self.name, self._path = str(path), Path(path)

    def manifest(self) -> Manifest:
        """See `Place`."""
        return read_manifest(self._path)

    def sizes(self, split: str) -> Mapping[str, int]:
        """See `Place`."""
        return list_sizes(self._path / split)

    @contextmanager
    def files(self, folder: str, names: Sequence[str]) -> Iterator[Path]:
        """See `Place`."""
        yield self._path / folder
