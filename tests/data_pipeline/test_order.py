"""The keyed permutation of an epoch."""

from __future__ import annotations

import numpy as np
import pytest

from data_pipeline.order.permutation import epoch_keys, permute


def order(rows: int, seed: int = 0, source: str = "web", epoch: int = 0) -> np.ndarray:
    return permute(np.arange(rows), rows, epoch_keys(seed, source, epoch))


@pytest.mark.parametrize("rows", [1, 2, 3, 4, 5, 7, 50, 64, 65, 1000, 65_537])
def test_every_row_comes_exactly_once(rows):
    assert np.array_equal(np.sort(order(rows)), np.arange(rows))


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("rows", [262_144, 488_281, 1_000_000, 100_000_000])
def test_neighbours_are_as_independent_as_in_a_drawn_order(rows, seed):
    """Chi-square per degree of freedom of pairs of neighbours on a 64 x 64 grid; 1 for a truly random order."""
    sample = min(rows, 1_000_000)
    cells = permute(np.arange(sample), rows, epoch_keys(seed, "web", 0)) * 64 // rows
    counts = np.bincount(cells[:-1] * 64 + cells[1:], minlength=4096)
    expected = (sample - 1) / 4096
    assert ((counts - expected) ** 2 / expected).sum() / 4095 < 1.1


def test_the_first_place_of_a_small_set_is_fair():
    firsts = [order(8, seed)[0] for seed in range(4000)]
    counts = np.bincount(firsts, minlength=8)
    # Seven degrees of freedom: 24.3 is exceeded once in a thousand.
    assert ((counts - 500) ** 2 / 500).sum() < 24.3


def test_seed_source_and_epoch_change_the_order():
    orders = [order(50), order(50, seed=1), order(50, source="code"), order(50, epoch=1), order(50, epoch=2)]
    assert len({tuple(one) for one in orders}) == 5
    assert np.array_equal(order(50), orders[0])


def test_the_order_is_the_same_for_ever():
    """A change of these numbers would give every resumed run other data."""
    assert order(10).tolist() == [2, 9, 5, 6, 0, 4, 7, 1, 3, 8]
    assert permute(np.array([0, 10**15 - 1]), 10**15, epoch_keys(7, "web", 3)).tolist() == [
        98792386883085,
        983155093977450,
    ]
