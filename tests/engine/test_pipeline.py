"""The pipeline engine beside the curves of tests/parity/test_pipeline.py.

Counts of micro-batches, clipping, tied tables, whole state, evaluation, a gradient that is not finite.
"""

import math

import pytest
import torch

from megaxf.engine.batch import TorchBatch, micro_batches
from tests.distributed.tiny import global_batch, own_rows, read_all, tiny_engine, tiny_mesh, tiny_run, write_all

SCHEDULES = ("1f1b", "interleaved", "dualpipev")
TABLE = "model.embed_tokens.weight"


def engine_of(stages, schedule="1f1b", model=None, train=None, **parallel):
    """(engine, run) of so many stages; one stage is the reference engine."""
    if stages > 1:
        parallel |= {"pipeline_parallel_size": stages, "pipeline_schedule": schedule}
    run = tiny_run(
        {"num_hidden_layers": 4} | (model or {}),
        train=train or {},
        parallel=parallel,
        optimizer={"eps": 1e-6},
        engine={"zero_stage": int(stages > 1)},
    )
    return tiny_engine(run), run


def rows_of(batch, rows):
    return TorchBatch(*(None if part is None else part[:rows] for part in batch))


def one_step(stages, schedule, rows, micro, tied):
    """(loss, norm) of two steps on the first rows of the batches, in micro-batches of a size."""
    model = {"tie_word_embeddings": tied}
    train = {"global_batch_size": rows, "micro_batch_size": micro}
    engine, _ = engine_of(stages, schedule, model, train)
    batches = [micro_batches(rows_of(global_batch(step), rows), micro) for step in range(2)]
    return [engine.train_step(batch, 1e-3)[:3] for batch in batches]


