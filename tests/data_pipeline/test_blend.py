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
