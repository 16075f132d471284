"""Tensor and sequence parallelism on the plain-torch engine give the one-process curve; see tests/parity/matrix.py."""

import pytest

from tests.parity.matrix import assert_same, curve

TENSOR = {"tensor_parallel_size": 2}
SEQUENCE = TENSOR | {"sequence_parallel": True}
TENSOR_4 = {"tensor_parallel_size": 4}


@pytest.fixture(scope="module")
def expected(run_on):
    """The curves of one process, by model and precision."""
    found = {}

    def get(model, **train):
        key = str((model, train))
        if key not in found:
            found[key] = run_on(1, cell, model, {}, {"micro_batch_size": 4, **train})[0]
        return found[key]

    return get


def cell(model, parallel, train):
    return curve(model, parallel=parallel, train=train)


@pytest.mark.parametrize("model", ["untied", "tied", "one kv head"])
@pytest.mark.parametrize("parallel", [TENSOR, SEQUENCE], ids=["tensor 2", "tensor 2, sequence"])
def test_fp32(run_on, expected, parallel, model):
    assert (expected(model)[0][:, 2] > 0.7).all(), "clipping has to be active for the test to mean something"
    for got in run_on(2, cell, model, parallel, {}):
        assert_same(got, expected(model), 1e-5)


@pytest.mark.parametrize("model", ["untied", "one kv head"])
def test_four_ranks_and_two_by_two(run_on, expected, model):
    assert_same(run_on(4, cell, model, TENSOR_4, {})[0], expected(model), 1e-5)
    assert_same(run_on(4, cell, model, SEQUENCE, {})[3], expected(model), 1e-5)
