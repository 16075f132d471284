"""Losses of each source of the data: those of its rows alone, in every layout."""

import pytest
import torch

from megaxf.engine import micro_batches
from megaxf.engine.batch import IGNORED
from tests.distributed.tiny import global_batch, own_rows, tiny_engine, tiny_mesh, tiny_run

SOURCES = torch.tensor([2, 0, 2, 2, 0, 2, 0, 2])
"""Of the rows of a global batch; nothing comes from source 1."""
LAYOUTS = {
    "one rank": (1, {}, {}),
    "ZeRO 2, DP 2": (2, {}, {"zero_stage": 2}),
    "TP 2 + SP": (2, {"tensor_parallel_size": 2, "sequence_parallel": True}, {}),
    "CP 2": (2, {"context_parallel_size": 2}, {}),
    "PP 2": (2, {"pipeline_parallel_size": 2, "pipeline_schedule": "dualpipev"}, {"zero_stage": 1}),
}


def run_of(names, parallel, engine):
    sources = {name: {"folder": "unused"} for name in names}
    data = {"sources": sources, "sequence_length": 20}
    return tiny_run({"num_hidden_layers": 4, "intermediate_size": 46}, data=data, parallel=parallel, engine=engine)


def step(names, parallel, engine):
    run = run_of(names, parallel, engine)
    batch = global_batch(3, run)._replace(sources=SOURCES)
    rows = micro_batches(own_rows(batch, tiny_mesh(run)), run.train.micro_batch_size)
    return tiny_engine(run).train_step(rows, 1e-3)


def alone(source):
    """(sum, count) of the rows of one source, by the same first weights."""
    run = run_of("abc", {}, {})
    batch = global_batch(3, run)
    return tiny_engine(run).evaluate(type(batch)(*(batch[field][source == SOURCES] for field in range(2))))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_each_source_has_the_loss_of_its_rows(run_on, layout):
    ranks, parallel, engine = LAYOUTS[layout]
    expected = [run_on(1, alone, source)[0] for source in (0, 2)]
    for result in run_on(ranks, step, "abc", parallel, engine):
        found = result.by_source
        assert found[1] == (0, 0)
        for (nll, tokens), (expected_nll, expected_tokens) in zip((found[0], found[2]), expected, strict=True):
            assert tokens == expected_tokens
            assert nll == pytest.approx(expected_nll, rel=1e-5)
        assert sum(nll for nll, _ in found) / result.tokens == pytest.approx(result.loss, rel=1e-6)
        assert result.z_loss == 0, "the penalty is off, and no rounding may look like one"


def test_one_source_is_not_told_apart(run_on):
    assert run_on(1, step, "a", {}, {})[0].by_source == ()


def without_targets(layout):
    run = run_of("a", layout, {})
    batch = global_batch(3, run)
    batch.labels[[1, 6]] = IGNORED
    batch.labels[2, :5] = IGNORED
    rows = micro_batches(own_rows(batch, tiny_mesh(run)), run.train.micro_batch_size)
    return tiny_engine(run).train_step(rows, 1e-3).idle_rows


@pytest.mark.parametrize(("ranks", "layout"), [(1, {}), (2, {}), (2, {"context_parallel_size": 2})], ids=str)
def test_rows_without_a_target_are_counted_over_all_ranks(run_on, ranks, layout):
    assert set(run_on(ranks, without_targets, layout)) == {2}
