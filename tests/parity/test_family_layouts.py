"""GPT-2 and GPT-NeoX in every layout give the losses, gradient norms, evaluation and weights of one process.

As tests/parity/test_matrix.py: fp32, 1e-5 relative. What they have beyond Llama: a table of positions beside the
embedding, biases of row-parallel maps and of norms, two branches of one input, q, k and v in one matrix.
"""

import pytest

from tests.parity.matrix import FAMILIES, assert_same, curve

STEPS = 5
TENSOR = {"tensor_parallel_size": 2}
SEQUENCE = TENSOR | {"sequence_parallel": True}
CONTEXT = {"context_parallel_size": 2}
STAGES = {"pipeline_parallel_size": 2}
PACKED = {"isolate_documents": True}
LAYOUTS = {
    "TP 2": (2, TENSOR, 0, {}, {}),
    "TP 2 + SP, dropout": (2, SEQUENCE, 0, {}, {"dropout": 0.1}),
    "CP 2": (2, CONTEXT, 0, {}, {}),
    "CP 2, packed, selective": (2, CONTEXT, 0, PACKED, {"recompute": "selective"}),
    "PP 2": (2, STAGES, 1, {}, {}),
    "PP 2, packed, full": (2, STAGES, 1, PACKED, {"recompute": "full"}),
    **{f"ZeRO {stage}": (2, {}, stage, {}, {}) for stage in (1, 2, 3)},
    "TP 2 + SP, ZeRO 3": (2, SEQUENCE, 3, {}, {}),
    "PP 2, dualpipev": (2, STAGES | {"pipeline_schedule": "dualpipev"}, 1, {}, {}),
    "PP 2 x TP 2 + SP, interleaved": (4, STAGES | SEQUENCE | {"pipeline_schedule": "interleaved"}, 1, {}, {}),
    "CP 2 x TP 2 + SP, packed": (4, CONTEXT | SEQUENCE, 0, PACKED, {}),
}
"""Name -> ranks, section `parallel`, ZeRO stage, sections `data` and `train`."""
SHORT = {
    "gpt2": ("TP 2 + SP, dropout", "CP 2, packed, selective", "PP 2, packed, full"),
    "neox": ("TP 2 + SP, dropout", "ZeRO 3"),
}
"""The cells of `make test`."""


def _cells():
    for model in FAMILIES:
        for layout in LAYOUTS:
            marks = [] if layout in SHORT.get(model, ()) else [pytest.mark.long]
            yield pytest.param(layout, model, id=f"{layout}-{model}", marks=marks)


@pytest.fixture(scope="module")
def one_process(run_on):
    """The curve of the reference engine in one process, by its model and settings; each is made once."""
    made = {}

    def find(model, data, dropout):
        key = model, *data, dropout
        if key not in made:
            train = {"micro_batch_size": 4, "dropout": dropout}
            made[key] = run_on(1, cell, model, {}, 0, data, train)[0]
        return made[key]

    return find


def cell(model, parallel, stage, data, train):
    engine, data = {"zero_stage": stage}, {"sequence_length": 16} | data
    return curve(model, STEPS, data=data, parallel=parallel, engine=engine, train=train)


@pytest.mark.parametrize(("layout", "model"), list(_cells()))
def test_cell(run_on, one_process, layout, model):
    ranks, parallel, stage, data, train = LAYOUTS[layout]
    expected = one_process(model, data, train.get("dropout", 0.0))
    for got in run_on(ranks, cell, model, parallel, stage, data, {"micro_batch_size": 1} | train):
        assert_same(got, expected, 1e-5)
