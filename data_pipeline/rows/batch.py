"""Rows with their labels, as a step of training takes them, and the memory they are read into."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from data_pipeline.format.dataset import Int64

IGNORE = -100
"""The label that does not count."""

Allocate = Callable[[tuple[int, int]], Int64]
"""Memory for int64 numbers of a shape; a loader gives a function that takes pinned memory."""


class Batch(NamedTuple):
    """Rows of a batch; arrays are [rows, sequence_length] int64 where nothing else is said.

    Read only: where no label is masked, tokens and labels are two views of the same memory, shifted by one.
    """

    tokens: Int64
    labels: Int64
    """The token after each input token, or -100 where it does not count."""
    positions: Int64 | None = None
    """With isolated documents: the position within the document. 0 again where a row begins inside a document."""
    document_ids: Int64 | None = None
    """With isolated documents: 0, 1, 2, ... along each row. Padding is a document of its own."""
    bounds: Int64 | None = None
    """With isolated documents: where each begins in the flattened tokens, and the end of all [documents + 1]."""
    sources: Int64 | None = None
    """[rows]: the number of the source of each row, where there are several."""


def allocate(shape: tuple[int, int]) -> Int64:
    """Ordinary memory."""
    return np.empty(shape, np.int64)


class Buffer:
    """Memory for the rows of a batch: readers fill the rows, `finish` makes labels, positions and document ids.

    It may be used again and again; a batch lives until the next `finish` of its buffer.
    """

    def __init__(
        self,
        rows: int,
        sequence_length: int,
        isolate_documents: bool = False,
        numbers: bool = True,
        allocate: Allocate = allocate,
    ):
        """numbers: give positions and ids of isolated documents; else only bounds, for attention by cu_seqlens."""
        shape = (rows, sequence_length)
        self.isolate_documents = isolate_documents
        self.block = allocate((rows, sequence_length + 1))
        """Tokens, one more a row than it has inputs."""
        self._flat = self.block.reshape(-1)
        self._tokens, self._next = self.block[:, :-1], self.block[:, 1:]
        self._allocate = allocate
        self._masked: tuple[Int64, Int64] | None = None
        """A second block, flat, for labels of which some do not count, and the labels in it."""
        self._positions = allocate(shape) if isolate_documents and numbers else None
        self._ids = allocate(shape) if isolate_documents and numbers else None
        self._columns = np.arange(rows * sequence_length)
        # Where rows begin in the flat block, the end of the last, and one more that is never given out.
        self._row_places = np.arange(rows + 2) * (sequence_length + 1)
        self._starts: list[Int64] = []
        self._ignored: list[tuple[Int64, NDArray[np.bool_] | None]] = []
        self._padded: list[tuple[int, int]] = []

    def fill(self, rows: Sequence[int], pieces: list[NDArray[Any]]) -> None:
        """The tokens of these rows, in pieces that follow one another and make up whole rows."""
        if not rows:
            return
        # Joined as they are stored, and widened all at once, which takes less time than piece by piece.
        tokens, width = np.concatenate(pieces), self.block.shape[1]
        if isinstance(rows, range):
            self._flat[rows.start * width : rows.stop * width] = tokens
        else:
            self.block[rows] = tokens.reshape(-1, width)

    def begin_documents(self, places: Int64) -> None:
        """Documents (or padding) begin at these places of the flat block: each row * (sequence_length + 1) + column."""
        self._starts.append(places)

    def ignore(self, rows: Sequence[int], labels: NDArray[np.bool_] | None = None) -> None:
        """These labels of these rows, [rows, sequence_length] bool, do not count; None: none of them does."""
        self._ignored.append((np.asarray(rows, np.int64), labels))

    def ignore_from(self, row: int, column: int) -> None:
        """The labels of a row from this column on do not count."""
        self._padded.append((row, column))

    def finish(self, sources: Int64 | None = None) -> Batch:
        """The batch, once every row is filled; `sources` [rows]: the number of the source of each."""
        starts, ignored, padded = self._starts, self._ignored, self._padded
        self._starts, self._ignored, self._padded = [], [], []
        if not (ignored or padded or self.isolate_documents):
            return Batch(self._tokens, self._next, None, None, None, sources)
        if self._masked is None:
            block = self._allocate(self.block.shape)
            self._masked = block.reshape(-1), block[:, 1:]
        flat, kept = self._masked
        np.copyto(flat, self._flat)
        for row, column in padded:
            kept[row, column:] = IGNORE
        for rows, labels in ignored:
            kept[rows] = IGNORE if labels is None else np.where(labels, IGNORE, kept[rows])
        if not self.isolate_documents:
            return Batch(self._tokens, kept, sources=sources)
        # The first token of a document is no target of the one before.
        for places in starts:
            flat[places] = IGNORE
        bounds = self._bounds(starts)
        self._number(bounds)
        return Batch(self._tokens, kept, self._positions, self._ids, bounds, sources)

    def _bounds(self, starts: list[Int64]) -> Int64:
        """Of the batch, from where documents begin."""
        places = np.concatenate([*starts, self._row_places])
        places.sort()
        # A place counts one column a row more than an input does. One in that last column falls on the next row's
        # first input, where a segment begins anyway.
        bounds = places - places // self.block.shape[1]
        return bounds[:-1][bounds[1:] != bounds[:-1]]

    def _number(self, bounds: Int64) -> None:
        if self._positions is None or self._ids is None:
            return
        length = self._positions.shape[1]
        sizes = bounds[1:] - bounds[:-1]
        np.subtract(self._columns, np.repeat(bounds[:-1], sizes), out=self._positions.reshape(-1))
        first = bounds.searchsorted(self._columns[::length])
        number = np.arange(len(sizes)) - first[bounds[:-1] // length]
        self._ids.reshape(-1)[:] = np.repeat(number, sizes)
