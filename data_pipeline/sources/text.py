"""Plain text and source code: a file is a document. Many small files make one unit."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field

import xxhash

from data_pipeline.sources.base import (
    BLOCK_BYTES,
    BYTE_ORDER_MARK,
    NOT_UTF8,
    UNREADABLE,
    Faulty,
    File,
    ReadOptions,
    Texts,
    Unit,
    filtered,
    sort_out,
)
from data_pipeline.sources.files import open_file

# What a folder is searched for unless --include says otherwise.
# fmt: off
ENDINGS = (
    ".txt", ".md", ".rst", ".tex", ".py", ".pyi", ".c", ".h", ".cc", ".cpp", ".cxx", ".hpp", ".cu", ".cuh", ".java",
    ".kt", ".scala", ".js", ".mjs", ".jsx", ".ts", ".tsx", ".go", ".rs", ".rb", ".php", ".pl", ".sh", ".bash",
    ".lua", ".r", ".jl", ".m", ".swift", ".cs", ".fs", ".hs", ".ml", ".clj", ".ex", ".erl", ".sql", ".html", ".css",
    ".xml", ".yaml", ".yml", ".toml", ".ini", ".cfg",
)
# fmt: on


@dataclass
class TextUnit:
    """Neighbouring files; record k is the whole of file k."""

    parts: tuple[File, ...]
    options: ReadOptions
    records: int = field(default=0, init=False)

    @property
    def file(self) -> str:
        """The first file."""
        return self.parts[0].path

    @property
    def files(self) -> tuple[str, ...]:
        """The file of each record."""
        return tuple(part.path for part in self.parts)

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(part.size for part in self.parts)

    @property
    def key(self) -> str:
        """The first file, and a digest of all names and sizes."""
        names = "\0".join(f"{part.path}\0{part.size}" for part in self.parts)
        return f"text {self.file} {xxhash.xxh3_128_hexdigest(os.fsencode(names))}"

    @property
    def version(self) -> str:
        """A digest of the versions of all files."""
        return xxhash.xxh3_128_hexdigest("\0".join(part.version for part in self.parts).encode())

    def read(self) -> Iterator[Texts]:
        """See `base.Unit.read`."""
        self.records = 0
        for group in groups(list(self.parts), BLOCK_BYTES):
            numbers = range(self.records, self.records + len(group))
            self.records += len(group)
            size = sum(part.size for part in group)
            yield filtered(sort_out([part.path for part in group], numbers, _whole, size), self.options)


def units(files: list[File], options: ReadOptions, unit_bytes: int) -> Iterator[Unit]:
    """Groups of neighbouring files of about `unit_bytes`."""
    for group in groups(files, unit_bytes):
        yield TextUnit(tuple(group), options)


def groups(files: list[File], size: int) -> Iterator[list[File]]:
    """Neighbouring files that together have about a size in bytes; a larger one is alone."""
    group: list[File] = []
    total = 0
    for file in files:
        if group and total + file.size > size:
            yield group
            group, total = [], 0
        group.append(file)
        total += file.size
    if group:
        yield group


def _whole(path: str) -> str:
    """The text of a file; line ends stay as they are, a leading byte order mark is no text. Raises Faulty."""
    try:
        with open_file(path) as stream:
            data = stream.read().removeprefix(BYTE_ORDER_MARK)
        return data.decode()
    except OSError as error:
        raise Faulty(UNREADABLE, error.strerror or str(error)) from None
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise Faulty(NOT_UTF8, f"line {line}") from None
