"""Intervals of the default law against 1,000 bootstraps of the same 240 points, made independently."""

import numpy as np
import pytest

from megaxf.plan.laws.spread import EPOCH_SPREAD, interval

SAMPLE = EPOCH_SPREAD.sample()


@pytest.mark.parametrize(
    ("flops", "low", "median", "high"),
    [(5.76e23, 10.35, 17.40, 28.72), (1e21, 17.17, 21.08, 26.20), (1e25, 8.24, 16.0, 29.9)],
)
def test_tokens_per_parameter(flops, low, median, high):
    """Two bootstraps of 1,000 differ by 2 to 3 % in these percentiles."""
    found = interval(flops / 6 / SAMPLE.parameters(flops) ** 2)
    assert found == pytest.approx((low, median, high), rel=0.04)


def test_size_at_gopher_s_budget():
    found = interval(SAMPLE.parameters(5.76e23))
    assert found == pytest.approx((5.78e10, 7.43e10, 9.63e10), rel=0.02)


def test_spread_of_the_constants():
    """Standard deviations and 95 % intervals of the exponents and of E; A and B are hardly known."""
    deviations = [np.std(value) for value in (SAMPLE.E, SAMPLE.alpha, SAMPLE.beta, SAMPLE.exponent)]
    assert deviations == pytest.approx([0.0249, 0.0146, 0.0204, 0.0193], rel=0.05)
    for value, ends in (
        (SAMPLE.exponent, (0.4806, 0.5554)),
        (SAMPLE.alpha, (0.3188, 0.3719)),
        (SAMPLE.beta, (0.3307, 0.4170)),
        (SAMPLE.E, (1.7720, 1.8701)),
    ):
        assert np.percentile(value, [2.5, 97.5]) == pytest.approx(ends, abs=0.008)


def test_an_interval_holds_eight_tenths():
    assert interval(np.arange(101.0)) == (10, 50, 90)
    assert interval(np.where(np.arange(101.0) > 80, np.inf, 1)) == (1, 1, np.inf)