@pytest.mark.parametrize("micro", [1, 2, 4, 8])
def test_micro_batches_change_nothing(run_on, micro):
    """The same rows in 8, 4, 2 and 1 micro-batches."""
    (expected,) = run_on(1, one_step, 1, "1f1b", 8, 8, True)
    for schedule in SCHEDULES if micro < 4 else ("1f1b",):
        for got in run_on(2, one_step, 2, schedule, 8, micro, True):
            torch.testing.assert_close(torch.tensor(got), torch.tensor(expected), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("count", [1, 2, 3])
def test_fewer_micro_batches_than_stages(run_on, count):
    (expected,) = run_on(1, one_step, 1, "1f1b", 2 * count, 2, False)
    for got in run_on(4, one_step, 4, "1f1b", 2 * count, 2, False):
        torch.testing.assert_close(torch.tensor(got), torch.tensor(expected), rtol=1e-5, atol=1e-6)


def first_moments(stages, clip, tied):
    """(norm before clipping, length of the gradient that AdamW got) of one step; its mean is 0.1 x that gradient."""
    engine, _ = engine_of(stages, model={"tie_word_embeddings": tied}, train={"gradient_clip": clip})
    norm = engine.train_step(micro_batches(global_batch(0), 2), 1e-3).grad_norm
    squares = sum(float(tensors["exp_avg"].double().square().sum()) for tensors in read_all(engine).values())
    return norm, math.sqrt(squares) / 0.1


@pytest.mark.parametrize("tied", [False, True])
def test_all_stages_clip_by_the_norm_of_all(run_on, tied):
    ((norm, whole),) = run_on(1, first_moments, 1, 0.0, tied)
    assert whole == pytest.approx(norm, rel=1e-5)
    for stages in (2, 4):
        for got, length in run_on(stages, first_moments, stages, 0.1 * norm, tied):
            assert got == pytest.approx(norm, rel=1e-5)
            assert length == pytest.approx(0.1 * norm, rel=1e-5)


def tied_copies(precision, disturbed):
    """This rank's table after each of 8 steps, and all state; disturbed: state moves to a fresh engine half-way."""
    settings = {"model": {"tie_word_embeddings": True}, "train": {"precision": precision, "micro_batch_size": 1}}
    engine, run = engine_of(2, **settings)
    tables = []
    for step in range(8):
        if disturbed and step == 4:
            engine.evaluate(own_rows(global_batch(50), tiny_mesh(run)))
            state = read_all(engine)
            engine, _ = engine_of(2, **settings)
            write_all(engine, state, step)
            tables.append(engine._placed.weights[TABLE].detach().clone())
        engine.train_step(micro_batches(own_rows(global_batch(step), tiny_mesh(run)), 1), 1e-3)
        tables.append(engine._placed.weights[TABLE].detach().clone())
    return tables, read_all(engine)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("ranks", [2, 4])
def test_copies_of_a_tied_table_are_equal_bit_by_bit(run_on, ranks, precision):
    """Also over data-parallel ranks, also when state is read and written, which itself changes nothing."""
    undisturbed = run_on(ranks, tied_copies, precision, False)
    disturbed = run_on(ranks, tied_copies, precision, True)
    for per_rank in (undisturbed, disturbed):
        first = per_rank[0][0]
        assert not torch.equal(first[0], first[1])
        for tables, _ in per_rank[1:]:
            assert all(torch.equal(mine, other) for mine, other in zip(tables, first, strict=True))
    for (_, state), (_, expected) in zip(disturbed, undisturbed, strict=True):
        assert list(state) == list(expected)
        for name, tensors in state.items():
            assert all(torch.equal(expected[name][key], tensor) for key, tensor in tensors.items()), name


def evaluations(schedule):
    """(sums of three evaluations of other sizes, the same by formula, results after them)."""
    engine, _ = engine_of(2, schedule)
    batch = global_batch(50)
    steps = [engine.train_step(micro_batches(global_batch(0), 2), 1e-3)]
    found = [engine.evaluate(rows_of(batch, rows)) for rows in (3, 2, 3)]
    with engine.model_for_inference() as model, torch.no_grad():
        assert not model.training
        logits = torch.log_softmax(model.logits(model(batch.tokens[:3])), -1)
        nll = torch.nn.functional.nll_loss(logits.flatten(0, 1), batch.labels[:3].flatten(), reduction="sum")
    steps += [engine.train_step(micro_batches(global_batch(step), 2), 1e-3) for step in (1, 2)]
    return found, float(nll), steps


def three_steps():
    engine, _ = engine_of(1)
    return [engine.train_step(micro_batches(global_batch(step), 2), 1e-3) for step in range(3)]


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_evaluation_goes_through_all_stages_and_leaves_no_trace(run_on, schedule):
    (expected,) = run_on(1, three_steps)
    for found, nll, steps in run_on(2, evaluations, schedule):
        assert found[0] == found[2]
        assert found[0][0] == pytest.approx(nll, rel=1e-6)
        assert found[0][1] == int((global_batch(50).labels[:3] != -100).sum())
        numbers, expected_numbers = (torch.tensor([list(step)[:4] for step in made]) for made in (steps, expected))
        torch.testing.assert_close(numbers, expected_numbers, rtol=1e-5, atol=1e-6)


def poisoned(precision):
    """(result, whether anything changed) of a step in which one weight of the last stage alone is not a number."""
    engine, run = engine_of(2, train={"precision": precision})
    if tiny_mesh(run).axis("pipeline").rank == 1:
        engine._placed.weights["lm_head.weight"].data[3, 3] = math.nan
    before = read_all(engine)
    result = engine.train_step(micro_batches(global_batch(0), 2), 1e-3)
    after = read_all(engine)
    same = [name for name in before if torch.equal(before[name]["master"], after[name]["master"])]
    return result.grad_norm, engine.optimizer_step, len(before) - len(same)


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_a_gradient_that_is_not_finite_stops_all_stages(run_on, precision):
    assert run_on(2, poisoned, precision) == [(math.inf, 0, 0)] * 2
