"""ZeRO 1 to 3 with tensor, sequence and context parallelism give the one-process curve; see tests/parity/matrix.py."""

import pytest
import torch

from tests.parity.matrix import assert_same, curve

TENSOR = {"tensor_parallel_size": 2}
SEQUENCE = TENSOR | {"sequence_parallel": True}
TENSOR_4 = {"tensor_parallel_size": 4}


@pytest.fixture(scope="module")
def expected(run_on):
    """The curves of the reference engine in one process, by model and settings."""
    found = {}

    def get(model, **train):
        key = str((model, train))
        if key not in found:
            found[key] = run_on(1, cell, model, {}, 0, {"micro_batch_size": 4, **train})[0]
        return found[key]

    return get


def cell(model, parallel, stage, train):
    return curve(model, parallel=parallel, engine={"zero_stage": stage}, train=train)


@pytest.mark.parametrize("model", ["untied", "tied", "one kv head"])
@pytest.mark.parametrize("stage", [1, 2, 3])
def test_tensor_2(run_on, expected, stage, model):
    assert (expected(model)[0][:, 2] > 0.7).all(), "clipping has to be active for the test to mean something"
    for got in run_on(2, cell, model, TENSOR, stage, {}):
        assert_same(got, expected(model), 1e-5)


@pytest.mark.parametrize("recompute", ["selective", "full"])
@pytest.mark.parametrize("stage", [2, 3])
def test_sequence_parallelism_and_recomputation(run_on, expected, stage, recompute):
    """With ZeRO 3, what is computed again needs weights that have been given back."""
    got = run_on(2, cell, "one kv head", SEQUENCE, stage, {"recompute": recompute})[1]
    assert_same(got, expected("one kv head"), 1e-5)


@pytest.mark.parametrize(("parallel", "stage"), [(SEQUENCE, 1), (SEQUENCE, 2), (SEQUENCE, 3), (TENSOR_4, 3)], ids=str)
def test_four_ranks(run_on, expected, parallel, stage):
    """Two tensor-parallel by two data-parallel; one key/value head for four ranks."""
    for got in run_on(4, cell, "one kv head", parallel, stage, {})[::3]:
        assert_same(got, expected("one kv head"), 1e-5)


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_bf16(run_on, expected, stage):
    """The tolerances of tests/parity/test_engines.py."""
    (numbers, weights), *_ = run_on(2, cell, "untied", TENSOR, stage, {"precision": "bf16"})
    expected_numbers, expected_weights = expected("untied", precision="bf16")
    torch.testing.assert_close(numbers[:, [0, 1, 3]], expected_numbers[:, [0, 1, 3]], rtol=1e-3, atol=1e-6)
    torch.testing.assert_close(numbers[:, 2], expected_numbers[:, 2], rtol=5e-3, atol=0)
    for name, weight in weights.items():
        assert (weight - expected_weights[name]).norm() / weight.norm() < 1e-2, name
