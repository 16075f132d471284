"""How layers fall on stages, and what a run says."""

import numpy as np
import pytest

from megaxf.config import validate
from megaxf.plan.stages import balance
from megaxf.plan.throughput.layout import Layout, balanced, layout
from tests.plan.shapes import shape


@pytest.mark.parametrize("head", [0.0, 0.3, 1.0, 2.5, 7.2])
@pytest.mark.parametrize("stages", [2, 3, 4, 7])
def test_the_slowest_stage_is_that_of_the_exact_split(stages, head):
    for layers in range(stages, 40):
        lengths = balance([1.0] * layers, [0.0] * (stages - 1) + [head])
        slowest = max(*lengths[:-1], lengths[-1] + head)
        n, last = balanced(layers, np.asarray(stages), head)
        assert max(float(n), float(last) + head) == pytest.approx(slowest), (layers, lengths, n, last)
        assert last + n * (stages - 1) >= layers


def test_one_stage_holds_all():
    assert [int(part) for part in balanced(32, np.asarray(1), 2.3)] == [32, 32]


def test_shares_that_are_made_again():
    small = shape(1000, 64, 4, 128, 4, 4)
    cut = Layout(small, 64, 1, 1, recompute=np.array(["none", "full", "whole layer"]))
    matrices, attention, activations = cut.remade()
    last = 64 * 128 / (4 * 64 * 64 + 3 * 64 * 128)
    assert matrices == pytest.approx([0, 1 - last, 1])
    assert list(attention) == list(activations) == [0, 1, 1]
    assert Layout(small, 64, 1, 1, recompute="full", recompute_every=4).remade()[1] == 0.25


def test_of_a_run():
    run = validate(
        {
            "run_folder": "unused",
            "model": {
                "vocab_size": 512, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 9,
                "num_attention_heads": 4, "max_position_embeddings": 64,
            },
            "data": {"sources": {"random": {"folder": "unused"}}, "sequence_length": 64},
            "train": {"steps": 1, "global_batch_size": 32, "micro_batch_size": 2, "recompute": "full"},
            "optimizer": {"learning_rate": 1e-4},
            "parallel": {"tensor_parallel_size": 2, "pipeline_parallel_size": 2, "pipeline_layers": [5, 4]},
        },
        "test",
    )  # fmt: skip
    cut = layout(run, 16)
    assert cut.stage_layers == cut.layers() == (5, 4)
    assert (cut.data_parallel_size, cut.micro_batches, cut.tokens) == (4, 4, 128)
    assert (cut.zero_stage, cut.recompute, cut.precision, cut.element) == (1, "full", "bf16", 2)
