"""JSON lines, plain or compressed: a line is a document, whose text is in one field.

Lines end at LF and nowhere else: text may hold any other character that somewhere counts as a line end. A plain file is
cut into ranges of bytes, and a line belongs to the range in which it begins; a compressed one is read in one go.
"""

from __future__ import annotations

import gzip
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any, BinaryIO

import numpy as np
import orjson

from data_pipeline.sources.base import (
    BLOCK_BYTES,
    BYTE_ORDER_MARK,
    NOT_TEXT,
    NOT_UTF8,
    UNREADABLE,
    Faulty,
    File,
    ReadOptions,
    Texts,
    Unit,
    damaged,
    filtered,
    reason_of,
    sort_out,
)
from data_pipeline.sources.files import open_file

_PLAIN = (".jsonl", ".ndjson", ".json")
_COMPRESSED = {".gz": "gzip", ".zst": "zstd"}
ENDINGS = (*_PLAIN, *(plain + packed for plain in _PLAIN for packed in _COMPRESSED))

_SURROGATE = "half a surrogate pair, which is no character"
NOT_JSON = "not valid JSON"
_DAMAGED = "the compressed file is damaged: this line and everything after it are lost"
_DAMAGE = (OSError, EOFError, zlib.error)
_MISSING = object()
_PIECE_BYTES = 1 << 14
"""Unpacked at a time: what a damage may take with it of the text before it."""
_TAIL_BYTES = 1 << 16
"""Read at a time to find the first line of a range, and behind its end the end of the last one."""


@dataclass
class JsonlUnit:
    """The lines of a file that begin in [start, stop), counted in bytes as they lie on disk."""

    file: str
    file_size: int
    start: int
    stop: int
    options: ReadOptions
    version: str = ""
    records: int = field(default=0, init=False)
    files: tuple[str, ...] = field(default=(), init=False)

    @property
    def size(self) -> int:
        """Bytes of the range."""
        return self.stop - self.start

    @property
    def key(self) -> str:
        """The file, its size and the range."""
        return f"jsonl {self.file} {self.file_size} {self.start} {self.stop}"

    def read(self) -> Iterator[Texts]:
        """See `base.Unit.read`."""
        self.records, told = 0, 0
        try:
            with open_file(self.file) as raw:
                for data in self._lines(raw):
                    size = min(max(raw.tell() - self.start, told), self.size) - told
                    told += size
                    yield self._texts(data, size)
        except _DAMAGE as error:
            reason = reason_of(error, _DAMAGED) if codec_of(self.file) else UNREADABLE
            yield damaged(self.records, reason, error, self.size - told)
            return
        if told < self.size:
            yield Texts([], np.empty(0, np.int64), [], {}, self.size - told)

    def _lines(self, raw: BinaryIO) -> Iterator[bytes]:
        """Whole lines, in blocks."""
        codec = codec_of(self.file)
        if codec is None:
            return _lines_of_range(raw, self.start, self.stop)
        if codec == "gzip":  # the standard library's allows zeros at the end, as gzip does
            return _cut_at_line_ends(_Unpacked(gzip.GzipFile(fileobj=raw).read1))
        import pyarrow

        return _cut_at_line_ends(_Unpacked(pyarrow.CompressedInputStream(raw, codec).read))

    def _texts(self, data: bytes, size: int) -> Texts:
        """The texts of whole lines."""
        first = self.records
        if first == 0 and self.start == 0:
            data = data.removeprefix(BYTE_ORDER_MARK)
        lines = data.removesuffix(b"\n").split(b"\n")
        self.records += len(lines)
        name = self.options.text_field
        try:
            texts = [orjson.loads(line)[name] for line in lines]
        except (orjson.JSONDecodeError, KeyError, TypeError, IndexError):
            texts = [None]
        if all(type(text) is str for text in texts):
            result = Texts(texts, np.arange(first, self.records), [], {}, size)
        else:
            full = [index for index, line in enumerate(lines) if line and not line.isspace()]
            numbers = first + np.asarray(full, np.int64)
            result = sort_out([lines[i] for i in full], numbers, partial(_text, name=name), size)
        return filtered(result, self.options)


