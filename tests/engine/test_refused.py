"""A step whose loss is not below a limit changes nothing, on any rank with any engine; below it, all is as without."""

import math

import pytest
import torch

from megaxf.engine import micro_batches
from tests.distributed.tiny import global_batch, own_rows, read_all, tiny_engine, tiny_mesh, tiny_run, train_steps

LAYOUTS = {
    "plain": (0, "fp32", {}),
    "zero1": (1, "bf16", {}),
    "zero2": (2, "fp32", {}),
    "zero3": (3, "bf16", {}),
    "fp16": (1, "fp16", {}),
    "tensor": (1, "fp32", {"tensor_parallel_size": 2, "sequence_parallel": True}),
    "pipeline": (1, "bf16", {"pipeline_parallel_size": 2}),
}


def limited(stage, precision, parallel, limit):
    """(its result, the state after it, the result and the scale of the next step, updates made) of a limited step."""
    run = tiny_run(
        {"intermediate_size": 46}, parallel=parallel, engine={"zero_stage": stage}, train={"precision": precision}
    )
    engine, mesh = tiny_engine(run), tiny_mesh(run)
    train_steps(engine, run, range(2))
    before = read_all(engine)
    batch = micro_batches(own_rows(global_batch(2, run), mesh), run.train.micro_batch_size)
    result = engine.train_step(batch, 1e-3, limit)
    after = read_all(engine)
    same = all(torch.equal(before[name][key], after[name][key]) for name in before for key in before[name])
    (following,) = train_steps(engine, run, range(3, 4))
    return result, same, following, engine.optimizer_step


def unlimited(stage, precision, parallel, steps):
    run = tiny_run(
        {"intermediate_size": 46}, parallel=parallel, engine={"zero_stage": stage}, train={"precision": precision}
    )
    return train_steps(tiny_engine(run), run, steps)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_step_above_the_limit_changes_nothing(run_on, layout):
    settings = LAYOUTS[layout]
    straight = run_on(2, unlimited, *settings, range(4))[0]
    without = run_on(2, unlimited, *settings, [0, 1, 3])[0]
    for result, same, following, updates in run_on(2, limited, *settings, straight[2].loss):
        assert (result.refused, result.skipped, result.grad_norm) == (True, False, math.inf)
        assert result.loss == straight[2].loss, "what the loss was is told"
        assert same and updates == 3
        assert following == without[2]
    for result, same, following, updates in run_on(2, limited, *settings, straight[2].loss + 1e-6):
        assert (result, following) == (straight[2], straight[3])
        assert not same and updates == 4


def poisoned(limit):
    run = tiny_run()
    engine, mesh = tiny_engine(run), tiny_mesh(run)
    with torch.no_grad():
        next(iter(engine.replicated().values()))[:] = math.nan
    batch = micro_batches(own_rows(global_batch(0, run), mesh), run.train.micro_batch_size)
    return engine.train_step(batch, 1e-3, limit).refused


def test_a_loss_that_is_no_number_is_below_no_limit(run_on):
    assert run_on(2, poisoned, math.inf) == [True, True]
