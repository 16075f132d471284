"""Weights, gradients and optimizer state that the engines really hold, against the planner's ledger."""

import gc

import pytest
from torch.optim.optimizer import register_optimizer_step_pre_hook

from megaxf.engine import micro_batches
from megaxf.plan.memory.job import jobs
from megaxf.plan.memory.rows import UPDATE
from megaxf.plan.memory.states import state_rows
from tests.distributed.live import Live
from tests.distributed.tiny import global_batch, own_rows, tiny_engine, tiny_mesh, tiny_run

SEQUENCE = 16
LEAST = 25
"""Bytes: smaller tensors are counters, sums, norms and scales, which no row is about."""


def held_at_the_update(settings, model):
    """(bytes of the tensors that live when AdamW begins its second step, those of the ledger's rows)."""
    run = tiny_run(model, **settings)
    own = own_rows(global_batch(0), tiny_mesh(run))
    own = own._replace(tokens=own.tokens[:, :SEQUENCE], labels=own.labels[:, :SEQUENCE])
    batch = micro_batches(own, run.train.micro_batch_size)
    held = []
    with Live(LEAST) as live:
        engine = tiny_engine(run)
        for _ in range(2):
            held.clear()
            hook = register_optimizer_step_pre_hook(lambda *_: held.append(live.now))
            engine.train_step(batch, 1e-3)
            hook.remove()
            gc.collect()
    rows = state_rows(jobs(run, tiny_mesh(run).world_size, "cpu")[0])
    planned = sum(row.bytes for row in rows if UPDATE in row.when)
    # The engine's copy of this rank's columns: tokens and labels in 8 bytes each.
    context = run.parallel.context_parallel_size
    columns = 16 * own.tokens.numel() // context if context > 1 else 0
    return held[0] - columns, planned


TENSOR = {"tensor_parallel_size": 2}
LAYOUTS = {
    "data": {},
    "sequence": TENSOR | {"sequence_parallel": True},
    "context": {"context_parallel_size": 2},
}
EVEN = {"intermediate_size": 46, "head_dim": 14}


def check(per_rank):
    """The ledger is about the rank that has the most."""
    assert max(held for held, _ in per_rank) == per_rank[0][1]


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_states_in_bf16(ranks2, stage, layout):
    settings = {
        "train": {"precision": "bf16"},
        "engine": {"zero_stage": stage},
        "parallel": layout,
        "data": {"sequence_length": SEQUENCE},
    }
    check(ranks2(held_at_the_update, settings, EVEN))


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_states_in_fp32(ranks2, stage):
    check(ranks2(held_at_the_update, {"engine": {"zero_stage": stage}}, EVEN))


@pytest.mark.parametrize("stage", [0, 1, 3])
def test_states_with_copied_key_heads_and_a_tied_table(ranks2, stage):
    model = EVEN | {"num_key_value_heads": 1, "tie_word_embeddings": True, "qk_norm": True, "attention_bias": True}
    settings = {"train": {"precision": "bf16"}, "engine": {"zero_stage": stage}, "parallel": TENSOR}
    check(ranks2(held_at_the_update, settings, model))


@pytest.mark.parametrize(
    ("stage", "settings"),
    [
        (1, {"train": {"precision": "fp16"}}),
        (2, {"train": {"precision": "fp16"}}),
        (1, {"engine": {"offload_optimizer": "cpu"}}),
        (2, {"engine": {"offload_optimizer": "cpu"}}),
        (3, {"engine": {"offload_optimizer": "cpu", "offload_parameters": "cpu"}}),
    ],
)
def test_states_in_fp16_and_offloaded(ranks2, stage, settings):
    train, engine = settings.get("train", {}), settings.get("engine", {})
    all_settings = {"train": {"precision": "bf16"} | train, "engine": {"zero_stage": stage} | engine}
    check(ranks2(held_at_the_update, all_settings, EVEN))