class _Unpacked:
    """A compressed stream that gives all that lies before a damage, and raises only then."""

    def __init__(self, read: Callable[[int], bytes]):
        self._read = read
        self._error: Exception | None = None

    def read(self, size: int) -> bytes:
        """So many bytes, fewer before the end or a damage. Raises what the damage has raised."""
        pieces: list[bytes] = []
        while size > 0 and self._error is None:
            try:
                pieces.append(self._read(min(size, _PIECE_BYTES)))
            except _DAMAGE as error:
                self._error = error
                break
            if not pieces[-1]:
                break
            size -= len(pieces[-1])
        if self._error and not pieces:
            raise self._error
        return b"".join(pieces)


def units(files: list[File], options: ReadOptions, unit_bytes: int) -> Iterator[Unit]:
    """Ranges of about `unit_bytes` of each plain file; each compressed file whole."""
    for file in files:
        step = unit_bytes if codec_of(file.path) is None else max(file.size, 1)
        for start in range(0, max(file.size, 1), step):
            yield JsonlUnit(file.path, file.size, start, min(start + step, file.size), options, file.version)


def codec_of(path: str) -> str | None:
    """Name of the compression that a file's ending tells."""
    return next((codec for ending, codec in _COMPRESSED.items() if path.lower().endswith(ending)), None)


def _lines_of_range(raw: BinaryIO, start: int, stop: int) -> Iterator[bytes]:
    """The lines that begin in [start, stop): the last one may end behind it."""
    position = start
    if start:
        # A line begins at `start` if the byte before it is an LF, else behind the first LF from there on.
        position = start - 1
        raw.seek(position)
        while (found := (chunk := raw.read(_TAIL_BYTES)).find(b"\n")) < 0:
            position += len(chunk)
            if not chunk or position >= stop:
                return
        position += found + 1
        raw.seek(position)
    if position < stop:
        yield from _cut_at_line_ends(raw, stop - position)


def _cut_at_line_ends(stream: Any, limit: int | None = None) -> Iterator[bytes]:
    """The stream in pieces that end with LF, up to the end of the last line that begins before `limit` bytes.

    What is left of a line is kept in a list: a long line costs no copying.
    """
    pieces: list[bytes] = []
    position = 0
    while chunk := stream.read(BLOCK_BYTES if limit is None else min(BLOCK_BYTES, max(limit - position, _TAIL_BYTES))):
        # The line that holds the byte before the limit is the last one.
        last = -1 if limit is None else chunk.find(b"\n", max(limit - 1 - position, 0))
        end = (last if last >= 0 else chunk.rfind(b"\n")) + 1
        if end:
            yield b"".join([*pieces, chunk[:end]])
            pieces = []
        if last >= 0:
            return
        pieces.append(chunk[end:])
        position += len(chunk)
    if rest := b"".join(pieces):
        yield rest


def _text(line: bytes, name: str) -> str:
    """The text of one line; raises Faulty."""
    try:
        value = orjson.loads(line)
    except orjson.JSONDecodeError as error:
        message = str(error)
        if "not valid UTF-8" in message:
            raise Faulty(NOT_UTF8) from None
        raise Faulty(_SURROGATE if "surrogate" in message else NOT_JSON) from None
    text = _pick(value, name)
    if text is _MISSING:
        raise Faulty(f"no field {name!r}")
    if not isinstance(text, str):
        raise Faulty(NOT_TEXT)
    return text


def _pick(value: Any, name: str) -> Any:
    """The field of an object by its name, else by a path into nested ones, whose names may hold dots themselves."""
    if not isinstance(value, dict):
        return _MISSING
    if name in value:
        return value[name]
    parts = name.split(".")
    for cut in range(len(parts) - 1, 0, -1):
        found = _pick(value.get(".".join(parts[:cut])), ".".join(parts[cut:]))
        if found is not _MISSING:
            return found
    return _MISSING
