"""The rows of a pack index: found beside the shards, or made there by the first process that asks for them."""

from __future__ import annotations

import fcntl
import os
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from data_pipeline.errors import DataError
from data_pipeline.format.dataset import Int64, TokenDataset
from data_pipeline.format.recent import Recent
from data_pipeline.rows.pack_index import (
    PackJob,
    Summary,
    file_ending,
    pack_shard,
    read_pack,
    read_summary,
    write_summary,
)
from data_pipeline.rows.pieces import Piece

_PIECES = 1 << 25
"""Pieces of the indices that are mapped at a time: 400 MB of files."""

_Views = tuple[memoryview, memoryview, memoryview]
"""The arrays of a `Packed`: a memoryview gives a few numbers in half the time that an array takes."""

Mapper = Callable[[Callable[[PackJob], list[int]], Iterable[PackJob]], Iterable[list[int]]]
"""`map`, or that of a pool of processes."""


class PackedRows:
    """The rows of a split that a packing makes: the same in each epoch."""

    pads = True

    def __init__(self, dataset: TokenDataset, sequence_length: int, packing: str):
        """Raises DataError where there is no index and none can be made."""
        self._dataset, self._length, self._packing = dataset, sequence_length, packing
        self.summary = pack(dataset, sequence_length, packing)
        self.rows_per_shard: Int64 = np.asarray(self.summary.rows, np.int64)
        self._row_starts: list[int] = [0, *np.cumsum(self.rows_per_shard).tolist()]
        self.rows = self._row_starts[-1]
        self._packs: Recent[_Views] = Recent(_PIECES, lambda packed: len(packed[1]), self._open)

    def pieces(self, epoch: int, rows: Sequence[int]) -> list[Piece]:
        """The documents of rows, which are the same in each epoch."""
        found: list[Piece] = []
        for number, row in enumerate(rows):
            shard = bisect_right(self._row_starts, row) - 1
            firsts, starts, lengths = self._packs[shard]
            place = row - self._row_starts[shard]
            chosen = slice(firsts[place], firsts[place + 1])
            base, column = self._dataset.shard_starts_list[shard], 0
            for start, length in zip(starts[chosen], lengths[chosen], strict=True):
                found.append((number, column, base + start, length))
                column += length
        return found

    def _open(self, shard: int) -> _Views:
        ending = file_ending(self._packing, self._length)
        path = _place(self._dataset, f"{self._dataset.shards[shard].name}.{ending}")
        if not path.exists():
            path = self._dataset.files.path(shard, ending)
        packed = read_pack(path, self._dataset.shards[shard].len_xxh3_128, self._length)
        return packed.firsts.data, packed.starts.data, packed.lengths.data


def pack(
    dataset: TokenDataset,
    sequence_length: int,
    packing: str,
    mapper: Mapper = map,
    advance: Callable[[int], Any] = lambda shards: None,
) -> Summary:
    """The packing of a split, made unless it is there; one process makes it and others wait. Raises DataError.

    `advance` hears of every shard that is packed.
    """
    name = f"{file_ending(packing, sequence_length)}.json"
    if found := _find(dataset, name):
        return found
    path = _place(dataset, name)
    try:
        with _alone(path.parent):
            if found := read_summary(path, dataset):
                return found
            counts = []
            for count in mapper(pack_shard, _jobs(dataset, sequence_length, packing)):
                counts.append(count)
                advance(1)
            rows, tokens, thrown = (list(column) for column in zip(*counts, strict=True)) if counts else ([], [], [])
            summary = Summary(rows, tokens, thrown)
            write_summary(path, dataset, summary)
            return summary
    except OSError as error:
        raise DataError(
            f"cannot be written ({error.strerror}): the rows of packing {packing} for sequence_length "
            f"{sequence_length} must be made once, by one who may write there: megaxf data pack",
            path,
        ) from None


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Waits until no other process packs in this folder; the lock is on the folder itself and leaves nothing in it."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def _jobs(dataset: TokenDataset, sequence_length: int, packing: str) -> Iterable[PackJob]:
    for number, shard in enumerate(dataset.shards):
        output = _place(dataset, f"{shard.name}.{file_ending(packing, sequence_length)}")
        yield PackJob(dataset.files.path(number, "len"), shard.len_xxh3_128, sequence_length, packing, output)


def _find(dataset: TokenDataset, name: str) -> Summary | None:
    """A packing that is complete, in the data set's folder or in its store."""
    try:
        return read_summary(dataset.files.common(f"{dataset.split}/{name}"), dataset)
    except DataError:
        return None


def _place(dataset: TokenDataset, name: str) -> Path:
    """Where a file of a packing lies that is made on this machine."""
    return dataset.files.place(f"{dataset.split}/{name}")
