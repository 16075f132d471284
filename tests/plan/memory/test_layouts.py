"""The shares of one rank: its weights, and what its layers keep, against what is cut and measured."""

import functools

import pytest
import torch

from megaxf.engine.batch import TorchBatch
from megaxf.models.registry import family
from megaxf.parallel.apply import blank_model, materialise, place
from megaxf.parallel.context import own_columns
from megaxf.parallel.pipeline import keep_stage
from megaxf.parallel.tensor import tensor_cuts
from megaxf.plan.memory.activations import layer_terms
from megaxf.plan.memory.job import jobs
from megaxf.plan.memory.weights import borrowed_table, held_weights
from megaxf.plan.stages import split_layers
from tests.distributed.tiny import tiny_mesh, tiny_run
from tests.plan.memory.saved import saved_by_layer

MODELS = {
    "grouped heads": {"intermediate_size": 48, "num_hidden_layers": 5},
    "one key head, tied": {"intermediate_size": 44, "num_hidden_layers": 5, "num_key_value_heads": 1}
    | {"tie_word_embeddings": True, "qk_norm": True, "attention_bias": True},
}
GPT = {"vocab_size": 61, "hidden_size": 40, "intermediate_size": 44, "num_hidden_layers": 5, "num_attention_heads": 4}
GPT |= {"max_position_embeddings": 32}
FAMILIES = {
    "gpt2": GPT | {"family": "gpt2"},
    "neox": GPT | {"family": "gpt_neox", "rotary_pct": 0.4},
    "neox, one after the other": GPT
    | {"family": "gpt_neox", "rotary_pct": 1.0, "use_parallel_residual": False, "attention_bias": False},
}


@pytest.mark.parametrize("schedule", ["1f1b", "dualpipev"])
@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("model", (MODELS | FAMILIES).values(), ids=MODELS | FAMILIES)
def test_held_weights_are_those_of_the_cut_model(model, ranks, schedule):
    layout = {"tensor_parallel_size": ranks, "pipeline_parallel_size": 2, "pipeline_schedule": schedule}
    run = tiny_run(model, parallel=layout, engine={"zero_stage": 1})
    for parts, job in zip(split_layers(run), jobs(run, 2 * ranks), strict=True):
        built = blank_model(run)
        cuts = tensor_cuts(built, family(run.model.family).TENSOR_PLAN, ranks)
        keep_stage(built, parts)
        expected = []
        for name, weight in built.named_parameters():
            size = list(weight.shape)
            if cuts[name].dim is not None:
                size[cuts[name].dim] = cuts[name].size
            expected.append(tuple(size))
        borrowed = borrowed_table(job)
        assert ([borrowed.size] if borrowed else []) + [weight.size for weight in held_weights(job)] == expected


def kept_and_planned(model, layout, train, seq):
    """(bytes that this rank's first layer keeps, those of the ledger's terms)."""
    run = tiny_run(model, parallel=layout, train={"precision": "bf16"} | train, data={"sequence_length": seq})
    mesh = tiny_mesh(run)
    placed = place(run, mesh)
    materialise(placed, run.seed, "cpu")
    tokens = torch.arange(2 * seq).view(2, seq) % 61
    batch = own_columns(TorchBatch(tokens, tokens), mesh.axis("context"))
    kept = saved_by_layer(placed.model.bfloat16(), batch.tokens, torch.bfloat16)
    (job,) = jobs(run, mesh.world_size, "cpu")
    return kept, sum(layer_terms(job, job.recompute).values())


LAYOUTS = {
    "tensor": {"tensor_parallel_size": 2},
    "sequence": {"tensor_parallel_size": 2, "sequence_parallel": True},
    "context": {"context_parallel_size": 2},
}


@pytest.mark.parametrize("recompute", ["none", "selective", "full"])
@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
def test_a_layer_keeps_the_counted_bytes_on_each_rank(ranks2, layout, recompute):
    measure = functools.partial(ranks2, kept_and_planned)
    for model in MODELS.values():
        for kept, planned in measure(model, layout, {"recompute": recompute}, 16):
            assert kept == planned
    for model in FAMILIES.values():
        for kept, planned in measure(model, layout, {"recompute": recompute, "dropout": 0.1}, 16):
            assert kept == planned
    for kept, planned in measure(MODELS["grouped heads"], layout, {"recompute": recompute, "dropout": 0.1}, 16):
        assert kept == planned
