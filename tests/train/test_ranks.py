"""Two ranks: all do the same, whatever one of them meets (field reports 65, 70, 86)."""

import math
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from data_pipeline.errors import DataError
from data_pipeline.loader.batches import Batches
from megaxf.engine import create, to_torch
from megaxf.models.initialize import initialize
from megaxf.models.llama import Model
from megaxf.train import loop
from megaxf.train.evaluate import evaluate, validation_rows
from tests.distributed.pool import RemoteError
from tests.distributed.tiny import tiny_mesh
from tests.train.kit import assert_same_end, checkpoints, column, start, tiny_run, weights


def train_with(run, **options):
    return start(run, **options)


def stop_on_rank_one(run, after):
    return start(run, stop_after=after if dist.get_rank() == 1 else None)


def poison_rank_one(run, step):
    """A weight of rank 1 becomes NaN before the forward pass of `step`."""

    def poisoned(*arguments):
        engine = create(*arguments)
        plain = engine.train_step

        def train_step(*given):
            if engine.optimizer_step == step - 1 and dist.get_rank() == 1:
                with torch.no_grad():
                    next(engine._objective.parameters())[3, 3] = math.nan
            return plain(*given)

        engine.train_step = train_step
        return engine

    before, loop.create = loop.create, poisoned
    try:
        return start(run)
    finally:
        loop.create = before


def damage_rank_one(run, sample):
    """Rank 1 cannot read the batch at `sample`."""
    plain = Batches.rows

    def rows(self, first, count, out=None):
        if dist.get_rank() == 1 and sample <= first < sample + 4:
            raise DataError("is damaged", "shard-00000.bin")
        return plain(self, first, count, out)

    Batches.rows = rows
    try:
        start(run)
    except DataError as error:
        return str(error)
    finally:
        Batches.rows = plain
    return "no error"


def evaluate_twice(run):
    mesh = tiny_mesh(run)
    engine = create(run, mesh, "cpu")
    rows = validation_rows(run)["text"]
    return [evaluate(engine, rows, "text", run, mesh, torch.device("cpu"))[:4] for _ in range(2)]


@pytest.fixture
def both(run_on):
    return lambda function, *args: run_on(2, function, *args)


@pytest.mark.parametrize("isolate", [False, True])
def test_evaluation_is_the_sum_of_token_losses_over_tokens(make, both, isolate):
    """7 rows, micro-batches of 2, 2 ranks; the oracle is the model's full logits, row by row."""
    run = make(data={"isolate_documents": isolate})
    rows = validation_rows(run)["text"]
    assert len(rows) == 7
    model = Model(run.model)
    initialize(model, run.seed)
    total, count = 0.0, 0
    model.requires_grad_(False)
    for row in rows:
        batch = to_torch(row, "cpu")
        logits = model.logits(model(batch.tokens, positions=batch.positions, document_ids=batch.document_ids)).double()
        total += float(
            torch.nn.functional.cross_entropy(logits[0], batch.labels[0], reduction="sum", ignore_index=-100)
        )
        count += int((batch.labels != -100).sum())
    assert count == 7 * 16 - (4 if isolate else 0)
    expected = ("text", pytest.approx(total / count, rel=1e-6), count, 7)
    for found in (*both(evaluate_twice, run), evaluate_twice(run)):
        assert found[0] == found[1] == expected
    for axis in ("tensor", "context", "pipeline"):
        layout = make(
            data={"isolate_documents": isolate},
            parallel={f"{axis}_parallel_size": 2},
            engine={"zero_stage": 1 if axis == "pipeline" else 0},
        )
        for found in both(evaluate_twice, layout):
            assert found[0] == found[1] == expected, axis
    few = make(data={"isolate_documents": isolate}, evaluate={"sequences": 3})
    assert both(evaluate_twice, few)[0][0][3] == 3


def test_one_rank_asks_and_all_stop(make, both):
    straight = make(run_folder=make().run_folder + "-straight")
    assert [outcome for outcome, _ in both(train_with, straight)] == [0, 0]
    run = make()
    outcomes = both(stop_on_rank_one, run, 5)
    assert [outcome for outcome, _ in outcomes] == [75, 75]
    assert checkpoints(run) == [5]
    both(train_with, run)
    assert_same_end(run, straight)
    one = make(run_folder=make().run_folder + "-one")
    start(one)
    assert column(one, "loss") == pytest.approx(column(run, "loss"), rel=1e-5), "the ranks share one loss curve"


def test_a_nan_on_one_rank_stops_all_in_the_same_step(make, both):
    run = make(checkpoint={"every": 1, "keep_last": 9})
    outcomes = both(poison_rank_one, run, 4)
    assert [outcome for outcome, _ in outcomes] == [3, 3]
    assert all("of step 4 is not finite" in " ".join(said) for _, said in outcomes)
    assert checkpoints(run) == [1, 2, 3]
    assert all(torch.isfinite(tensor).all() for tensor in weights(run).values())


def test_a_data_error_on_one_rank_is_raised_on_all_after_saving(make, both):
    run = make()
    assert both(damage_rank_one, run, 8) == ["shard-00000.bin: is damaged"] * 2
    assert checkpoints(run) == [2]


def start_with_own_seed(tmp):
    start(tiny_run(Path(tmp), seed=dist.get_rank()))


def test_ranks_with_different_settings_are_found(make, both, tmp_path):
    with pytest.raises(RemoteError, match=r"(?s)rank 1: 1 error\n  - has other settings than rank 0"):
        both(start_with_own_seed, str(tmp_path))
