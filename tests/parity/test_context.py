"""Ranks that share the sequence give the one-process curve; see tests/parity/matrix.py.

Rows of 16 tokens: chunks of 4 on two context ranks, of 2 on four. Rows count unequal numbers of targets, and a rank's
columns of a row often none. Larger weights are left to tests/parallel/test_context.py, in float64: in fp32 one process
parts from itself by 1.4e-5 in the norm when only its attention backend changes.
"""

import pytest

from tests.parity.matrix import STEPS, assert_same, curve

CONTEXT = {"context_parallel_size": 2}
CONTEXT_4 = {"context_parallel_size": 4}
TENSOR = CONTEXT | {"tensor_parallel_size": 2}
SEQUENCE = TENSOR | {"sequence_parallel": True}
PIPELINE = CONTEXT | {"pipeline_parallel_size": 2}
OTHER_ORDER = {"order": ["context", "pipeline", "tensor", "data"]}
TRAIN = {"micro_batch_size": 4}
FEWER_STEPS = 10
"""On four ranks: tests/parity/test_matrix.py has curves of 20 steps."""


LONGER_ZERO = ((1, "untied"), (2, "tied"), (3, "untied"))
LONGER = (
    "context 4, ZeRO 3",
    "context 2, data 2",
    "context 2, data 2, ZeRO 2",
    "context 2, tensor 2",
    "context 2, tensor 2 with sequence, ZeRO 1",
    "context 2, tensor 2 with sequence, ZeRO 3",
    "context 2, pipeline 2",
)
"""Left to `make test-all`."""


@pytest.fixture(scope="module")
def expected(run_on):
    """The curves of one process, by model, data and precision."""
    found = {}

    def get(model, isolated=False, steps=STEPS, **train):
        key = str((model, isolated, steps, train))
        if key not in found:
            found[key] = run_on(1, cell, model, {}, 0, isolated, TRAIN | train, steps)[0]
        return found[key]

    return get


def cell(model, parallel, stage=0, isolated=False, train=TRAIN, steps=STEPS):
    data = {"sequence_length": 16, "isolate_documents": isolated}
    return curve(model, steps, parallel=parallel, engine={"zero_stage": stage}, data=data, train=train)


@pytest.mark.parametrize("model", ["untied", "tied", "one kv head"])
@pytest.mark.parametrize("isolated", [False, True])
def test_two_ranks(run_on, expected, model, isolated):
    assert (expected(model, isolated)[0][:, 2] > 0.7).all(), "clipping has to be active for the test to mean something"
    for got in run_on(2, cell, model, CONTEXT, 0, isolated):
        assert_same(got, expected(model, isolated), 1e-5)


@pytest.mark.parametrize(
    ("stage", "model"), [(3, "tied"), *(pytest.param(*case, marks=pytest.mark.long) for case in LONGER_ZERO)]
)
def test_zero(run_on, expected, stage, model):
    assert_same(run_on(2, cell, model, CONTEXT, stage)[1], expected(model), 1e-5)


@pytest.mark.parametrize("recompute", ["selective", "full"])
def test_recomputation_with_dropout(run_on, expected, recompute):
    """Against a process that keeps all: the same elements fall out, whoever computes them and however often."""
    train = TRAIN | {"dropout": 0.2}
    got = run_on(2, cell, "untied", CONTEXT, 0, True, train | {"recompute": recompute})[0]
    assert_same(got, expected("untied", True, dropout=0.2), 1e-5)


FOUR = {
    "context 4": (CONTEXT_4, 0),
    "context 4, ZeRO 3": (CONTEXT_4, 3),
    "context 2, data 2": (CONTEXT, 0),
    "context 2, data 2, ZeRO 2": (CONTEXT, 2),
    "context 2, tensor 2": (TENSOR, 0),
    "context 2, tensor 2, another order": (TENSOR | OTHER_ORDER, 1),
    "context 2, tensor 2 with sequence, ZeRO 1": (SEQUENCE, 1),
    "context 2, tensor 2 with sequence, ZeRO 3": (SEQUENCE, 3),
    "context 2, pipeline 2": (PIPELINE, 1, "tied"),
    "context 2, pipeline 2, two parts a stage": (PIPELINE | {"pipeline_schedule": "dualpipev"}, 1, "four layers"),
}


@pytest.mark.parametrize(
    "layout", [pytest.param(name, marks=[pytest.mark.long] if name in LONGER else []) for name in FOUR]
)
def test_four_ranks(run_on, expected, layout):
    parallel, stage, *model = FOUR[layout]
    model = model[0] if model else "one kv head"
    whole = "data" not in layout and "pipeline" not in layout  # others have fewer rows, or more micro-batches
    train = {"micro_batch_size": 4 if whole else 2, "dropout": 0.2}
    per_rank = run_on(4, cell, model, parallel, stage, True, train, FEWER_STEPS, timeout=300)
    assert_same(per_rank[3], expected(model, True, FEWER_STEPS, dropout=0.2), 1e-5)
