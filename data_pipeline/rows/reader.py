"""Row numbers to rows: tokens, labels, positions, documents.

    reader = RowReader(dataset, RowOptions(2048, packing="best_fit", isolate_documents=True))
    batch = reader.read(epoch=0, rows=np.array([5, 17]))

A batch of several sources is read into one buffer: `fill` of each source's reader for its rows, then `finish`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np

from data_pipeline.errors import DataError
from data_pipeline.format.dataset import Int64, TokenDataset
from data_pipeline.rows.batch import Batch, Buffer
from data_pipeline.rows.concat import ConcatRows
from data_pipeline.rows.fill_in_the_middle import FillInTheMiddle
from data_pipeline.rows.loss import ALL, NONE, before_token, read_train_on
from data_pipeline.rows.packed import PackedRows
from data_pipeline.rows.pieces import Piece, boundaries, fill_pieces, part

Packing = Literal["concat", "best_fit", "bos_fit"]


@dataclass(frozen=True)
class RowOptions:
    """How the rows of one source are made. `seed` and `source` (its name) key all that is drawn."""

    sequence_length: int
    packing: Packing = "concat"
    isolate_documents: bool = False
    """Give positions and document ids, and let no document predict the first token of the next."""
    train_on: str = ALL
    """Which labels count: all, none, or after:<id> (those behind this token within the document's piece in the row)."""
    fill_in_the_middle: FillInTheMiddle | None = None
    longest: int | None = None
    """The longest sequence length of the run, where that changes: rows are equal parts of rows of this length."""
    seed: int = 0
    source: str = ""


class Rows(Protocol):
    """A way to cut a split into rows."""

    pads: bool
    """Rows may be shorter than the sequence, and every piece lies within one document; else pieces hold several."""
    rows: int
    """In each epoch."""

    @property
    def rows_per_shard(self) -> Int64:
        """[shards]"""

    def pieces(self, epoch: int, rows: Sequence[int]) -> list[Piece]:
        """What the rows are made of."""


class RowReader:
    """The rows of one split of a data set. Every epoch has the same number of them, numbered from 0."""

    def __init__(self, dataset: TokenDataset, options: RowOptions):
        """Raises DataError where the options do not fit the data set."""
        self.dataset, self.options = dataset, options
        self._after = read_train_on(options.train_on)
        longest = options.longest or options.sequence_length
        self._parts, rest = divmod(longest, options.sequence_length)
        if rest:
            raise DataError(f"sequence_length = {options.sequence_length} does not divide the longest one, {longest}")
        self._rows: Rows
        if options.packing == "concat":
            self._rows = ConcatRows(dataset, longest, options.seed, options.source)
        else:
            self._rows = PackedRows(dataset, longest, options.packing)
        if options.fill_in_the_middle:
            options.fill_in_the_middle.check(dataset.manifest.vocab_size, dataset.folder)

    @property
    def rows_per_shard(self) -> Int64:
        """How many rows begin in each shard [shards]: rows are numbered shard by shard."""
        return self._rows.rows_per_shard * self._parts

    def rows(self, epoch: int = 0) -> int:
        """Rows in an epoch, the same in each."""
        return self._rows.rows * self._parts

    def pieces(self, epoch: int, rows: Sequence[int]) -> list[Piece]:
        """The stretches of the split that rows are made of."""
        if self._parts == 1:
            return self._rows.pieces(epoch, rows)
        whole = self._rows.pieces(epoch, [row // self._parts for row in rows])
        parts = (part(piece, rows[piece[0]] % self._parts, self.options.sequence_length) for piece in whole)
        return [piece for piece in parts if piece[3] > 0]

    def buffer(self, rows: int, numbers: bool = True) -> Buffer:
        """Memory for so many rows of this reader; see `Buffer`."""
        return Buffer(rows, self.options.sequence_length, self.options.isolate_documents, numbers)

    def read(self, epoch: int, rows: Int64, out: Buffer | None = None) -> Batch:
        """The rows with these numbers, in this order. With `out`, of as many rows, nothing is allocated for them.

        Raises DataError where there is no such row.
        """
        numbers = rows.tolist()
        if numbers and not 0 <= min(numbers) <= max(numbers) < self.rows():
            raise DataError(
                f"has rows 0 to {self.rows() - 1}, not {min(numbers)} to {max(numbers)}", self.dataset.folder
            )
        out = out or self.buffer(len(numbers))
        self.fill(out, range(len(numbers)), epoch, numbers)
        return out.finish()

    def fill(self, out: Buffer, places: Sequence[int], epoch: int, rows: Sequence[int]) -> None:
        """Reads the rows with these numbers into the rows `places` [n] of a buffer."""
        options, eod_id = self.options, self.dataset.manifest.eod_id
        pieces = self.pieces(epoch, rows)
        padding = fill_pieces(self.dataset, pieces, places, out, self._rows.pads)
        if options.train_on == NONE:
            out.ignore(places)
        middle = options.fill_in_the_middle
        if not (out.isolate_documents or self._after is not None or middle):
            return
        starts = boundaries(self.dataset, pieces, places, options.sequence_length + 1, not self._rows.pads)
        if padding:
            starts = np.append(starts, padding)
        if middle:
            keys = [f"{options.seed}\0{options.source}\0{epoch}\0{row}" for row in rows]
            middle.apply(out.block, places, starts, eod_id, keys)
        if self._after is not None:
            out.ignore(places, before_token(out.block, places, starts, self._after))
        out.begin_documents(starts)
