"""An order for object stores: few shards are open at a time, and each node of a run reads few of them.

In each epoch the shards of a source are laid in a row in a new random order, and this row is cut into lanes of equally
many rows. A lane is gone through window by window; the rows of a window, a few shards' worth, are permuted together.
The positions of an epoch go over all lanes round by round: a round is as long as the source's part of a global batch
and takes one contiguous piece from each lane. So rank r of R, which takes the r-th block of each batch, keeps to the
same lane or two. When batch size or weights change later, the order stays what it was; ranks then meet other lanes.

Everything but the order of the shards is arithmetic, exact for shards of any sizes: a position costs one search among
the shards, an epoch 16 bytes a shard.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np

from data_pipeline.order.permutation import Int64, epoch_keys, part_keys, permute


class Lanes(NamedTuple):
    """The settings of the order: `window` shards are open in each lane, and `batch` samples of the run are a round."""

    lanes: int
    window: int
    batch: int


class LaneOrder:
    """Position in an epoch -> row, for one source."""

    def __init__(self, rows_per_shard: Int64, seed: int, source: str, settings: Lanes, share: float):
        """`share` is the source's part of the samples of the run, of which a round has settings.batch."""
        self._rows_per_shard, self._seed, self._source = rows_per_shard, seed, source
        self._first_rows = _sums(rows_per_shard)
        self.rows = int(self._first_rows[-1])
        shards = len(rows_per_shard)
        self._lanes = min(settings.lanes, shards)
        self._lane_rows = self.rows // self._lanes
        self._window_rows = max(1, -(-self.rows * settings.window // shards))
        self._piece = max(1.0, settings.batch * share / self._lanes)
        # A batch can lie in two epochs.
        self._shards = lru_cache(maxsize=2)(self._lay)

    def locate(self, epoch: int, index: Int64) -> Int64:
        """The rows at these positions of an epoch."""
        shards, starts = self._shards(epoch)
        lane, along = self._lane(index)
        window, offset = np.divmod(along, self._window_rows)
        rows = np.minimum(self._window_rows, self._rows_of(lane) - window * self._window_rows)
        keys = part_keys(epoch_keys(self._seed, self._source, epoch), lane << 32 | window)
        place = lane * self._lane_rows + window * self._window_rows + permute(offset, rows, keys)
        shard = np.searchsorted(starts, place, side="right") - 1
        return self._first_rows[shards[shard]] + place - starts[shard]

    def _lane(self, index: Int64) -> tuple[Int64, Int64]:
        """The lane at each position, and how many of its rows came before."""
        level = index // self._lanes
        turn = (level / self._piece).astype(np.int64)
        # The division in floating point may be off by one; the comparison with the exact starts puts that right.
        turn -= self._turn_start(turn) > level
        turn += self._turn_start(turn + 1) <= level
        start = self._turn_start(turn)
        lane, along = np.divmod(index - start * self._lanes, np.maximum(1, self._turn_start(turn + 1) - start))
        # What the division into equal lanes leaves over comes last, from the end of the last lane.
        rest = index >= self._lanes * self._lane_rows
        last = self._lanes - 1
        return np.where(rest, last, lane), np.where(rest, index - last * self._lane_rows, start + along)

    def _turn_start(self, turn: Int64) -> Int64:
        """How many rows of each lane come before this round."""
        return np.minimum(np.floor(turn * self._piece).astype(np.int64), self._lane_rows)

    def _rows_of(self, lane: Int64) -> Int64:
        return np.where(lane == self._lanes - 1, self.rows - (self._lanes - 1) * self._lane_rows, self._lane_rows)

    def _lay(self, epoch: int) -> tuple[Int64, Int64]:
        """The shards in the order of this epoch, and how many rows come before each of them."""
        count = len(self._rows_per_shard)
        shards = permute(np.arange(count), count, epoch_keys(self._seed, f"{self._source}/shards", epoch))
        return shards, _sums(self._rows_per_shard[shards])[:-1]


def _sums(counts: Int64) -> Int64:
    """The sum of the counts before each, and of all."""
    return np.concatenate([[0], np.cumsum(counts, dtype=np.int64)]).astype(np.int64)
