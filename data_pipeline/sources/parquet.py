"""Parquet files: a row is a document, whose text is in one column. Large files are cut between their row groups."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np

from data_pipeline.sources.arrow import column_texts, find_column
from data_pipeline.sources.base import BLOCK_BYTES, File, ReadOptions, Texts, Unit, damaged, reason_of
from data_pipeline.sources.files import open_file

ENDINGS = (".parquet", ".pq")

_MOST_ROWS = 100_000
_DAMAGED = "the Parquet file is damaged"


@dataclass
class ParquetUnit:
    """Row groups [start, stop) of a file; all of them where `stop` is None."""

    file: str
    file_size: int
    size: int
    start: int
    stop: int | None
    options: ReadOptions
    version: str = ""
    records: int = field(default=0, init=False)
    files: tuple[str, ...] = field(default=(), init=False)

    @property
    def key(self) -> str:
        """The file, its size and the row groups."""
        return f"parquet {self.file} {self.file_size} {self.start} {self.stop}"

    def read(self) -> Iterator[Texts]:
        """See `base.Unit.read`."""
        import pyarrow
        import pyarrow.parquet

        self.records = done = 0
        try:
            with open_file(self.file) as raw:
                file = pyarrow.parquet.ParquetFile(raw)
                steps = find_column(file.schema_arrow, self.options.text_field, self.file)
                groups = range(self.start, file.num_row_groups if self.stop is None else self.stop)
                rows, per_batch = _extent(file.metadata, groups, ".".join(steps))
                for found, count in _batches(file, groups, ".".join(steps), per_batch):
                    # Shares of the size by rows, such that they add up to it.
                    size = self.size * (self.records + count) // max(rows, 1) - done
                    if isinstance(found, Exception):
                        yield damaged(self.records, reason_of(found, _DAMAGED), found, size, count)
                    else:
                        yield column_texts(found, steps, self.records, size, self.options)
                    self.records, done = self.records + count, done + size
        except (pyarrow.ArrowException, OSError) as error:
            yield damaged(self.records, reason_of(error, _DAMAGED), error, self.size - done)


def units(files: list[File], options: ReadOptions, unit_bytes: int) -> Iterator[Unit]:
    """A unit for each small file, which is not opened for it; neighbouring row groups of a large one."""
    for file in files:
        edges = _edges(file, unit_bytes) if file.size > unit_bytes else []
        if len(edges) <= 2:
            yield ParquetUnit(file.path, file.size, file.size, 0, None, options, file.version)
            continue
        for (start, before), (stop, behind) in pairwise(edges):
            yield ParquetUnit(file.path, file.size, behind - before, start, stop, options, file.version)


def _edges(file: File, unit_bytes: int) -> list[tuple[int, int]]:
    """Where to cut a file: (number of a row group, bytes of the file before it), from the beginning to the end.

    A damaged file has no edges: reading it will say so.
    """
    import pyarrow
    import pyarrow.parquet

    try:
        with open_file(file.path) as raw:
            metadata = pyarrow.parquet.ParquetFile(raw).metadata
    except (pyarrow.ArrowException, OSError):
        return []
    sizes = [metadata.row_group(number).total_byte_size for number in range(metadata.num_row_groups)]
    ends = np.cumsum(sizes, dtype=np.float64) * file.size / max(sum(sizes), 1)
    edges = [(0, 0)]
    for number, end in enumerate(ends, start=1):
        if end - edges[-1][1] >= unit_bytes or number == len(ends):
            edges.append((number, int(end)))
    return [*edges[:-1], (len(ends), file.size)]


def _batches(file: Any, groups: range, column: str, most: int) -> Iterator[tuple[Any, int]]:
    """Batches and their numbers of rows; for what is damaged of a row group the error, and how many rows are lost."""
    import pyarrow

    for group in groups:
        left = file.metadata.row_group(group).num_rows
        try:
            for batch in file.iter_batches(most, row_groups=[group], columns=[column]):
                left -= batch.num_rows
                yield batch, batch.num_rows
        except (pyarrow.ArrowException, OSError) as error:
            yield error, left


def _extent(metadata: Any, groups: range, column: str) -> tuple[int, int]:
    """Rows of some row groups, and how many of them hold about a block of text."""
    rows = text_bytes = 0
    for number in groups:
        group = metadata.row_group(number)
        rows += group.num_rows
        leaves = (group.column(index) for index in range(group.num_columns))
        text_bytes += sum(leaf.total_uncompressed_size for leaf in leaves if leaf.path_in_schema == column)
    return rows, max(1, min(_MOST_ROWS, BLOCK_BYTES * rows // max(text_bytes, 1)))
