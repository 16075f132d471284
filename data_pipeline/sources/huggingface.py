"""Hugging Face `datasets`: a folder made by `save_to_disk`, or a name on the hub. A row is a document."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from data_pipeline.errors import DataError
from data_pipeline.sources.base import BLOCK_BYTES, Block, Part, ReadOptions, Rows

_PARTS = 64


def is_saved(path: Path) -> bool:
    """Whether a folder was made by `save_to_disk`."""
    return (path / "dataset_dict.json").is_file() or (path / "state.json").is_file()


def saved_parts(path: Path, options: ReadOptions) -> list[Part]:
    """The parts of a folder made by `save_to_disk`."""
    import datasets

    try:
        found = datasets.load_from_disk(str(path))
    except Exception as error:  # damage shows in many ways
        raise DataError(f"cannot be read as a saved Hugging Face dataset ({error})", path) from None
    return _parts(found, str(path), options)


def hub_parts(name: str, options: ReadOptions) -> list[Part]:
    """The parts of a data set of the hub, which is downloaded or taken from the cache."""
    import datasets

    try:
        found = datasets.load_dataset(name, options.config)
    except Exception as error:  # no network, no such name, a gated set: the library's own words say it best
        raise DataError(
            f"is no local file or folder, and no Hugging Face data set by that name could be loaded ({error})", name
        ) from None
    return _parts(found, name, options)


@dataclass(frozen=True)
class DatasetRows:
    """A part: the rows from `start` to `stop` of a data set."""

    name: str
    size: int
    dataset: Any
    field: str
    start: int
    stop: int

    def blocks(self) -> Iterator[Block]:
        """Blocks of rows, of about a MiB."""
        step = max(1, BLOCK_BYTES * (self.stop - self.start) // max(self.size, 1))
        done = 0
        for first in range(self.start, self.stop, step):
            stop = min(first + step, self.stop)
            size = self.size * (stop - self.start) // (self.stop - self.start) - done
            yield Rows(self.name, first, list(self.dataset[first:stop][self.field]), size)
            done += size


def _parts(found: Any, name: str, options: ReadOptions) -> list[Part]:
    if isinstance(found, dict):
        split = options.split or ("train" if "train" in found else next(iter(found)))
        if split not in found:
            raise DataError(f"has no split {split!r}; --split takes one of {sorted(found)}", name)
        found = found[split]
    if options.text_field not in found.column_names:
        raise DataError(f"has no column {options.text_field!r}; --text-field takes one of {found.column_names}", name)
    found = found.select_columns([options.text_field])
    rows, size = len(found), int(found.data.nbytes)
    edges = [rows * i // _PARTS for i in range(_PARTS + 1)]
    return [
        DatasetRows(name, size * (stop - start) // rows, found, options.text_field, start, stop)
        for start, stop in pairwise(edges)
        if stop > start
    ]
