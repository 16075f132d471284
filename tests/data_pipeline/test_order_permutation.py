"""The keyed permutation of an epoch."""

from __future__ import annotations

import numpy as np
import pytest

from data_pipeline.order.permutation import epoch_keys, part_keys, permute


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


def test_the_orders_of_four_rows_are_equally_frequent():
    """All 24 of them; four rounds of the network fail this."""
    counts: dict[tuple, int] = {}
    for seed in range(4800):
        found = tuple(order(4, seed))
        counts[found] = counts.get(found, 0) + 1
    assert len(counts) == 24
    # 23 degrees of freedom: 49.7 is exceeded once in a thousand.
    assert sum((count - 200) ** 2 / 200 for count in counts.values()) < 49.7


def test_parts_of_an_epoch_are_permuted_each_by_itself():
    """Sizes and keys that differ from index to index give what one permutation after the other gives."""
    sizes = np.random.default_rng(0).integers(1, 200, 40)
    keys = epoch_keys(3, "web", 0)
    part = np.repeat(np.arange(40), sizes)
    index = np.concatenate([np.arange(size) for size in sizes])
    together = permute(index, sizes[part], part_keys(keys, part))
    for number, size in enumerate(sizes.tolist()):
        found = together[part == number]
        assert np.array_equal(np.sort(found), np.arange(size))
        assert np.array_equal(found, permute(np.arange(size), size, part_keys(keys, np.array([number]))[:, 0]))


def test_equal_parts_have_orders_that_do_not_resemble_one_another():
    """How often two parts put the same row at the same place: once for each pair of parts if they are independent."""
    parts, rows = 60, 500
    number = np.repeat(np.arange(parts), rows)
    rows_of = np.full(parts * rows, rows)
    orders = permute(np.tile(np.arange(rows), parts), rows_of, part_keys(epoch_keys(1, "web", 0), number))
    table = orders.reshape(parts, rows)
    same = sum((table[a] == table[b]).sum() for a in range(parts) for b in range(a))
    pairs = parts * (parts - 1) / 2
    assert abs(same - pairs) < 5 * pairs**0.5


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
