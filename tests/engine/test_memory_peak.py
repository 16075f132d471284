"""The most that a training step really holds at one time, against the planner's ledger."""

import gc

import pytest
import torch

from megaxf.engine import TorchBatch, micro_batches
from megaxf.plan.memory.ledger import ledgers
from tests.distributed.live import Live
from tests.distributed.tiny import tiny_engine, tiny_mesh, tiny_run

MODEL = {
    "hidden_size": 64,
    "intermediate_size": 176,
    "vocab_size": 512,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 256,
}
ROWS, SEQUENCE, VOCABULARY = 8, 128, 64


def peaks(train, model=None, parallel=None, engine=None):
    """(bytes of the tensors that live at the worst moment of a step, the ledger)."""
    model = model or {}
    run = tiny_run(
        model if "family" in model else MODEL | model,
        train={"precision": "bf16", "global_batch_size": ROWS} | train,
        data={"sequence_length": SEQUENCE},
        parallel=parallel or {},
        engine=engine or {},
    )
    mesh = tiny_mesh(run)
    ids = torch.arange(ROWS * (SEQUENCE + 1)).view(ROWS, -1) * 7 % VOCABULARY
    batch = TorchBatch(ids[:, :-1].contiguous(), ids[:, 1:].contiguous(), samples=torch.arange(ROWS))
    own = TorchBatch(*(part if part is None else part.chunk(mesh.data_size)[mesh.data_rank] for part in batch))
    batches = micro_batches(own, run.train.micro_batch_size)
    with Live() as live:
        trained = tiny_engine(run)
        trained.train_step(batches, 1e-3)
        gc.collect()
        live.peak = 0
        trained.train_step(batches, 1e-3)
    return live.peak, ledgers(run, mesh.world_size, "cpu")[mesh.axis("pipeline").rank]


@pytest.mark.parametrize(
    ("recompute", "every", "size", "model"),
    [
        ("none", 1, 2, {}),
        ("none", 1, 8, {}),
        ("selective", 1, 2, {}),
        ("full", 1, 2, {}),
        ("full", 1, 8, {}),
        ("full", 2, 8, {}),
        ("none", 1, 2, {"vocab_size": 3000}),
        ("none", 1, 8, {"vocab_size": 20000}),
    ],
)
def test_the_peak_of_a_step_is_that_of_the_ledger(recompute, every, size, model):
    settings = {"recompute": recompute, "recompute_every": every, "micro_batch_size": size}
    peak, ledger = peaks(settings, model)
    assert ledger.peak == pytest.approx(peak, rel=0.05)


GPT = {key: MODEL[key] for key in MODEL.keys() - {"num_key_value_heads", "head_dim"}}


@pytest.mark.parametrize("recompute", ["none", "selective", "full"])
@pytest.mark.parametrize("family", ["gpt2", "gpt_neox"])
def test_the_peak_of_other_families(family, recompute):
    peak, ledger = peaks({"recompute": recompute, "micro_batch_size": 4}, GPT | {"family": family, "vocab_size": 3000})
    assert ledger.peak == pytest.approx(peak, rel=0.05)


@pytest.mark.parametrize(
    "layout", [{"tensor_parallel_size": 2, "sequence_parallel": True}, {"context_parallel_size": 2}]
)
@pytest.mark.parametrize("recompute", ["none", "full"])
def test_the_peak_where_ranks_share_the_work(ranks2, recompute, layout):
    for peak, ledger in ranks2(peaks, {"recompute": recompute, "micro_batch_size": 4}, None, layout):
        assert ledger.peak == pytest.approx(peak, rel=0.05)


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_the_peak_under_zero(ranks2, stage):
    for peak, ledger in ranks2(peaks, {"micro_batch_size": 2}, None, None, {"zero_stage": stage}):
        assert ledger.peak == pytest.approx(peak, rel=0.05)


@pytest.mark.parametrize("schedule", ["1f1b", "dualpipev"])
def test_the_peak_of_pipeline_stages(ranks2, schedule):
    """Layers that keep little, so that what stages keep for one another shows."""
    layout = {"pipeline_parallel_size": 2, "pipeline_schedule": schedule}
    settings = {"recompute": "full", "micro_batch_size": 2}
    for peak, ledger in ranks2(peaks, settings, {"vocab_size": VOCABULARY}, layout, {"zero_stage": 1}):
        assert ledger.peak == pytest.approx(peak, rel=0.03)
