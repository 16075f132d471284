"""A column of an Arrow table to texts, as Parquet files and Hugging Face data sets hold it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from data_pipeline.errors import DataError
from data_pipeline.sources.base import NOT_TEXT, NOT_UTF8, Faulty, ReadOptions, Texts, filtered, sort_out

_TEXT = ("string", "large_string", "string_view", "binary", "large_binary", "binary_view")
"""Kinds of values that are taken for text, by their names in pyarrow.types."""


def find_column(schema: Any, name: str, place: str) -> list[str]:
    """The names that lead to a text column: one, or a path into nested ones. Raises DataError."""
    import pyarrow.types as types

    steps, kind = _steps(schema, name)
    if not steps:
        raise DataError(f"has no column {name!r}; --text-field takes one of {schema.names}", place)
    values = kind.value_type if types.is_dictionary(kind) else kind
    if not any(getattr(types, f"is_{name}")(values) for name in _TEXT):
        raise DataError(f"column {name!r} holds {kind}, not text; see --text-field", place)
    return steps


def column_texts(table: Any, steps: Sequence[str], first: int, size: int, options: ReadOptions) -> Texts:
    """The texts of rows that are numbered from `first`. table: a pyarrow Table or RecordBatch."""
    import pyarrow
    import pyarrow.compute

    column = table.column(steps[0])
    if len(steps) > 1:
        column = pyarrow.compute.struct_field(column, steps[1:])
    column = _plain(column)
    try:
        # Casting bytes, and validating what says that it is text, check the UTF-8.
        text = column.cast(pyarrow.large_string())
        text.validate(full=True)
        values = text.to_pylist() if not text.null_count else None
    except pyarrow.ArrowInvalid:
        values = None
    if values is not None:
        return filtered(Texts(values, np.arange(first, first + len(values)), [], {}, size), options)
    raw = column.cast(pyarrow.large_binary()).to_pylist()
    return filtered(sort_out(raw, range(first, first + len(raw)), _decoded, size), options)


def _plain(column: Any) -> Any:
    """A column of values where it has numbers into a dictionary; nothing is checked."""
    import pyarrow.types as types

    return column.cast(column.type.value_type) if types.is_dictionary(column.type) else column


def _steps(fields: Any, name: str) -> tuple[list[str], Any]:
    """Names and type of a field: by its own name, else by a path, whose names may hold dots themselves."""
    parts = name.split(".")
    for cut in range(len(parts), 0, -1):
        head, rest = ".".join(parts[:cut]), ".".join(parts[cut:])
        if fields.get_field_index(head) < 0:
            continue
        kind = fields.field(head).type
        if not rest:
            return [head], kind
        inner, found = _steps(kind, rest) if hasattr(kind, "get_field_index") else ([], None)
        if inner:
            return [head, *inner], found
    return [], None


def _decoded(value: bytes | None) -> str:
    if value is None:
        raise Faulty(NOT_TEXT)
    try:
        return value.decode()
    except UnicodeDecodeError:
        raise Faulty(NOT_UTF8) from None
