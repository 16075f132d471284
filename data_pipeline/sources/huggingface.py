"""Hugging Face `datasets`: a folder made by `save_to_disk`, or a name on the hub. A row is a document."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from data_pipeline.errors import DataError
from data_pipeline.sources.arrow import column_texts, find_column
from data_pipeline.sources.base import BLOCK_BYTES, ReadOptions, Texts, Unit

_STREAM_ROWS = 1000
"""Rows taken at a time from the hub, where nobody knows how long they are."""


def is_saved(path: Path) -> bool:
    """Whether a folder was made by `save_to_disk`."""
    return (path / "dataset_dict.json").is_file() or (path / "state.json").is_file()


@dataclass
class RowsUnit:
    """Rows [start, stop) of a data set."""

    file: str
    size: int
    dataset_size: int
    start: int
    stop: int
    options: ReadOptions
    version: str
    """The library's own fingerprint of the data set."""
    records: int = field(default=0, init=False)
    files: tuple[str, ...] = field(default=(), init=False)

    @property
    def key(self) -> str:
        """The data set, its size and the rows."""
        return f"datasets {self.file} {self.options.split} {self.dataset_size} {self.start} {self.stop}"

    def read(self) -> Iterator[Texts]:
        """See `base.Unit.read`."""
        dataset, steps = _opened(self.file, self.options)
        rows = self.stop - self.start
        step = max(1, BLOCK_BYTES * rows // max(self.size, 1))
        self.records = done = 0
        while self.records < rows:
            stop = min(self.records + step, rows)
            size = self.size * stop // rows - done
            table = dataset[self.start + self.records : self.start + stop]
            yield column_texts(table, steps, self.records, size, self.options)
            self.records, done = stop, done + size


@dataclass
class StreamUnit:
    """One of the files that the hub keeps a data set in, read over the network."""

    file: str
    shard: int
    shards: int
    options: ReadOptions
    version: str = field(default="", init=False)
    size: int = field(default=0, init=False)
    records: int = field(default=0, init=False)
    files: tuple[str, ...] = field(default=(), init=False)

    @property
    def key(self) -> str:
        """The data set, and which of its files."""
        return f"stream {self.file} {self.options.config} {self.options.split} {self.shard} {self.shards}"

    def read(self) -> Iterator[Texts]:
        """See `base.Unit.read`."""
        streamed = _streamed(self.file, self.options).shard(num_shards=self.shards, index=self.shard)
        self.records = 0
        for table in streamed.with_format("arrow").iter(_STREAM_ROWS):
            steps = find_column(table.schema, self.options.text_field, self.file)
            yield column_texts(table, steps, self.records, 0, self.options)
            self.records += table.num_rows


def dataset_units(name: str, options: ReadOptions, unit_bytes: int) -> list[Unit]:
    """Ranges of rows of a folder made by `save_to_disk`, or of a data set of the hub, downloaded if need be."""
    dataset, _ = _opened(name, options)
    # That of the columns that were selected follows from that of the whole in the same way each time.
    version = str(dataset._fingerprint)
    rows, size = len(dataset), int(dataset.data.nbytes)
    count = min(max(1, round(size / unit_bytes)), max(rows, 1))
    edges = [rows * i // count for i in range(count + 1)]
    sizes = [size * edge // max(rows, 1) for edge in edges]
    return [
        RowsUnit(name, sizes[i + 1] - sizes[i], size, edges[i], edges[i + 1], options, version)
        for i in range(count)
        if edges[i + 1] > edges[i]
    ]


def streamed_units(name: str, options: ReadOptions) -> list[Unit]:
    """A unit for each file that the hub keeps a data set in. How large these are is not known."""
    shards = _streamed(name, options).num_shards
    return [StreamUnit(name, shard, shards, options) for shard in range(shards)]


@lru_cache(maxsize=1)
def _opened(name: str, options: ReadOptions) -> tuple[Any, list[str]]:
    """The text column of a data set, as Arrow tables, and the names that lead to the text in it."""
    import datasets

    if is_saved(Path(name)):
        try:
            found = datasets.load_from_disk(name)
        except Exception as error:  # damage shows in many ways
            raise DataError(f"cannot be read as a saved Hugging Face dataset ({error})", name) from None
    else:
        found = _loaded(name, options)
    if isinstance(found, dict):
        found = found[_split(found, name, options)]
    steps = find_column(found.features.arrow_schema, options.text_field, name)
    return found.select_columns([steps[0]]).with_format("arrow"), steps


@lru_cache(maxsize=1)
def _streamed(name: str, options: ReadOptions) -> Any:
    found = _loaded(name, options, streaming=True)
    return found[_split(found, name, options)]


def _loaded(name: str, options: ReadOptions, **how: bool) -> Any:
    """Every split of a data set of the hub."""
    import datasets

    try:
        return datasets.load_dataset(name, options.config, **how)
    except Exception as error:  # no network, no such name, a gated set: the library's own words say it best
        raise DataError(
            f"is no local file or folder, and no Hugging Face data set by that name could be loaded ({error})", name
        ) from None


def _split(found: Any, name: str, options: ReadOptions) -> str:
    split = options.split or ("train" if "train" in found else next(iter(found)))
    if split not in found:
        raise DataError(f"has no split {split!r}; --split takes one of {sorted(found)}", name)
    return str(split)
