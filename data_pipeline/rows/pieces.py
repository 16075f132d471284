"""Rows as pieces of the split: what a packing decides, what is copied, and what an audit traces back to documents."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from data_pipeline.format.dataset import Int64, TokenDataset
from data_pipeline.rows.batch import Buffer


class Pieces(NamedTuple):
    """Stretches of tokens [start, start + length) of a split, by row and column; arrays [pieces].

    A piece at a column other than 0 begins a document, or follows the split's last token with its first.
    """

    row: Int64
    """Number within the rows that were asked for."""
    column: Int64
    start: Int64
    length: Int64

    def part(self, numbers: Int64, length: int) -> Pieces:
        """Of row i the part [k * length, (k + 1) * length] of its columns, where k = numbers[i]."""
        low = numbers[self.row] * length
        begin = np.maximum(self.column, low)
        size = np.minimum(self.column + self.length, low + length + 1) - begin
        kept = np.flatnonzero(size > 0)
        pieces = Pieces(self.row, begin - low, self.start + begin - self.column, size)
        return Pieces(*(array[kept] for array in pieces))

    def places(self, rows: Int64, width: int) -> Int64:
        """Where each piece begins in a flattened block of rows of this width, of which these take `rows`."""
        return rows[self.row] * width + self.column


def fill_pieces(dataset: TokenDataset, pieces: Pieces, rows: Int64, out: Buffer) -> None:
    """Copies pieces into these rows of a buffer: once, from the map of the shard.

    No label counts of a row that holds tokens of a shard which the run goes without.
    """
    flat = out.block.reshape(-1)
    places = pieces.places(rows, out.block.shape[1])
    shards, local = _find(dataset, pieces)
    is_out = dataset.files.is_out
    for number, (shard, start, place, length) in enumerate(
        zip(shards, local, places.tolist(), pieces.length.tolist(), strict=True)
    ):
        found = dataset.shard_tokens(shard)[start : start + length]
        out_of_run = is_out(shard)
        if len(found) < length:
            start = int(pieces.start[number])
            found = dataset.read(start, start + length)
            last = int(np.searchsorted(dataset.shard_starts, start + length)) - 1
            out_of_run = any(map(is_out, range(shard, last + 1)))
        flat[place : place + length] = found
        if out_of_run:
            out.ignore(rows[pieces.row[number : number + 1]])


def pad(pieces: Pieces, rows: Int64, out: Buffer, eod_id: int) -> Int64:
    """Fills these rows up with EOD whose labels do not count; gives the places where that begins behind tokens."""
    width = out.block.shape[1]
    filled = np.bincount(pieces.row, pieces.length, len(rows)).astype(np.int64)
    short = np.flatnonzero(filled < width)
    filled, rows = filled[short], rows[short]
    for row, column in zip(rows.tolist(), filled.tolist(), strict=True):
        out.block[row, column:] = eod_id
    if short.size:
        out.ignore(rows, np.arange(1, width) >= filled[:, None])
    return (rows * width + filled)[filled > 0]


def boundaries(dataset: TokenDataset, pieces: Pieces, places: Int64, inner: bool) -> Int64:
    """The places, of the same flattened block, at which a document begins other than at the first column.

    inner: pieces may hold several documents.
    """
    starts = places[pieces.column > 0]
    return np.concatenate([starts, *_inner_boundaries(dataset, pieces, places)]) if inner else starts


def _inner_boundaries(dataset: TokenDataset, pieces: Pieces, places: Int64) -> list[Int64]:
    shards, _ = _find(dataset, pieces)
    found = []
    for shard, start, place, length in zip(
        shards, pieces.start.tolist(), places.tolist(), pieces.length.tolist(), strict=True
    ):
        if start + length <= dataset.shard_starts[shard + 1]:
            ends = dataset.document_ends(shard)
            low, high = ends.searchsorted((start + 1, start + length))
            ends = ends[low:high]
        else:
            ends = dataset.boundaries(start, start + length)
        found.append(ends + (place - start))
    return found


def _find(dataset: TokenDataset, pieces: Pieces) -> tuple[list[int], list[int]]:
    """The shard in which each piece begins, and where in it."""
    shards = np.searchsorted(dataset.shard_starts, pieces.start, side="right") - 1
    return shards.tolist(), (pieces.start - dataset.shard_starts[shards]).tolist()
