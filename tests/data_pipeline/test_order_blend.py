"""Sources mixed by weight, as a function of the position."""

from __future__ import annotations

import numpy as np
import pytest

from data_pipeline.order.blend import Blend


def test_an_extreme_weight_draws_its_share():
    blend = Blend([0.002, 0.998])
    source, index = blend.locate(np.arange(7500))
    assert np.bincount(source).tolist() == [15, 7485] == blend.counts(7500)
    assert np.array_equal(np.bincount(index[source == 0] % 5), [3] * 5)


@pytest.mark.parametrize("sources", [1, 2, 3, 4, 50, 1000])
def test_every_prefix_keeps_to_the_weights(sources):
    weights = np.random.default_rng(sources).lognormal(sigma=2, size=sources)
    blend = Blend(weights.tolist())
    source, index = blend.locate(np.arange(100_000))
    share = weights / weights.sum()
    for prefix in [*range(1, 500, 7), 999, 12_345, 100_000]:
        counts = np.bincount(source[:prefix], minlength=sources)
        assert np.abs(counts - share * prefix).max() < 3
        assert counts.tolist() == blend.counts(prefix)
    for number in range(min(sources, 4)):
        assert np.array_equal(index[source == number], np.arange((source == number).sum()))


@pytest.mark.parametrize("sources", [4, 50, 1000])
def test_no_prefix_is_three_samples_off(sources):
    """Of two million samples, and at random positions up to 10^15: counted with whole numbers."""
    rng = np.random.default_rng(sources)
    weights = rng.integers(1, 10**6, sources)
    blend = Blend(weights.tolist())
    total = int(weights.sum())
    source, index = blend.locate(np.arange(2_000_000))
    for number in range(sources):
        # A count is furthest from its share just before and just after a sample of the source.
        at = np.flatnonzero(source == number)
        assert np.array_equal(index[at], np.arange(len(at)))
        share = at * (weights[number] / total)
        assert max(np.abs(np.arange(len(at)) - share).max(), np.abs(np.arange(1, len(at) + 1) - share).max()) < 3
    for position in rng.integers(0, 10**15, 50).tolist():
        counts = blend.counts(position)
        assert sum(counts) == position
        off = [abs(count * total - position * w) / total for count, w in zip(counts, weights.tolist(), strict=True)]
        assert max(off) < 3


def test_a_weight_of_zero_gives_nothing():
    blend = Blend([0, 0, 1, 0, 3])
    source, _ = blend.locate(np.arange(10**12, 10**12 + 400))
    assert np.bincount(source, minlength=5).tolist() == [0, 0, 100, 0, 300]
    assert blend.counts(10**15)[:2] == [0, 0]


@pytest.mark.parametrize("start", [0, 10**9 + 7, 10**15, 2**62])
def test_any_position_is_found_directly(start):
    blend = Blend([0.7, 0.2, 0.1])
    source, index = blend.locate(np.arange(start, start + 1000))
    before, after = blend.counts(start), blend.counts(start + 1000)
    assert sum(before) == start
    for number in range(3):
        assert np.array_equal(index[source == number], np.arange(before[number], after[number]))


def test_only_ratios_count():
    positions = np.arange(2**40, 2**40 + 500)
    a, b = Blend([1, 3, 4]).locate(positions), Blend([0.25, 0.75, 1.0]).locate(positions)
    assert np.array_equal(a, b)


def test_the_mix_is_the_same_for_ever():
    """A change of these numbers would give every resumed run other data."""
    source, index = Blend([2.0, 1.0, 1.0]).locate(np.arange(8))
    assert source.tolist() == [0, 1, 0, 2, 0, 1, 0, 2]
    assert index.tolist() == [0, 0, 1, 0, 2, 1, 3, 1]
