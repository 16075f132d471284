"""Parquet files: a row is a document, whose text is in one column."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from data_pipeline.errors import DataError
from data_pipeline.sources.base import BLOCK_BYTES, Block, Fault, File, Part, ReadOptions, Rows

ENDINGS = (".parquet", ".pq")


@dataclass(frozen=True)
class ParquetFile:
    """A part: one file."""

    name: str
    size: int
    field: str

    def blocks(self) -> Iterator[Block]:
        """Blocks of rows, of about a MiB of text."""
        import pyarrow
        import pyarrow.parquet

        row = done = 0
        try:
            with pyarrow.parquet.ParquetFile(self.name) as file:
                self._check_column(file.schema_arrow)
                total = max(file.metadata.num_rows, 1)
                for batch in file.iter_batches(batch_size=self._rows_in_block(file.metadata), columns=[self.field]):
                    # As bytes: one string that is not UTF-8 must not spoil its neighbours.
                    values = batch.column(0).cast(pyarrow.large_binary()).to_pylist()
                    size = self.size * (row + len(values)) // total - done
                    yield Rows(self.name, row, values, size)
                    row, done = row + len(values), done + size
        except (pyarrow.ArrowException, OSError) as error:
            yield Fault(f"{self.name}:{row + 1}", f"the Parquet file is damaged ({error})", self.size - done)

    def _check_column(self, schema: Any) -> None:
        import pyarrow.types as types

        if self.field not in schema.names:
            raise DataError(f"has no column {self.field!r}; --text-field takes one of {schema.names}", self.name)
        kind = schema.field(self.field).type
        if not any(test(kind) for test in (types.is_string, types.is_large_string, types.is_binary)):
            raise DataError(f"column {self.field!r} holds {kind}, not text; see --text-field", self.name)

    def _rows_in_block(self, metadata: Any) -> int:
        group = metadata.row_group(0) if metadata.num_row_groups else None
        if group is None or not group.num_rows:
            return 1000
        columns = (group.column(index) for index in range(group.num_columns))
        text_bytes = sum(column.total_uncompressed_size for column in columns if column.path_in_schema == self.field)
        return max(1, min(10_000, BLOCK_BYTES * group.num_rows // max(text_bytes, 1)))


def parts(files: list[File], options: ReadOptions) -> Iterator[Part]:
    """A part for each file."""
    return (ParquetFile(file.path, file.size, options.text_field) for file in files)
