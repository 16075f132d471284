"""Documents in an order that has nothing to do with that of the input, whether they fit in memory or not.

Document m of a split, counted in the order of the input, goes to the place `permute(m)`: the order depends on how many
documents there are, and on nothing else. They get there by an external merge sort (Knuth, The Art of Computer
Programming 3, 5.4): each unit is written once more in the order of the places, as a run; where there are more runs than
a shard should be read from, neighbours are merged; and a shard is a range of places, a slice of each run.

    runs/N.ids, N.doc, N.json     as of a unit, with ENTRY_DTYPE
    merged/N.*                    the same of several runs
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from data_pipeline.order.permutation import epoch_keys, permute
from data_pipeline.prepare.decide import Chooser, Decision, UnitStart
from data_pipeline.prepare.plan import Plan
from data_pipeline.prepare.units import UnitRecord, Units, write_record

FAN_IN = 4096
"""Runs that a shard is read from: of 1 TB of ids, each has 50 kB for a shard of 200 MB."""

ENTRY_DTYPE = np.dtype([("place", "<u8"), ("start", "<u8"), ("record", "<u8"), ("length", "<u4"), ("file", "<u4")])
"""Of a document: its place, of all splits one behind the other; where its ids begin in the run; then as in a unit, but
the record is numbered from the beginning of the file."""

_SEED = 0
_CHUNK_TOKENS = 1 << 22
_CHUNK_DOCUMENTS = 1 << 22
"""Held at a time."""


class Run(NamedTuple):
    """A run to write."""

    number: int
    size: int
    """Bytes of input."""
    text_bytes: int
    start: UnitStart
    before: dict[str, int]
    """Documents of each split in the units before."""


class Group(NamedTuple):
    """Runs to merge."""

    number: int
    runs: Sequence[Run]


@dataclass(frozen=True)
class Shuffle:
    """What all runs have in common; small, since it travels with each."""

    chooser: Chooser
    documents: dict[str, int]
    """Of each split, in the order of the places."""
    runs: Units
    merged: Units


def all_runs(plan: Plan, decision: Decision) -> list[Run]:
    """A run for each unit."""
    runs, before = [], dict.fromkeys(decision.counts[0], 0)
    for number, (unit, start, counts) in enumerate(zip(plan.units, decision.starts, decision.counts, strict=True)):
        runs.append(Run(number, unit.size, sum(count.text_bytes for count in counts.values()), start, dict(before)))
        before = {split: before[split] + count.documents for split, count in counts.items()}
    return runs


def all_groups(runs: Sequence[Run]) -> list[Group]:
    """Neighbouring runs, in so many groups as a shard is read from; none where there are not more runs."""
    size = -(-len(runs) // FAN_IN)
    return (
        [Group(k, runs[first : first + size]) for k, first in enumerate(range(0, len(runs), size))] if size > 1 else []
    )


def write_run(shuffle: Shuffle, run: Run) -> None:
    """The documents of a unit that stay, in the order of their places."""
    documents, found = shuffle.chooser.units.documents(run.number), []
    starts = np.cumsum(documents["length"], dtype=np.uint64) - documents["length"]
    first_place = 0
    for split, count in shuffle.documents.items():
        chosen = np.flatnonzero(shuffle.chooser.chosen(run.number, run.start.documents, split))
        entries = np.empty(len(chosen), ENTRY_DTYPE)
        numbers = run.before[split] + np.arange(len(chosen))
        entries["place"] = first_place + permute(numbers, count, epoch_keys(_SEED, split, 0))
        entries["start"] = starts[chosen]
        entries["record"] = documents["record"][chosen] + np.uint64(run.start.records)
        entries["length"], entries["file"] = documents["length"][chosen], documents["file"][chosen]
        found.append(entries)
        first_place += count
    record = UnitRecord(run.number, run.size, text_bytes=run.text_bytes)
    _write(shuffle.runs, record, _gather(found, [shuffle.chooser.units.ids(run.number)] * len(found)))


def merge_runs(shuffle: Shuffle, group: Group) -> None:
    """Several runs as one."""
    numbers, places = [run.number for run in group.runs], sum(shuffle.documents.values())
    documents = sum(len(shuffle.runs.documents(number)) for number in numbers)
    pieces = max(1, -(-documents // _CHUNK_DOCUMENTS))
    edges = [places * piece // pieces for piece in range(pieces + 1)]
    sizes = sum(run.size for run in group.runs), sum(run.text_bytes for run in group.runs)
    record = UnitRecord(group.number, sizes[0], text_bytes=sizes[1])
    parts = (part for k in range(pieces) for part in documents_at(shuffle.runs, numbers, edges[k], edges[k + 1]))
    _write(shuffle.merged, record, parts)


def documents_at(
    runs: Units, numbers: Iterable[int], first: int, stop: int
) -> Iterator[tuple[NDArray[Any], NDArray[Any]]]:
    """The documents at places [first, stop), in that order: their ids joined and their entries, some at a time."""
    found, tokens = [], []
    for number in numbers:
        entries = runs.documents(number)
        # A view: looking at some 20 places reads no more than these.
        places = entries["place"]
        found.append(entries[bisect_left(places, first) : bisect_left(places, stop)])
        tokens.append(runs.ids(number))
    return _gather(found, tokens)


def _gather(
    found: Sequence[NDArray[Any]], tokens: Sequence[NDArray[Any]]
) -> Iterator[tuple[NDArray[Any], NDArray[Any]]]:
    """Documents in the order of their places. found: entries whose starts count in the ids of the same number."""
    entries, owners = np.concatenate(found), np.repeat(np.arange(len(found)), [len(some) for some in found])
    order = np.argsort(entries["place"])
    ends = np.cumsum(entries["length"][order], dtype=np.int64)
    first = 0
    while first < len(order):
        before = int(ends[first - 1]) if first else 0
        last = max(first + 1, int(np.searchsorted(ends, before + _CHUNK_TOKENS, side="right")))
        some = order[first:last]
        part = entries[some]
        stops = (part["start"] + part["length"]).tolist()
        places = zip(owners[some].tolist(), part["start"].tolist(), stops, strict=True)
        yield np.concatenate([tokens[owner][start:stop] for owner, start, stop in places]), part
        first = last


def _write(runs: Units, record: UnitRecord, parts: Iterable[tuple[NDArray[Any], NDArray[Any]]]) -> None:
    """The files of a run, the record last."""
    with ExitStack() as stack:
        paths = [runs.folder / f"{record.number}.{ending}" for ending in ("ids", "doc")]
        ids_file, entries_file = (stack.enter_context(open(path, "wb")) for path in paths)
        for ids, entries in parts:
            ends = np.cumsum(entries["length"], dtype=np.uint64)
            entries["start"] = ends - entries["length"] + np.uint64(record.tokens)
            ids_file.write(ids.data)
            entries_file.write(entries.data)
            record.tokens += len(ids)
            record.documents += len(entries)
    write_record(runs.folder, record)
