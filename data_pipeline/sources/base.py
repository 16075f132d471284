"""What every kind of input offers: units, which are read alone, in any process, and give texts.

    for unit in find_units(["crawl/*.jsonl.zst"], ReadOptions(), unit_bytes=1 << 26)[0]:
        for texts in unit.read():
            ...

A unit is a piece of the input (a range of bytes of a file, some row groups, some small files), the same whoever reads
it. A record is a line, a row or a whole file; it gives a text, a fault or, where it is a blank line, nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from data_pipeline.errors import shown

BLOCK_BYTES = 8 << 20
"""Input that is handed on at a time: enough for the fast tokenizers, little beside the memory of a process."""

BYTE_ORDER_MARK = b"\xef\xbb\xbf"

NOT_UTF8 = "not valid UTF-8"
UNREADABLE = "cannot be read"
NOT_TEXT = "the text is not a string"
TOO_SHORT = "fewer than --min-characters"
TOO_LONG = "more than --max-characters"

Value = TypeVar("Value")


class Fault(NamedTuple):
    """Why a record gives no text."""

    record: int
    """As in `Texts.records`."""
    reason: str
    """The same words for the same reason, so that it can be counted."""
    detail: str = ""
    """What else is known about this record, for messages."""


class Texts(NamedTuple):
    """The documents of some neighbouring records of a unit."""

    texts: list[str]
    records: NDArray[np.int64]
    """[texts] number of each text's record in its unit, from 0, increasing."""
    faults: list[Fault]
    filtered: dict[str, int]
    """How many records the length filters left out, by reason: these are no faults."""
    size: int
    """Bytes of the input that it stands for; those of a unit's texts add up to the unit's size."""


class Unit(Protocol):
    """A piece of the input. Can be pickled; opens its file only in `read`."""

    @property
    def file(self) -> str:
        """Path, URL or title, for messages and as the origin of documents."""

    @property
    def files(self) -> tuple[str, ...]:
        """Where each record is a whole file, the file of each record; else empty, and all records are of `file`."""

    @property
    def size(self) -> int:
        """Bytes of input, 0 where nobody knows (streaming from the hub)."""

    @property
    def key(self) -> str:
        """Says which bytes it reads: changes when paths, sizes or limits do."""

    @property
    def version(self) -> str:
        """Tells contents of one size apart, as far as time of change or a store's tag do; empty where none is known.

        No part of `key`: a copy of the same data elsewhere has another time of change.
        """

    @property
    def records(self) -> int:
        """How many records it holds, known once `read` has come to its end. Blank lines count."""

    def read(self) -> Iterator[Texts]:
        """The texts in order, about 8 MB of input at a time; damage is a `Fault`. Raises DataError on a bad request."""


class File(NamedTuple):
    """A file of the input: its path or URL, its size in bytes, and its version (see `Unit.version`)."""

    path: str
    size: int
    version: str = ""


@dataclass(frozen=True)
class ReadOptions:
    """What the user may say about the input."""

    text_field: str = "text"
    """Name of a field or column, or a path into nested ones: `message.content.text`."""
    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    split: str | None = None
    config: str | None = None
    streaming: bool = False
    """Inputs are names on the Hugging Face hub, read over the network without downloading them first."""
    min_characters: int = 0
    max_characters: int | None = None


def place(unit: Unit, first: int, record: int) -> tuple[str, int | None]:
    """Path and line (or row, from 1) of a record of a unit, for `DataError`; no line where a record is a whole file.

    first: the records of the units before it in the same file.
    """
    return (shown(unit.files[record]), None) if unit.files else (shown(unit.file), first + record + 1)


def filtered(texts: Texts, options: ReadOptions) -> Texts:
    """Without the texts that are too short or too long. Blank ones are left for others to count."""
    low, high = options.min_characters, options.max_characters
    if not low and high is None:
        return texts
    lengths = np.fromiter(map(len, texts.texts), np.int64, len(texts.texts))
    short = (lengths < low) & (lengths > 0)
    long = lengths > high if high is not None else np.zeros_like(short)
    keep = np.flatnonzero(~short & ~long)
    counts = {TOO_SHORT: int(short.sum()), TOO_LONG: int(long.sum())}
    return Texts(
        [texts.texts[i] for i in keep],
        texts.records[keep],
        texts.faults,
        {reason: count for reason, count in counts.items() if count},
        texts.size,
    )


def sort_out(
    values: Sequence[Value], numbers: Sequence[int] | NDArray[np.int64], read: Callable[[Value], str], size: int
) -> Texts:
    """Texts of raw values one by one, where some are faulty: `read` gives the text or raises `Faulty`."""
    texts: list[str] = []
    records: list[int] = []
    faults: list[Fault] = []
    for value, number in zip(values, numbers, strict=True):
        try:
            texts.append(read(value))
            records.append(int(number))
        except Faulty as fault:
            faults.append(Fault(int(number), fault.reason, fault.detail))
    return Texts(texts, np.asarray(records, np.int64), faults, {}, size)


class Faulty(Exception):
    """A value that is no text, and why."""

    def __init__(self, reason: str, detail: str = ""):
        super().__init__(reason)
        self.reason, self.detail = reason, detail


def reason_of(error: Exception, damage: str) -> str:
    """Why a file cannot be read on: the operating system said so, which numbers its errors, or else by its damage."""
    return damage if getattr(error, "errno", None) is None else UNREADABLE


def damaged(record: int, reason: str, error: Exception, size: int, records: int = 1) -> Texts:
    """What stands for the rest of a unit that cannot be read on, or for so many records of it, from `record` on."""
    detail = getattr(error, "strerror", None) or str(error)
    return Texts([], np.empty(0, np.int64), [Fault(record + k, reason, detail) for k in range(records)], {}, size)
