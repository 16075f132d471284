"""The equality matrix: every layout gives the losses, gradient norms, evaluation and weights of one process.

fp32, 20 steps, 1e-5 relative: the bound of tests/parity/test_engines.py for the reasons given there. A cell is a layout
with a kind of model and of recomputation. `make test` takes one of nearly each layout, such that all kinds come by;
`make test-all` takes the whole product. Rows have unequal numbers of targets, and clipping is active in every step.
"""

from itertools import product

import pytest

from tests.parity.matrix import assert_same, curve

TENSOR = {"tensor_parallel_size": 2}
SEQUENCE = TENSOR | {"sequence_parallel": True}
CONTEXT = {"context_parallel_size": 2}
STAGES = {"pipeline_parallel_size": 2}
SCHEDULES = ("1f1b", "interleaved", "dualpipev")

LAYOUTS = {
    "DP 2": (2, {}, 0),
    "TP 2": (2, TENSOR, 0),
    "TP 2 + SP": (2, SEQUENCE, 0),
    "CP 2": (2, CONTEXT, 0),
    **{f"DP 2, ZeRO {stage}": (2, {}, stage) for stage in (1, 2, 3)},
    **{f"TP 2, ZeRO {stage}": (2, TENSOR, stage) for stage in (1, 2, 3)},
    **{f"TP 2 + SP x DP 2, ZeRO {stage}": (4, SEQUENCE, stage) for stage in (1, 2, 3)},
    **{f"CP 2, ZeRO {stage}": (2, CONTEXT, stage) for stage in (1, 2, 3)},
    **{f"PP 2, {name}": (2, STAGES | {"pipeline_schedule": name}, 1) for name in SCHEDULES},
    **{f"PP 2 x TP 2 + SP, {name}": (4, STAGES | SEQUENCE | {"pipeline_schedule": name}, 1) for name in SCHEDULES},
    **{f"PP 2 x DP 2, {name}": (4, STAGES | {"pipeline_schedule": name}, 1) for name in SCHEDULES},
    "PP 2 x CP 2": (4, STAGES | CONTEXT, 1),
    "PP 2 x TP 2 x DP 2": (8, STAGES | TENSOR, 1),
    "CP 2 x TP 2 + SP x DP 2": (8, CONTEXT | SEQUENCE, 2),
}
"""Name -> ranks, section `parallel`, ZeRO stage."""

MODELS = ("five layers", "five layers, tied", "one kv head, five layers")
RECOMPUTE = {
    "none": {},
    "selective": {"recompute": "selective"},
    "full": {"recompute": "full"},
    "every 2nd layer": {"recompute": "full", "recompute_every": 2},
}
KINDS = list(product(MODELS, RECOMPUTE))
LONGER = (
    "TP 2 + SP x DP 2, ZeRO 1",
    "TP 2 + SP x DP 2, ZeRO 2",
    "PP 2 x TP 2 + SP, interleaved",
    "PP 2 x TP 2 + SP, dualpipev",
    "PP 2 x DP 2, interleaved",
    "PP 2 x DP 2, dualpipev",
    "CP 2 x TP 2 + SP x DP 2",
    "PP 2 x TP 2 x DP 2",
    "DP 2, ZeRO 1",
    "DP 2, ZeRO 2",
    "TP 2, ZeRO 2",
    "CP 2, ZeRO 1",
    "CP 2, ZeRO 2",
)
"""Layouts left to `make test-all` wholly: each joins what others have apart, or lies between two others."""


def _cells():
    """All cells; those that `make test` leaves out are marked `long`."""
    for number, layout in enumerate(sorted(LAYOUTS, key=LONGER.__contains__)):
        for kind, (model, recompute) in enumerate(KINDS):
            taken = kind == 5 * number % len(KINDS) and layout not in LONGER
            marks = [] if taken else [pytest.mark.long]
            yield pytest.param(layout, model, recompute, id=f"{layout}-{model}-{recompute}", marks=marks)


@pytest.fixture(scope="module")
def one_process(run_on):
    """The curves of the reference engine in one process without recomputation, by model."""
    return {model: run_on(1, cell, model, {}, 0, {"micro_batch_size": 4})[0] for model in MODELS}


def cell(model, parallel, stage, train):
    return curve(model, data={"sequence_length": 16}, parallel=parallel, engine={"zero_stage": stage}, train=train)


def _micro_batch_size(layout):
    """Two accumulate, of the 8 rows that a group of data-parallel ranks shares; 2 stages take 4."""
    if "PP" in layout:
        return 1 if "x DP 2" in layout else 2
    return 2 if "DP" in layout else 4


@pytest.mark.parametrize(("layout", "model", "recompute"), list(_cells()))
def test_cell(run_on, one_process, layout, model, recompute):
    ranks, parallel, stage = LAYOUTS[layout]
    expected = one_process[model]
    assert (expected[0][:-1, 2] > 0.7).all(), "clipping has to be active for the test to mean something"
    train = {"micro_batch_size": _micro_batch_size(layout)} | RECOMPUTE[recompute]
    for got in run_on(ranks, cell, model, parallel, stage, train, timeout=600):
        assert_same(got, expected, 1e-5)


def test_the_short_matrix_has_every_layout_model_and_recomputation():
    taken = [cell.values for cell in _cells() if not cell.marks]
    assert {layout for layout, _, _ in taken} == set(LAYOUTS) - set(LONGER)
    assert {(model, recompute) for _, model, recompute in taken} == set(KINDS)
