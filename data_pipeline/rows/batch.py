"""Rows with their labels, as a step of training takes them, and the memory they are read into."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from data_pipeline.format.dataset import Int64

IGNORE = -100
"""The label that does not count."""

Allocate = Callable[[tuple[int, int]], Int64]
"""Memory for int64 numbers of a shape; a loader gives a function that takes pinned memory."""


class Batch(NamedTuple):
    """Rows of a batch; every array is [rows, sequence_length] int64.

    Read only: where no label is masked, tokens and labels are two views of the same memory, shifted by one.
    """

    tokens: Int64
    labels: Int64
    """The token after each input token, or -100 where it does not count."""
    positions: Int64 | None = None
    """With isolated documents: the position within the document. 0 again where a row begins inside a document."""
    document_ids: Int64 | None = None
    """With isolated documents: 0, 1, 2, ... along each row. Padding is a document of its own."""


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
        allocate: Allocate = allocate,
    ):
        shape = (rows, sequence_length)
        self.isolate_documents = isolate_documents
        self.block = allocate((rows, sequence_length + 1))
        """Tokens, one more a row than it has inputs."""
        self._tokens = self.block[:, :-1]
        self._allocate = allocate
        self._labels: Int64 | None = None
        self._positions = allocate(shape) if isolate_documents else None
        self._ids = allocate(shape) if isolate_documents else None
        self._columns = np.arange(rows * sequence_length if isolate_documents else 0)
        self._starts: list[Int64] = []
        self._ignored: list[tuple[Int64, NDArray[np.bool_] | None]] = []

    def begin_documents(self, places: Int64) -> None:
        """Documents (or padding) begin at these places of the flat block: each row * (sequence_length + 1) + column."""
        self._starts.append(places)

    def ignore(self, rows: Int64, labels: NDArray[np.bool_] | None = None) -> None:
        """These labels of these rows, [rows, sequence_length] bool, do not count; None: none of them does."""
        self._ignored.append((rows, labels))

    def finish(self) -> Batch:
        """The batch, once every row is filled."""
        starts = np.sort(np.concatenate(self._starts)) if self._starts else np.empty(0, np.int64)
        ignored = self._ignored
        self._starts, self._ignored = [], []
        if not (ignored or self.isolate_documents):
            return Batch(self._tokens, self.block[:, 1:])
        if self._labels is None:
            self._labels = self._allocate(self._tokens.shape)
        np.copyto(self._labels, self.block[:, 1:])
        for rows, labels in ignored:
            self._labels[rows] = IGNORE if labels is None else np.where(labels, IGNORE, self._labels[rows])
        if self.isolate_documents:
            self._number(starts)
        return Batch(self._tokens, self._labels, self._positions, self._ids)

    def _number(self, starts: Int64) -> None:
        """Positions and ids of documents; the first token of a document is no target of the one before."""
        assert self._labels is not None and self._positions is not None and self._ids is not None
        rows, length = self._labels.shape
        row, column = np.divmod(starts, length + 1)
        self._labels.reshape(-1)[row * length + column - 1] = IGNORE
        inputs = (row * length + column)[column < length]
        firsts = np.arange(rows) * length
        edges = np.sort(np.concatenate([firsts, inputs]))
        sizes = np.diff(edges, append=rows * length)
        np.subtract(self._columns, np.repeat(edges, sizes), out=self._positions.reshape(-1))
        number = np.arange(len(edges))
        self._ids.reshape(-1)[:] = np.repeat(number - np.searchsorted(edges, edges // length * length), sizes)
