"""JSON lines, plain or compressed: a line is a document, whose text is in one field.

Lines end at LF and nowhere else: text may hold any other character that somewhere counts as a line end.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import orjson

from data_pipeline.sources.base import BLOCK_BYTES, NOT_TEXT, NOT_UTF8, Block, Fault, File, Part, ReadOptions, Record

_PLAIN = (".jsonl", ".ndjson", ".json")
_COMPRESSED = {".gz": "gzip", ".zst": "zstd"}
ENDINGS = (*_PLAIN, *(plain + packed for plain in _PLAIN for packed in _COMPRESSED))


@dataclass(frozen=True)
class Lines:
    """Whole lines of a file."""

    path: str
    first_line: int
    data: bytes
    field: str
    size: int

    def records(self) -> Iterator[Record]:
        """A record for each line that is not blank."""
        for number, line in enumerate(self.data.split(b"\n"), start=self.first_line):
            if line and not line.isspace():
                yield Record(f"{self.path}:{number}", *_text_or_fault(line, self.field))


@dataclass(frozen=True)
class JsonlFile:
    """A part: one file."""

    name: str
    size: int
    field: str

    def blocks(self) -> Iterator[Block]:
        """Blocks of whole lines, however long they are."""
        import pyarrow

        raw = stream = pyarrow.OSFile(self.name)
        for ending, codec in _COMPRESSED.items():
            if self.name.endswith(ending):
                stream = pyarrow.CompressedInputStream(raw, codec)
        line, before = 1, 0
        try:
            for data in _cut_at_line_ends(stream):
                data = data.removeprefix(b"\xef\xbb\xbf") if line == 1 else data
                yield Lines(self.name, line, data, self.field, raw.tell() - before)
                before = raw.tell()
                line += data.count(b"\n")
        except OSError as error:
            yield Fault(f"{self.name}:{line}", f"the compressed file is damaged ({error})", self.size - before)
        finally:
            raw.close()


def parts(files: list[File], options: ReadOptions) -> Iterator[Part]:
    """A part for each file."""
    return (JsonlFile(file.path, file.size, options.text_field) for file in files)


def _cut_at_line_ends(stream: Any) -> Iterator[bytes]:
    """The stream in pieces that end with LF. What is left of a line is kept in a list: a long line costs no copying."""
    pieces: list[bytes] = []
    while chunk := stream.read(BLOCK_BYTES):
        end = chunk.rfind(b"\n") + 1
        if end:
            yield b"".join([*pieces, chunk[:end]])
            pieces = []
        pieces.append(chunk[end:])
    if rest := b"".join(pieces):
        yield rest


def _text_or_fault(line: bytes, field: str) -> tuple[str, str]:
    try:
        value = orjson.loads(line)
    except orjson.JSONDecodeError as error:
        message = str(error)
        if "not valid UTF-8" in message:
            return "", NOT_UTF8
        return "", "half a surrogate pair, which is no character" if "surrogate" in message else "not valid JSON"
    if not isinstance(value, dict) or field not in value:
        return "", f"no field {field!r}"
    text = value[field]
    return (text, "") if isinstance(text, str) else ("", NOT_TEXT)
