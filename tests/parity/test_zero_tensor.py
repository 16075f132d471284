"""ZeRO 1 to 3 with tensor parallelism beyond tests/parity/test_matrix.py: four tensor-parallel ranks, and bf16."""

import pytest
import torch

from tests.parity.matrix import assert_same, curve


@pytest.fixture(scope="module")
def expected(run_on):
    """The curve of the reference engine in one process."""
    return lambda model, precision: run_on(1, cell, model, 1, 0, {"micro_batch_size": 4, "precision": precision})[0]


def cell(model, ranks, stage, train):
    return curve(model, parallel={"tensor_parallel_size": ranks}, engine={"zero_stage": stage}, train=train)


@pytest.mark.long
@pytest.mark.parametrize("stage", [1, 2, 3])
def test_one_key_value_head_on_four_ranks(run_on, expected, stage):
    for got in run_on(4, cell, "one kv head", 4, stage, {})[::3]:
        assert_same(got, expected("one kv head", "fp32"), 1e-5)


@pytest.mark.parametrize("stage", [pytest.param(1, marks=pytest.mark.long), pytest.param(2, marks=pytest.mark.long), 3])
def test_bf16(run_on, expected, stage):
    """The tolerances of tests/parity/test_engines.py."""
    (numbers, weights), *_ = run_on(2, cell, "untied", 2, stage, {"precision": "bf16"})
    expected_numbers, expected_weights = expected("untied", "bf16")
    torch.testing.assert_close(numbers[:, [0, 1, 3]], expected_numbers[:, [0, 1, 3]], rtol=1e-3, atol=1e-6)
    torch.testing.assert_close(numbers[:, 2], expected_numbers[:, 2], rtol=5e-3, atol=0)
    for name, weight in weights.items():
        assert (weight - expected_weights[name]).norm() / weight.norm() < 1e-2, name
