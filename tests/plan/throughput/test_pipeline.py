"""Bubbles against published forms, and against the instructions that run."""

import pytest

from megaxf.engine.timeline import simulate
from megaxf.plan.throughput.pipeline import bubble, bubble_ratio
from tests.plan.digits import Printed


@pytest.mark.parametrize(
    ("stages", "micro_batches", "virtual", "ratio", "share"),
    [
        (4, 8, 1, ".375", ".272727"),
        (8, 32, 1, ".21875", ".179487"),
        (8, 32, 4, ".0546875", ".051852"),
        (8, 8, 1, ".875", ".466667"),
        (16, 16, 1, ".9375", ".483871"),
        (16, 128, 1, ".1171875", ".104895"),
    ],
)
def test_published_ratios(stages, micro_batches, virtual, ratio, share):
    """(p - 1) / (v m) of ideal compute, and its share of the whole (arXiv 2104.04473, section 2.2)."""
    found = bubble_ratio("1f1b", stages, micro_batches, virtual)
    assert found == Printed(ratio)
    assert found / (1 + found) == Printed(share)
    schedule = "interleaved" if virtual > 1 else "1f1b"
    assert float(bubble(schedule, stages, micro_batches, 1, 2, virtual)) / (3 * micro_batches) == pytest.approx(found)


def test_zero_bubble():
    """(p - 1) / (3 m) where F = B = W (arXiv 2401.10241)."""
    assert bubble_ratio("zb-h1", 8, 32) == Printed(".072917")


@pytest.mark.parametrize("schedule", ["1f1b", "interleaved", "dualpipev"])
@pytest.mark.parametrize("backward", [2.0, 2.5, 3.0])
@pytest.mark.parametrize("stages", [2, 3, 4, 8])
def test_simulated_instructions(schedule, backward, stages):
    """Exact, but for interleaved stages whose backward passes are longer than planned: within 3 % of the step."""
    for micro_batches in (2 * stages, 4 * stages):
        step = simulate(schedule, stages, micro_batches, 1.0, backward).length
        found = micro_batches * (1 + backward) + float(bubble(schedule, stages, micro_batches, 1.0, backward))
        exact = schedule != "interleaved" or backward == 2.0
        assert found == pytest.approx(step, rel=1e-9 if exact else 0.03)


def test_one_stage_has_none():
    assert bubble("1f1b", 1, 4, 1.0, 2.0) == 0
