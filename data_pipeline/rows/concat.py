"""Cuts a split into rows of S inputs and S labels, documents following one another.

In the first epoch row k is the tokens [kS, kS + S + 1): its inputs are the first S of them, its labels the last S, so
neighbouring rows share one token and every pair (token, next token) is in at most one row. In epoch e all cuts are
moved on by a number in [0, S) that is drawn from (seed, source, e), and the split is taken as a circle: its first token
follows its last. So each epoch has the same number of rows R = (N - 1) // S, no pair is in two of them, and of the N
pairs on the circle the N - R S (1 to S) before the first cut are left out, other ones in each epoch.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np

from data_pipeline.format.dataset import Int64, TokenDataset
from data_pipeline.rows.pieces import Piece


def row_count(tokens: int, sequence_length: int) -> int:
    """Whole rows in a split of so many tokens; what is left over (under sequence_length tokens) is not trained on."""
    return max(0, (tokens - 1) // sequence_length)


class ConcatRows:
    """The rows of a split, cut anew in each epoch."""

    pads = False

    def __init__(self, dataset: TokenDataset, sequence_length: int, seed: int, source: str):
        self._dataset, self._length, self._seed, self._source = dataset, sequence_length, seed, source
        self.rows = row_count(dataset.tokens, sequence_length)
        self._shifts = {0: 0}

    @property
    def rows_per_shard(self) -> Int64:
        """The rows that begin in each shard in the first epoch; in others a row may begin less than S further on."""
        edges = -(-self._dataset.shard_starts // self._length)
        return np.diff(np.minimum(edges, self.rows))

    def pieces(self, epoch: int, rows: Sequence[int]) -> list[Piece]:
        """The tokens of rows: one piece each, but two where a row goes over the end of the split."""
        length, shift, width = self._length, self.shift(epoch), self._length + 1
        found = [(number, 0, row * length + shift, width) for number, row in enumerate(rows)]
        over = (self.rows - 1) * length + shift + width - self._dataset.tokens
        if over > 0:
            # Only the last row of an epoch can go over the end.
            for number in reversed([number for number, row in enumerate(rows) if row == self.rows - 1]):
                found[number] = (number, 0, self._dataset.tokens - width + over, width - over)
                found.insert(number + 1, (number, width - over, 0, over))
        return found

    def shift(self, epoch: int) -> int:
        """By how much the cuts of an epoch are moved on, below S; 0 in the first."""
        if epoch not in self._shifts:
            key = f"{self._seed}\0{self._source}\0{epoch}\0shift"
            digest = hashlib.blake2b(key.encode(), digest_size=16).digest()
            self._shifts[epoch] = int.from_bytes(digest, "little") % self._length
        return self._shifts[epoch]
