"""Which documents go where, once all units are encoded: duplicates, splits, and where shards begin and end.

Takes a pass over 40 bytes a document, in all processes of the leader, and keeps some numbers a unit and a shard:
10^10 documents of 60 TB are 400 GB to read and some 120,000 units and 100,000 shards to keep. See `duplicates` for
what --deduplicate takes on top.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import count as count_from
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import orjson
import xxhash
from numpy.typing import NDArray

from data_pipeline.format.manifest import write_whole
from data_pipeline.format.writer import shard_name
from data_pipeline.prepare.documents import hash_bytes_of, in_split
from data_pipeline.prepare.duplicates import read_marks
from data_pipeline.prepare.options import PrepareOptions
from data_pipeline.prepare.plan import Plan
from data_pipeline.prepare.units import UnitRecord, Units
from data_pipeline.prepare.workers import Workers


class Cut(NamedTuple):
    """A shard: the documents of its split between two places, which are (unit, document of the split in the unit).

    Shuffled documents are as those of one unit, and numbered over all splits: (0, place).
    """

    split: str
    name: str
    start: tuple[int, int]
    stop: tuple[int, int]


class UnitStart(NamedTuple):
    """What came before a unit."""

    records: int
    """Records of the same file."""
    documents: int
    """Documents of all units, duplicates counted."""


class SplitCount(NamedTuple):
    """What a unit holds of a split."""

    documents: int
    tokens: int
    text_bytes: int
    longest: int


@dataclass(frozen=True)
class Decision:
    """All that assembling and finishing need besides the units."""

    cuts: list[Cut]
    starts: list[UnitStart]
    """[units]"""
    counts: list[dict[str, SplitCount]]
    """[units] by split."""
    digests: list[str]
    """[sources] xxh3_128 of the hashes of the documents that stay, in order."""

    def write(self, path: Path) -> None:
        """In one move."""
        write_whole(path, orjson.dumps([self.cuts, self.starts, self.counts, self.digests], default=tuple))

    @staticmethod
    def read(path: Path) -> Decision:
        """As written."""
        cuts, starts, counts, digests = orjson.loads(path.read_bytes())
        return Decision(
            [Cut(split, name, tuple(start), tuple(stop)) for split, name, start, stop in cuts],
            [UnitStart(*start) for start in starts],
            [{split: SplitCount(*count) for split, count in unit.items()} for unit in counts],
            digests,
        )


@dataclass(frozen=True)
class Chooser:
    """Tells which documents of a unit belong to a split; small, since it travels with every job."""

    units: Units
    duplicates: Path | None
    validation_fraction: float

    def chosen(self, number: int, first_document: int, split: str) -> NDArray[np.bool_]:
        """[documents] those of a unit that belong to the split and are no duplicates."""
        documents = self.units.documents(number)
        chosen = in_split(documents, split, self.validation_fraction)
        if self.duplicates:
            chosen &= ~read_marks(self.duplicates, first_document, len(documents))
        return chosen


def unit_starts(plan: Plan, records: Sequence[UnitRecord]) -> list[UnitStart]:
    """What came before each unit."""
    starts = []
    in_file = documents = 0
    for number, record in enumerate(records):
        if number and plan.first_files[number] != plan.first_files[number - 1]:
            in_file = 0
        starts.append(UnitStart(in_file, documents))
        in_file += record.records
        documents += record.documents
    return starts


def decide(
    plan: Plan, starts: list[UnitStart], chooser: Chooser, options: PrepareOptions, workers: Workers
) -> Decision:
    """The decision for all units, whose duplicates are marked."""
    splits = options.splits
    counts: list[dict[str, SplitCount]] = []
    digests = [xxhash.xxh3_128() for _ in plan.sources]
    jobs = [(number, start.documents) for number, start in enumerate(starts)]
    for owner, (count, hashes) in zip(plan.owners, workers.map(partial(_count, chooser, splits), jobs), strict=True):
        counts.append(count)
        digests[owner].update(hashes)

    def lengths(split: str, number: int) -> NDArray[Any]:
        chosen = chooser.chosen(number, starts[number].documents, split)
        return chooser.units.documents(number)["length"][chosen]

    cuts: list[Cut] = []
    first_place = 0
    for split in splits:
        tokens = [count[split].tokens for count in counts]
        if options.keep_order:
            cuts += cut_shards(split, tokens, partial(lengths, split), options.shard_tokens)
        else:
            documents = sum(count[split].documents for count in counts)
            cuts += cut_shuffled(split, documents, sum(tokens), first_place, options.shard_tokens)
            first_place += documents
    return Decision(cuts, starts, counts, [digest.hexdigest() for digest in digests])


def cut_shards(
    split: str, tokens: Iterable[int], lengths: Callable[[int], NDArray[Any]], shard_tokens: int
) -> Iterator[Cut]:
    """A shard ends before the document that would take it past `shard_tokens`, unless it is empty.

    tokens: of each unit. lengths: the lengths of a unit's documents, asked for only where a shard ends in it.
    """
    names = map(shard_name, count_from())
    start = stop = (0, 0)
    filled = 0
    for number, count in enumerate(tokens):
        if not count or filled + count <= shard_tokens:
            filled += count
            stop = (number + 1, 0)
            continue
        ends = np.cumsum(lengths(number), dtype=np.int64)
        done = before = 0
        while before + shard_tokens - filled < ends[-1]:
            fit = int(np.searchsorted(ends, before + shard_tokens - filled, side="right"))
            done = max(fit, done + 1) if not filled else fit
            if done == len(ends):
                break
            yield Cut(split, next(names), start, (number, done))
            start, before, filled = (number, done), int(ends[done - 1]) if done else 0, 0
        filled += int(ends[-1]) - before
        stop = (number + 1, 0)
    if filled:
        yield Cut(split, next(names), start, stop)


def cut_shuffled(split: str, documents: int, tokens: int, first_place: int, shard_tokens: int) -> Iterator[Cut]:
    """Shards of equally many documents, of about `shard_tokens`; the first document is at `first_place`."""
    shards = min(documents, -(-tokens // shard_tokens))
    for number in range(shards):
        start, stop = (first_place + documents * edge // shards for edge in (number, number + 1))
        yield Cut(split, shard_name(number), (0, start), (0, stop))


def _count(chooser: Chooser, splits: Sequence[str], job: tuple[int, int]) -> tuple[dict[str, SplitCount], bytes]:
    """What a unit holds of each split, and the hashes of its documents that stay. job: the unit, its first document."""
    documents = chooser.units.documents(job[0])
    stay = np.zeros(len(documents), bool)
    counts = {}
    for split in splits:
        chosen = chooser.chosen(*job, split)
        stay |= chosen
        lengths = documents["length"][chosen]
        text_bytes = int(documents["text_bytes"][chosen].sum())
        tokens, longest = int(lengths.sum(dtype=np.int64)), int(lengths.max(initial=0))
        counts[split] = SplitCount(len(lengths), tokens, text_bytes, longest)
    return counts, hash_bytes_of(documents[stay])
