"""The order for object stores: lanes of windows of shards."""

from __future__ import annotations

import numpy as np
import pytest

from data_pipeline.order.lanes import LaneOrder, Lanes


def lane_order(rows_per_shard, lanes: int, window: int, batch: int, share: float = 1.0, seed: int = 1) -> LaneOrder:
    return LaneOrder(np.asarray(rows_per_shard), seed, "web", Lanes(lanes, window, batch), share)


def shards_of(rows_per_shard: np.ndarray, rows: np.ndarray) -> np.ndarray:
    return np.searchsorted(np.cumsum(rows_per_shard), rows, side="right")


@pytest.mark.parametrize(
    ("shards", "lanes", "window", "batch", "share"),
    [
        (1, 1, 1, 1, 1.0),
        (1, 8, 4, 16, 1.0),
        (5, 2, 2, 3, 0.4),
        (17, 4, 3, 64, 0.37),
        (100, 8, 16, 512, 2 / 3),
        (300, 64, 4, 512, 1e-9),
        (33, 8, 100, 7, 1.0),
        (40, 7, 1, 10**9, 1.0),
    ],
)
def test_each_epoch_is_another_permutation_whatever_the_sizes_of_shards(shards, lanes, window, batch, share):
    rng = np.random.default_rng(shards)
    sizes = rng.integers(0, 60, shards)
    sizes[0] = 50
    order = lane_order(sizes, lanes, window, batch, share)
    epochs = [order.locate(epoch, np.arange(order.rows)) for epoch in range(3)]
    assert order.rows == sizes.sum()
    for epoch in epochs:
        assert np.array_equal(np.sort(epoch), np.arange(order.rows))
    assert len({tuple(epoch) for epoch in epochs}) == 3
    anywhere = rng.integers(0, order.rows, 300)
    assert np.array_equal(lane_order(sizes, lanes, window, batch, share).locate(1, anywhere), epochs[1][anywhere])


def test_few_shards_are_open_and_a_node_reads_few_of_them():
    """1000 shards, 8 nodes, batches of 512: a batch touches 8 x 16 shards, and each node a few of its own lane."""
    sizes = np.random.default_rng(0).integers(460, 517, 1000)
    order = lane_order(sizes, lanes=8, window=16, batch=512)
    shards = shards_of(sizes, order.locate(0, np.arange(100 * 512))).reshape(100, 8, 64)
    assert np.mean([len(np.unique(batch)) for batch in shards]) < 140
    # 51,200 samples are 105 shards' worth, 13 for each node; one window and its ragged edges hold them.
    assert max(len(np.unique(shards[:, node])) for node in range(8)) <= 20
    # And in the middle of the epoch, where two windows meet.
    later = shards_of(sizes, order.locate(0, np.arange(500 * 512, 600 * 512))).reshape(100, 8, 64)
    assert max(len(np.unique(later[:, node])) for node in range(8)) <= 36


def test_a_batch_that_is_no_whole_number_of_rows_keeps_nodes_in_their_lanes():
    """A source with two thirds of the samples gives 341.33 a batch: the third that is left does not add up."""
    sizes = np.full(1000, 500)
    order = lane_order(sizes, lanes=8, window=16, batch=512, share=2 / 3)
    starts = np.floor(np.arange(1401) * 512 * 2 / 3).astype(np.int64)
    for first in (0, 700, 1300):
        for node in range(8):
            width = np.diff(starts[first : first + 101])
            index = [
                np.arange(begin + size * node // 8, begin + size * (node + 1) // 8)
                for begin, size in zip(starts[first:], width, strict=False)
            ]
            shards = shards_of(sizes, order.locate(0, np.concatenate(index)))
            # Two windows of the lane and two of a neighbour into which the edge reaches by one row.
            assert len(np.unique(shards)) <= 4 * 17


def test_rows_of_a_window_are_as_independent_as_in_a_drawn_order():
    """Chi-square of neighbour pairs on a 64 x 64 grid of places within the one window that there is."""
    order = lane_order(np.full(64, 8192), lanes=1, window=64, batch=1)
    cells = order.locate(0, np.arange(order.rows)) * 64 // order.rows
    counts = np.bincount(cells[:-1] * 64 + cells[1:], minlength=4096)
    expected = (order.rows - 1) / 4096
    assert ((counts - expected) ** 2 / expected).sum() / 4095 < 1.1


def test_the_order_is_the_same_for_ever():
    """A change of these numbers would give every resumed run other data."""
    order = lane_order([3, 4, 5], lanes=2, window=1, batch=4)
    assert order.locate(0, np.arange(12)).tolist() == [0, 2, 8, 7, 1, 3, 9, 6, 4, 5, 10, 11]
