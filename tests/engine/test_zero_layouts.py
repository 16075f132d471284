"""ZeRO beside the other axes: how it starts, what it sends, what decays; and that faults in it are found."""

import gc
from contextlib import ExitStack
from unittest import mock

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from megaxf.engine import micro_batches
from tests.distributed.live import Live
from tests.distributed.tiny import global_batch, own_rows, read_all, tiny_engine, tiny_mesh, tiny_run, train_steps
from tests.parity.matrix import assert_same, curve, matrix_run

TENSOR = {"tensor_parallel_size": 2}
SEQUENCE = TENSOR | {"sequence_parallel": True}
CONTEXT = {"context_parallel_size": 2}
STAGES = [1, 2, 3]
EVEN = {"sequence_length": 16}
DEEP = {"num_hidden_layers": 12, "hidden_size": 64, "intermediate_size": 128}


def start(parallel, precision):
    """(largest and last number of bytes while the model is made, bytes of a rank's share, of its largest weight in
    fp32, of the whole model), and the weights."""
    import megaxf.engine.deepspeed_engine as module

    run = tiny_run(DEEP, engine={"zero_stage": 3}, parallel=parallel, train={"precision": precision})
    seen = []

    def measured(*arguments, **named):
        with Live() as live:
            original(*arguments, **named)
            gc.collect()
            seen.extend((live.peak, live.now))

    original = module.materialise
    with mock.patch.object(module, "materialise", measured):
        engine = tiny_engine(run)
    ranks, element = tiny_mesh(run).replicas.size, 4 if precision == "fp32" else 2
    elements = [weight.ds_numel for weight in engine._weights.values()]
    share = sum(-(-count // ranks) for count in elements) * element
    return (*seen, share, max(elements) * 4 * tiny_mesh(run).axis("tensor").size, sum(elements) * element), read_all(
        engine
    )


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("parallel", [{}, SEQUENCE], ids=["data 4", "data 2, tensor 2"])
def test_zero_3_never_holds_the_whole_model(run_on, parallel, precision):
    """A weight is drawn whole, scaled, and cut while the one before it is let go: four times its size.

    Of two starts, since the thread that sends may let a weight go late, which only adds.
    """
    starts = [run_on(4, start, parallel, precision) for _ in range(2)]
    for ((peak, now, share, largest, whole), weights), ((again, *_), _) in zip(*starts, strict=True):
        peak = min(peak, again)
        assert now == share
        assert peak <= share + 4 * largest
        assert peak < 0.8 * whole
        assert all(tensors["master"].count_nonzero() for tensors in weights.values())


def weights_of(parallel, stage):
    return read_all(tiny_engine(tiny_run(DEEP, engine={"zero_stage": stage}, parallel=parallel, data=EVEN)))


@pytest.mark.parametrize("stage", STAGES)
def test_initial_weights_do_not_depend_on_the_layout(run_on, stage):
    (expected,) = run_on(1, weights_of, {}, 0)
    for parallel in ({}, SEQUENCE, CONTEXT):
        for weights in run_on(2, weights_of, parallel, stage):
            assert list(weights) == list(expected)
            assert all(torch.equal(weights[name]["master"], expected[name]["master"]) for name in weights)


class Sent(TorchDispatchMode):
    """Notes every message between ranks, and operation and dtype of each sum of more than a few numbers."""

    def __init__(self):
        super().__init__()
        self.seen, self.operations = set(), []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        name = str(func)
        if name.startswith("c10d"):
            self.operations.append(name)
        if name.startswith("c10d") and "reduce" in name:
            for tensor in torch.utils._pytree.tree_leaves((args, kwargs)):
                if isinstance(tensor, torch.Tensor) and tensor.numel() > 64:
                    self.seen.add((name.split(".")[1], tensor.dtype))
        return func(*args, **(kwargs or {}))


def sums_of_a_step(parallel, stage):
    run = matrix_run(parallel=parallel, engine={"zero_stage": stage}, train={"precision": "bf16"}, data=EVEN)
    engine = tiny_engine(run)
    batches = micro_batches(own_rows(global_batch(0, run), tiny_mesh(run)), 2)
    with Sent() as sent:
        engine.train_step(batches, 1e-3)
    return sent.seen


@pytest.mark.parametrize("stage", STAGES)
@pytest.mark.parametrize("parallel", [{}, CONTEXT], ids=["data 2", "context 2"])
def test_bf16_gradients_are_summed_over_ranks_in_fp32(ranks2, stage, parallel):
    """With context parallelism, the gradients of keys and values are summed in bf16 within a layer."""
    for seen in ranks2(sums_of_a_step, parallel, stage):
        assert any(dtype == torch.float32 for _, dtype in seen)
        if not parallel:
            assert {dtype for _, dtype in seen} == {torch.float32}


def decay_once(parallel, stage):
    """(result, state before, state after) of a step at rate 0.1 and decay 0.1 on an all-masked batch."""
    run = matrix_run("one kv head", parallel=parallel, engine={"zero_stage": stage})
    assert run.optimizer.weight_decay == 0.1
    engine = tiny_engine(run)
    before = read_all(engine)
    batch = own_rows(global_batch(0), tiny_mesh(run))
    batch = batch._replace(labels=torch.full_like(batch.labels, -100))
    return engine.train_step(micro_batches(batch, 2), 0.1), before, read_all(engine)


@pytest.mark.parametrize("stage", STAGES)
def test_matrices_decay_alone(ranks2, stage):
    for result, before, after in ranks2(decay_once, SEQUENCE, stage):
        assert result[:4] == (0.0, 0.0, 0.0, 0)
        for name, tensors in before.items():
            weight = tensors["master"]
            expected = weight * 0.99 if weight.dim() == 2 else weight
            assert torch.equal(after[name]["master"], expected), name


def after_five_steps(stage, precision):
    run = matrix_run("one kv head", parallel=SEQUENCE, engine={"zero_stage": stage}, train={"precision": precision})
    engine = tiny_engine(run)
    train_steps(engine, run, range(5))
    return {name for name, cut in engine._placed.cuts.items() if cut.dim is None}, read_all(engine)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("stage", STAGES)
def test_replicated_tensors_stay_equal_bit_by_bit(ranks2, stage, precision):
    (replicated, first), (_, second) = ranks2(after_five_steps, stage, precision)
    assert len(replicated) >= 9
    for name in replicated:
        assert all(torch.equal(first[name][key], second[name][key]) for key in first[name]), name


FAULTS = {
    "cut weights do not count in the norm of later ranks": ("is_counted", lambda _: lambda placed, names: set(), 1),
    "so it is at stage 3": ("is_counted", lambda _: lambda placed, names: set(), 3),
    "a replicated key head counts on both ranks": ("is_counted", lambda _: lambda placed, names: set(names), 2),
    "what decays follows from the shape of a share": (
        "build_adamw",
        lambda original: lambda weights, settings, shapes: original(weights, settings),
        3,
    ),
    "the sum over ranks is left a mean": ("Sums", lambda original: with_smaller_scale(original), 1),
}


def with_smaller_scale(original):
    def make(*arguments):
        sums = original(*arguments)
        sums.scale /= 2
        return sums

    return make


def cell(fault, stage):
    place, make, _ = FAULTS[fault] if fault else ("is_counted", lambda original: original, 0)
    import megaxf.engine.deepspeed_engine as module

    with mock.patch.object(module, place, make(getattr(module, place))):
        return curve("one kv head", steps=3, parallel=TENSOR, engine={"zero_stage": stage})


def one_process():
    return curve("one kv head", steps=3, train={"micro_batch_size": 4})


@pytest.mark.parametrize("fault", FAULTS)
def test_faults_are_found(run_on, fault):
    (expected,) = run_on(1, one_process)
    stage = FAULTS[fault][2]
    assert_same(run_on(2, cell, None, stage)[0], expected, 1e-5)
    with pytest.raises(AssertionError):
        assert_same(run_on(2, cell, fault, stage)[0], expected, 1e-5)


def gathers_of_the_first_step(as_leaves):
    """Messages that gather weights, of a model of five layers and one micro-batch."""
    import deepspeed

    run = matrix_run("five layers", engine={"zero_stage": 3}, train={"micro_batch_size": 4})
    with ExitStack() as stack:
        if not as_leaves:
            stack.enter_context(mock.patch.object(deepspeed.utils, "set_z3_leaf_module"))
        engine = tiny_engine(run)
    batches = micro_batches(own_rows(global_batch(0, run), tiny_mesh(run)), 4)
    with Sent() as sent:
        engine.train_step(batches, 1e-3)
    return sum("allgather" in name for name in sent.operations)


def test_zero_3_fetches_a_layer_in_one_message(ranks2):
    """Five layers, table, norm and head, there and back. Joint projections use weights of modules not called."""
    assert max(ranks2(gathers_of_the_first_step, True)) <= 2 * (5 + 3)
    assert min(ranks2(gathers_of_the_first_step, False)) > 2 * 5 * 5
