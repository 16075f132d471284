"""One shard from slices of encoded units; each shard alone, in any process."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import orjson
from numpy.typing import NDArray

from data_pipeline.format.manifest import ORIGIN_DTYPE, Shard, write_whole
from data_pipeline.format.writer import ShardWriter
from data_pipeline.prepare.decide import Chooser, Cut, UnitStart
from data_pipeline.prepare.shuffle import documents_at
from data_pipeline.prepare.units import Units

_CHUNK_TOKENS = 1 << 22
"""Tokens that are copied at a time."""


class ShardJob(NamedTuple):
    """A shard to assemble."""

    cut: Cut
    starts: Sequence[UnitStart]
    """What came before each of its units; of none where documents are shuffled."""


@dataclass(frozen=True)
class Assembly:
    """Where units are read and shards written."""

    chooser: Chooser
    folder: Path
    """Of the data set to be."""
    records: Path
    """A file for each finished shard."""
    runs: Units | None = None
    """Of shuffled documents; None where they are in the order of the input."""
    run_count: int = 0


def assemble_shard(assembly: Assembly, job: ShardJob) -> None:
    """Writes the files of a shard and, when they are whole, what is known of it."""
    cut = job.cut
    writer = ShardWriter(assembly.folder / cut.split, cut.name, assembly.chooser.units.dtype)
    try:
        for ids, documents, first_record in _documents(assembly, job):
            writer.write(ids, documents["length"], _origins(documents, first_record))
        shard = writer.close()
    finally:
        writer.abandon()
    write_whole(record_path(assembly.records, cut), orjson.dumps(tuple(shard)))


def shard_job(assembly: Assembly, cut: Cut, starts: Sequence[UnitStart]) -> ShardJob:
    """The work on a shard, from what came before every unit."""
    if assembly.runs:
        return ShardJob(cut, ())
    end = cut.stop[0] + (cut.stop[1] > 0)
    return ShardJob(cut, starts[cut.start[0] : end])


def finished_shard(assembly: Assembly, cut: Cut) -> Shard | None:
    """What is known of a shard, None unless all of its files are there."""
    try:
        shard = Shard._make(orjson.loads(record_path(assembly.records, cut).read_bytes()))
        sizes = {
            ending: (assembly.folder / cut.split / f"{cut.name}.{ending}").stat().st_size
            for ending in shard.file_hashes()
        }
    except (OSError, ValueError, TypeError):
        return None
    return shard if all(shard.file_size(ending) == size for ending, size in sizes.items()) else None


def record_path(folder: Path, cut: Cut) -> Path:
    """Where it is written that a shard is finished."""
    return folder / f"{cut.split}-{cut.name}.json"


def _documents(assembly: Assembly, job: ShardJob) -> Iterator[tuple[NDArray[Any], NDArray[Any], int]]:
    """The ids of a shard and what is kept of its documents, some at a time, and what to add to their records."""
    cut = job.cut
    if assembly.runs:
        for ids, entries in documents_at(assembly.runs, range(assembly.run_count), cut.start[1], cut.stop[1]):
            yield ids, entries, 0
    for number, start in enumerate(job.starts, start=cut.start[0]):
        first = cut.start[1] if number == cut.start[0] else 0
        last = cut.stop[1] if number == cut.stop[0] else None
        chosen = np.flatnonzero(assembly.chooser.chosen(number, start.documents, cut.split))[first:last]
        for ids, documents in _chunks(assembly.chooser, number, chosen):
            yield ids, documents, start.records


def _chunks(chooser: Chooser, number: int, chosen: NDArray[np.int64]) -> Iterator[tuple[NDArray[Any], NDArray[Any]]]:
    """The ids and entries of the chosen documents of a unit, some documents at a time."""
    if not len(chosen):
        return
    first, stop = int(chosen[0]), int(chosen[-1]) + 1
    documents, ids = chooser.units.documents(number), chooser.units.ids(number)
    ends = np.cumsum(documents["length"][:stop], dtype=np.int64)
    keep = np.zeros(stop, bool)
    keep[chosen] = True
    while first < stop:
        begin = int(ends[first - 1]) if first else 0
        last = max(first + 1, int(np.searchsorted(ends, begin + _CHUNK_TOKENS, side="right")))
        some, part = keep[first:last], documents[first:last]
        tokens = ids[begin : int(ends[last - 1])]
        yield (tokens, part) if some.all() else (tokens[np.repeat(some, part["length"])], part[some])
        first = last


def _origins(documents: NDArray[Any], first_record: int) -> NDArray[Any]:
    origins = np.empty(len(documents), ORIGIN_DTYPE)
    origins["file"] = documents["file"]
    origins["record"] = documents["record"] + np.uint64(first_record)
    return origins
