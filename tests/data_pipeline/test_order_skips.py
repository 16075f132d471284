"""Samples that are passed over."""

from __future__ import annotations

import numpy as np
import pytest

from data_pipeline.errors import DataError
from data_pipeline.order.skips import Skips


@pytest.mark.parametrize("ranges", [[], [(0, 0)], [(3, 9), (10, 12), (40, 41)], [(0, 4), (6, 6), (8, 199)]])
def test_what_is_kept_stays_in_its_order(ranges):
    every = np.arange(300)
    kept = [number for number in every if not any(first <= number <= last for first, last in ranges)]
    assert Skips(ranges).apply(np.arange(len(kept))).tolist() == kept


def test_skips_reach_far():
    skips = Skips([(10**15, 10**15 + 99)])
    assert skips.apply(np.array([10**15 - 1, 10**15, 2 * 10**15])).tolist() == [
        10**15 - 1,
        10**15 + 100,
        2 * 10**15 + 100,
    ]


def test_a_later_skip_changes_nothing_before_it():
    positions = np.arange(500)
    assert np.array_equal(Skips([(20, 30)]).apply(positions), Skips([(20, 30), (520, 600)]).apply(positions)[:500])
    assert Skips([(20, 30), (511, 600)]).apply(np.array([499, 500])).tolist() == [510, 601]


@pytest.mark.parametrize("ranges", [[(5, 4)], [(-1, 4)], [(5, 9), (9, 12)], [(50, 60), (1, 2)]])
def test_ranges_that_cannot_be_meant_are_refused(ranges):
    with pytest.raises(DataError, match=r"skips holds the range \(.*ascending and without overlap"):
        Skips(ranges)
