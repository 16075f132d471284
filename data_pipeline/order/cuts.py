"""Rows of several lengths from one permutation: shorter rows are parts of the longest ones.

The order of an epoch is that of the rows of the longest length a run has, here called units. A unit gives `parts` rows
of a shorter length. So that neighbours in the text do not come one after the other, units are taken in groups in their
random order and the rows of a group are permuted together. When the length changes, a source goes on with its next
group: no token of an epoch is trained on twice, and at each change at most one group of units of a source is lost, that
is `group_units(units)`: 1/64 of the epoch or 1,024 units, whichever is less, and at least one unit.
"""

from __future__ import annotations

from typing import Protocol

import numpy as np

from data_pipeline.order.permutation import Int64, epoch_keys, part_keys, permute


class EpochOrder(Protocol):
    """Position in an epoch -> row, for one source."""

    rows: int

    def locate(self, epoch: int, index: Int64) -> Int64:
        """The rows at these positions of an epoch."""
        ...


class WholeOrder:
    """All rows of the source permuted together: for data on local disks."""

    def __init__(self, rows: int, seed: int, source: str):
        self.rows, self._seed, self._source = rows, seed, source

    def locate(self, epoch: int, index: Int64) -> Int64:
        """The rows at these positions of an epoch."""
        return permute(index, self.rows, epoch_keys(self._seed, self._source, epoch))


class CutOrder:
    """Position in an epoch -> row of a length that the units' length is `parts` times."""

    def __init__(self, units: EpochOrder, parts: int, seed: int, source: str):
        self._units, self._parts, self._seed, self._source = units, parts, seed, source
        self._group = group_units(units.rows)
        self.rows = units.rows * parts

    def locate(self, epoch: int, index: Int64) -> Int64:
        """The rows at these positions of an epoch."""
        if self._parts == 1:
            return self._units.locate(epoch, index)
        group, within = np.divmod(index, self._group * self._parts)
        first = group * self._group
        rows = np.minimum(self._group, self._units.rows - first) * self._parts
        keys = epoch_keys(self._seed, f"{self._source}/{self._parts} parts", epoch)
        unit, part = np.divmod(permute(within, rows, part_keys(keys, group)), self._parts)
        return self._units.locate(epoch, first + unit) * self._parts + part


def group_units(units: int) -> int:
    """How many units have their parts permuted together."""
    return max(1, min(1024, units // 64))


def carried_over(rows: int, units: int, old_parts: int, new_parts: int) -> int:
    """Where a source goes on when the length of rows changes, in new rows, after `rows` old ones: at the next group."""
    epoch, within = divmod(rows, units * old_parts)
    group = group_units(units)
    begun = -(-within // (group * old_parts)) * group
    return (epoch * units + min(begun, units)) * new_parts
