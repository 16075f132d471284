"""Learning rates by hand-computed values, and at the edges (field reports 71 and 72)."""

import math
from typing import get_args

import pytest

from megaxf.config import Schedule
from megaxf.train.schedules import SHAPES, learning_rate


def rate(step, steps=1000, peak=3e-4, **schedule):
    return learning_rate(step, Schedule(**schedule), peak, steps)


@pytest.mark.parametrize(
    ("step", "expected"),
    [
        (1, 3e-6),
        (50, 1.5e-4),
        (100, 3e-4),
        (325, 2.604594154601839e-4),
        (550, 1.65e-4),
        (775, 6.954058453981609e-5),
        (1000, 3e-5),
        (1001, 3e-5),
    ],
)
def test_cosine(step, expected):
    assert rate(step, kind="cosine", warmup_steps=100, min_learning_rate=3e-5) == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize(
    ("shape", "step", "expected"),
    [
        ("linear", 99, 2.97e-4),
        ("linear", 100, 3e-4),
        ("linear", 900, 3e-4),
        ("linear", 925, 2.25e-4),
        ("linear", 950, 1.5e-4),
        ("linear", 1000, 0.0),
        ("sqrt", 900, 3e-4),
        ("sqrt", 925, 1.5e-4),
        ("sqrt", 950, 8.786796564403573e-5),
        ("sqrt", 1000, 0.0),
    ],
)
def test_warmup_stable_decay(shape, step, expected):
    for settings in ({}, {"decay_steps": 100}):
        found = rate(step, kind="warmup_stable_decay", warmup_steps=100, decay_shape=shape, **settings)
        assert found == pytest.approx(expected, rel=1e-12)


def test_the_others():
    assert [rate(s, kind="constant", warmup_steps=2) for s in (1, 2, 3, 1000)] == [1.5e-4, 3e-4, 3e-4, 3e-4]
    linear = {"kind": "linear", "warmup_steps": 200, "min_learning_rate": 1e-4}
    assert [rate(s, **linear) for s in (100, 200, 600, 1000)] == pytest.approx([1.5e-4, 3e-4, 2e-4, 1e-4])
    root = {"kind": "inverse_sqrt", "warmup_steps": 100}
    assert [rate(s, **root) for s in (50, 100, 400, 900)] == pytest.approx([1.5e-4, 3e-4, 1.5e-4, 1e-4])
    assert rate(4, kind="inverse_sqrt") == pytest.approx(1.5e-4)


@pytest.mark.parametrize("kind", get_args(Schedule.model_fields["kind"].annotation))
@pytest.mark.parametrize("warmup", [0, 1, 4, 5])
def test_short_runs_have_finite_rates_and_a_first_update(kind, warmup):
    rates = [rate(step, steps=5, peak=1.0, kind=kind, warmup_steps=warmup) for step in range(1, 6)]
    assert all(math.isfinite(value) and 0 <= value <= 1 for value in rates)
    assert rates[0] > 0
    assert rates[max(warmup, 1) - 1] == pytest.approx(
        1.0 if warmup or kind in ("constant", "inverse_sqrt") else rates[0]
    )


def test_every_kind_has_a_shape():
    assert set(SHAPES) == set(get_args(Schedule.model_fields["kind"].annotation))
