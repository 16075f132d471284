"""fp16: the scale of the loss is invisible in every number, and a step that overflows changes nothing on any rank."""

import math

import pytest
import torch

from megaxf.engine import loss_scale
from tests.distributed.tiny import read_all, tiny_engine, train_steps, write_all
from tests.parity.matrix import matrix_run

TENSOR = {"tensor_parallel_size": 2}
LAYOUTS = [({}, 1), ({}, 2), ({}, 3), (TENSOR, 1), (TENSOR, 3)]


@pytest.fixture(scope="module")
def exact(run_on):
    """Three steps of the reference engine in fp32."""
    return run_on(1, three_steps, {}, 0, "fp32")[0]


def fresh(parallel, stage, precision):
    run = matrix_run("untied", parallel=parallel, engine={"zero_stage": stage}, train={"precision": precision})
    return run, tiny_engine(run)


def length(engine, key):
    return math.sqrt(sum(float(tensors[key].square().sum()) for tensors in read_all(engine).values()))


def three_steps(parallel, stage, precision, first=loss_scale.FIRST, patience=loss_scale.PATIENCE):
    """(loss, norm, length of AdamW's first moment, skipped) of each of three steps."""
    before = loss_scale.FIRST, loss_scale.PATIENCE
    loss_scale.FIRST, loss_scale.PATIENCE = first, patience
    try:
        run, engine = fresh(parallel, stage, precision)
        rows = []
        for step in range(3):
            (result,) = train_steps(engine, run, range(step, step + 1))
            rows.append((result.loss, result.grad_norm, length(engine, "exp_avg"), result.skipped))
    finally:
        loss_scale.FIRST, loss_scale.PATIENCE = before
    return torch.tensor(rows, dtype=torch.float64)


@pytest.mark.parametrize(("parallel", "stage"), LAYOUTS, ids=str)
@pytest.mark.parametrize(("first", "patience"), [(2.0**10, 1000), (2.0**16, 2)])
def test_steps_do_not_show_the_scale(run_on, exact, parallel, stage, first, patience):
    """Also where it has just been doubled. fp16 keeps 11 bits: products are off by up to 5e-4."""
    for rows in run_on(2, three_steps, parallel, stage, "fp16", first, patience):
        torch.testing.assert_close(rows[:, 0], exact[:, 0], rtol=5e-4, atol=0)
        torch.testing.assert_close(rows[:, 1:3], exact[:, 1:3], rtol=2e-3, atol=0)
        assert not rows[:, 3].any()


def overflow(parallel, stage):
    """A gradient on rank 1 is infinite in the first step: what that step gives, and the next one."""
    run, engine = fresh(parallel, stage, "fp16")
    before = read_all(engine)
    weight = engine._weights["model.layers.1.mlp.up_proj.weight"]
    spoil = torch.distributed.get_rank() == 1
    hook = weight.register_hook(lambda gradient: torch.full_like(gradient, torch.inf) if spoil else gradient)
    (skipped,) = train_steps(engine, run, range(1))
    hook.remove()
    after, count, scale = read_all(engine), engine.optimizer_step, engine._loss_scale.value
    unchanged = all(torch.equal(before[name]["master"], after[name]["master"]) for name in before)
    (result,) = train_steps(engine, run, range(1))
    return skipped, (count, scale, unchanged), result, engine.optimizer_step


@pytest.mark.parametrize(("parallel", "stage"), LAYOUTS, ids=str)
def test_an_overflow_on_one_rank_skips_the_step_on_all(run_on, exact, parallel, stage):
    for skipped, state, result, count in run_on(2, overflow, parallel, stage):
        assert (skipped.skipped, skipped.grad_norm) == (True, math.inf)
        assert skipped.loss == pytest.approx(float(exact[0, 0]), rel=5e-4)
        assert state == (0, loss_scale.FIRST / 2, True)
        assert (result.skipped, count) == (False, 1)
        assert result.grad_norm == pytest.approx(float(exact[0, 1]), rel=2e-3)


def search(stage):
    """From a factor that is far too large: (skipped, updates, factor) of each step."""
    run, engine = fresh({}, stage, "fp16")
    engine._loss_scale.value = 2.0**24
    engine._set_loss_scale()
    rows = []
    for _ in range(12):
        (result,) = train_steps(engine, run, range(1))
        rows.append((result.skipped, engine.optimizer_step, engine._loss_scale.value))
    return rows


@pytest.mark.parametrize("stage", [1, 3])
def test_the_factor_falls_until_it_fits(ranks2, stage):
    for rows in ranks2(search, stage):
        skips = sum(skipped for skipped, *_ in rows)
        assert 2 <= skips <= 10
        for step, (skipped, count, factor) in enumerate(rows):
            assert (skipped, count) == (step < skips, max(0, step + 1 - skips))
            assert factor == 2.0 ** (24 - min(step + 1, skips))


def test_rules_of_the_factor():
    scale = loss_scale.LossScale()
    for _ in range(loss_scale.PATIENCE):
        assert not scale.update(overflowed=False)
    assert scale.value == 2 * loss_scale.FIRST
    assert scale.update(overflowed=True)
    for _ in range(loss_scale.PATIENCE - 1):
        scale.update(overflowed=False)
    assert scale.value == loss_scale.FIRST
    while scale.value > 1:
        assert scale.update(overflowed=True)
    assert not scale.update(overflowed=True), "below 1 the fault is not the factor's"
    assert scale.value == 1


def resumed(stage):
    """Losses and norms of steps 2 and 3 of a straight run, and of one that goes on from its state at 2."""
    run, engine = fresh({}, stage, "fp16")
    train_steps(engine, run, range(2))
    state = read_all(engine)
    straight = train_steps(engine, run, range(2, 4))
    _, other = fresh({}, stage, "fp16")
    write_all(other, state, 2)
    return state, straight, train_steps(other, run, range(2, 4))


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_a_run_goes_on_from_its_fp32_masters(ranks2, stage):
    for state, straight, other in ranks2(resumed, stage):
        assert {tensor.dtype for tensors in state.values() for tensor in tensors.values()} == {torch.float32}
        assert straight == other


def scale_goes_on(stage):
    """From a scale that overflows: (counters after three steps, straight run's next steps, those of a resumed one)."""
    run, engine = fresh({}, stage, "fp16")
    engine.loaded({"optimizer_step": 0, "loss_scale": 2.0**22, "loss_scale_steps": 5})
    train_steps(engine, run, range(3))
    state, counters = read_all(engine), engine.counters()
    straight = train_steps(engine, run, range(3, 9))
    _, other = fresh({}, stage, "fp16")
    write_all(other, state, 0)
    other.loaded(counters)
    return counters, straight, train_steps(other, run, range(3, 9))


@pytest.mark.parametrize("stage", [1, 3])
def test_a_run_goes_on_with_its_scale(ranks2, stage):
    for counters, straight, resumed in ranks2(scale_goes_on, stage):
        assert counters == {"optimizer_step": 0, "loss_scale": 2.0**19, "loss_scale_steps": 0}
        assert straight[0].skipped and not straight[-1].skipped
        assert straight == resumed
