"""Checkpoint intervals against a simulation of random failures and against the least of the expected time."""

import numpy as np
import pytest

from megaxf.plan.search.failures import Failures, daly, expected_factor, young

HOUR = 3600.0


def simulate(interval, save, restart, mean, segments, seed):
    """Time over work of a run that saves after each interval, under failures with exponential gaps."""
    draw, spent = np.random.default_rng(seed).exponential, 0.0
    for _ in range(segments):
        need = interval + save
        while (until := draw(mean)) < need:
            spent += until
            need = interval + save + restart
        spent += need
    return spent / (segments * interval)


@pytest.mark.parametrize(("interval", "save", "restart", "mean"), [(1200, 60, 900, 3 * HOUR), (600, 100, 300, HOUR)])
def test_expected_time_is_that_of_simulated_failures(interval, save, restart, mean):
    """Restarts can fail, too: the simulation repeats them, as the closed form's e^(R / M) does."""
    found = simulate(interval, save, restart, mean, 20_000, 1)
    assert expected_factor(interval, save, restart, mean) == pytest.approx(found, rel=0.02)


@pytest.mark.parametrize("save", [10.0, 60.0, 600.0])
@pytest.mark.parametrize("hours", [1.0, 3.1, 50.0])
def test_dalys_interval_is_the_least_of_the_expected_time(save, hours):
    every = np.geomspace(save / 3, 20 * hours * HOUR, 20_001)
    factors = np.array([expected_factor(t, save, 600.0, hours * HOUR) for t in every])
    best = every[np.argmin(factors)]
    assert daly(save, hours * HOUR) == pytest.approx(best, rel=0.01)
    assert abs(young(save, hours * HOUR) / best - 1) >= abs(daly(save, hours * HOUR) / best - 1)


def test_young_by_hand():
    assert young(60, 3 * HOUR) == pytest.approx((2 * 60 * 10_800) ** 0.5)
    assert daly(100, 50) == 50  # saving takes longer than two failures


def test_llama_3_fails_every_three_hours():
    """419 interruptions in 54 days of 16,384 GPUs (arXiv 2407.21783)."""
    assert Failures().mean_seconds(16_384) / HOUR == pytest.approx(54 * 24 / 419, rel=2e-3)
    assert Failures().factor(8) < 1.01 < 1.05 < Failures().factor(16_384)
    assert Failures(gpu_hours=1.0, save_seconds=1e5).factor(100_000) == float("inf")


def test_the_best_interval_costs_least():
    failures = Failures(save_seconds=45, restart_seconds=500)
    best = failures.interval(4096)
    for other in (best / 2, best * 2):
        assert failures.factor(4096, other) > failures.factor(4096)
