"""What every kind of input offers: parts, which are cut into blocks, which hold records.

A part is a piece of the input that can be read alone (a file, some rows). Its blocks, of about a MiB, are made one
after another in the main process; the records of a block are read in whichever process encodes them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple, Protocol

BLOCK_BYTES = 1 << 20

NOT_UTF8 = "not valid UTF-8"
NOT_TEXT = "the text is not a string"


class Record(NamedTuple):
    """A document, or the reason why there is none."""

    place: str
    """`path:line`, or `path` for a whole file; lines and rows count from 1."""
    text: str
    fault: str = ""


class Block(Protocol):
    """Some records; small enough to be sent to another process."""

    @property
    def size(self) -> int:
        """Bytes of the input that it stands for, in the same measure as `Part.size`."""

    def records(self) -> Iterator[Record]:
        """The records in order."""


class Part(Protocol):
    """A piece of the input that can be read alone."""

    @property
    def name(self) -> str:
        """Its path or title."""

    @property
    def size(self) -> int:
        """Bytes to read, for progress and for taking samples."""

    def blocks(self) -> Iterator[Block]:
        """The blocks in order; a part that turns out to be damaged ends with a `Fault`."""


class File(NamedTuple):
    """A file of the input: where it is, and its size in bytes."""

    path: str
    size: int


@dataclass(frozen=True)
class ReadOptions:
    """What the user may say about the input."""

    text_field: str = "text"
    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    split: str | None = None
    config: str | None = None


@dataclass(frozen=True)
class Fault:
    """A block in the place of what could not be read."""

    place: str
    reason: str
    size: int = 0

    def records(self) -> Iterator[Record]:
        """The one fault."""
        yield Record(self.place, "", self.reason)


@dataclass(frozen=True)
class Rows:
    """Values of a column, in the order of the table; `first` counts from 0."""

    name: str
    first: int
    values: list[str | bytes | None]
    size: int

    def records(self) -> Iterator[Record]:
        """A record for each row; bytes are taken as UTF-8."""
        for index, value in enumerate(self.values, start=self.first + 1):
            place = f"{self.name}:{index}"
            if isinstance(value, bytes):
                try:
                    value = value.decode()
                except UnicodeDecodeError:
                    yield Record(place, "", NOT_UTF8)
                    continue
            yield Record(place, value) if isinstance(value, str) else Record(place, "", NOT_TEXT)
