"""Sums over micro-batches and small updates survive bf16, and the loss is one mean whatever the cut."""

import pytest
import torch

from megaxf.engine import TorchBatch, micro_batches
from tests.distributed.tiny import ROWS, global_batch, read_all, tiny_engine, tiny_run

SMALL = {"num_hidden_layers": 1, "hidden_size": 8, "intermediate_size": 12, "num_attention_heads": 2, "head_dim": 6}
REPEATS = 320


def norm_of_repeats(stage, repeats):
    """The gradient norm of one step over the same micro-batch many times; each adds 1/repeats of the gradient."""
    run = tiny_run(SMALL, train={"precision": "bf16", "micro_batch_size": 1}, engine={"zero_stage": stage})
    batch = TorchBatch(*(part[:1] for part in global_batch(3)[:2]))
    return tiny_engine(run).train_step([batch] * repeats, 1e-3).grad_norm


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_many_small_gradients_add_up(run_on, stage):
    """A bf16 sum of equal numbers sticks once it is 256 times one of them: at 0.8 of the norm here."""
    (once,) = run_on(1, norm_of_repeats, stage, 1)
    (many,) = run_on(1, norm_of_repeats, stage, REPEATS)
    assert many == pytest.approx(once, rel=4e-3)


def small_updates(stage):
    """Norm weights, which start at 1, after 100 updates of 1e-4: masters, and those that the model computes with."""
    run = tiny_run(SMALL, train={"precision": "bf16", "micro_batch_size": ROWS}, engine={"zero_stage": stage})
    engine = tiny_engine(run)
    for _ in range(100):
        engine.train_step([global_batch(0)], 1e-4)
    with engine.model_for_inference() as model:
        used = model.get_parameter("model.norm.weight").detach().clone()
    return read_all(engine)["model.norm.weight"]["master"], used


@pytest.mark.parametrize("stage", [0, 1, 2, 3])
def test_small_updates_reach_the_masters(run_on, stage):
    """Half of the distance between 1 and the bf16 number below it is 0.002: updates of 1e-4 made in bf16 vanish."""
    for master, used in run_on(1, small_updates, stage):
        assert used.dtype == torch.bfloat16
        assert torch.equal(used, master.bfloat16())
        assert 0.008 < (master - 1).abs().max() < 0.012
        assert (used != 1).any()


def mean_loss(stage, micro):
    """The loss of two sequences, one with 15 counted targets and one with 1."""
    ranks = torch.distributed.get_world_size()
    run = tiny_run(train={"global_batch_size": 2, "micro_batch_size": micro}, engine={"zero_stage": stage})
    whole = global_batch(0)
    labels = whole.labels[:2].clone().clamp(min=0)
    labels[0, 15:], labels[1, 1:] = -100, -100
    batch = TorchBatch(whole.tokens[:2], labels)
    share = 2 // ranks
    rank = torch.distributed.get_rank()
    own = TorchBatch(*(part[rank * share : (rank + 1) * share] for part in batch[:2]))
    engine = tiny_engine(run)
    sums = [engine.evaluate(TorchBatch(*(part[row : row + 1] for part in batch[:2]))) for row in range(2)]
    result = engine.train_step(micro_batches(own, micro), 1e-3)
    return result.loss, result.grad_norm, sum(nll for nll, _ in sums) / 16, [count for _, count in sums]


def test_the_loss_is_the_mean_over_all_targets(run_on):
    """No mean of means: 15 targets and 1, in one micro-batch, in two, and on two ranks."""
    norms = []
    for ranks, stage, micro in [(1, 0, 2), (1, 0, 1), (2, 0, 1), (1, 1, 1), (2, 1, 1), (2, 3, 1)]:
        loss, norm, expected, counts = run_on(ranks, mean_loss, stage, micro)[0]
        assert counts == [15, 1]
        assert loss == pytest.approx(expected, rel=1e-6)
        norms.append(norm)
    assert norms == pytest.approx([norms[0]] * len(norms), rel=1e-5)
