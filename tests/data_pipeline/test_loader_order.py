"""One global sequence of samples, whatever reads it: ranks, stops, batch sizes, phases, stores."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from data_pipeline.errors import DataError
from data_pipeline.loader.batches import Batches
from data_pipeline.loader.settings import OrderOptions, PhaseOptions, SourceOptions
from data_pipeline.order.lanes import Lanes
from data_pipeline.order.mixture import Share, check_epochs
from data_pipeline.rows.reader import RowOptions
from tests.data_pipeline.test_loader import batches, labelled, write

LANES = OrderOptions(lanes=Lanes(lanes=2, window=2, batch=8))
KINDS = pytest.mark.parametrize("order", [OrderOptions(), LANES], ids=["whole", "lanes"])


def sharded(folder: Path, rows: int, first: int = 0, **options) -> Path:
    """Row k of four tokens begins with token first + k; some seven rows a shard, of one document each."""
    documents = [[first + k] * 3 for k in range(rows + 1)]
    return write(folder, documents, **{"shard_tokens": 29, **options})


def ids(loader: Batches, first: int, count: int) -> list[int]:
    return loader.rows(first, count).tokens[:, 0].tolist()


@KINDS
def test_three_epochs_are_three_permutations(tmp_path, order):
    """Field report 12: also in another process, and with another seed another order."""
    folder = sharded(tmp_path / "a", 50)
    found = np.array([batches(folder, order=order).samples(step * 10, 10).row for step in range(15)]).reshape(3, 50)
    assert np.array_equal(np.sort(found), [np.arange(50)] * 3)
    assert len({tuple(epoch) for epoch in found}) == 3
    loader = batches(folder, order=order)
    assert np.array_equal(loader.samples(0, 150).row.reshape(3, 50), found)
    assert batches(folder, order=order, seed=2).samples(0, 150).row.tolist() != found.ravel().tolist()


@KINDS
def test_many_stops_lose_and_repeat_nothing(tmp_path, order):
    """Field reports 13 and 14: three stops in one epoch, one in the next, one on the edge between them."""
    folder = sharded(tmp_path / "a", 40)
    straight = ids(batches(folder, order=order), 0, 96)
    stops = [0, 8, 24, 32, 40, 48, 96]
    parts = []
    for start, stop in pairwise(stops):
        loader = batches(folder, order=order)
        parts += [one for first in range(start, stop, 8) for one in ids(loader, first, 8)]
    assert parts == straight
    rows = batches(folder, order=order).samples(0, 96).row
    assert sorted(rows[:40]) == sorted(rows[40:80]) == list(range(40))


def by_ranks(loader_of, ranks: int, first: int, batch: int, steps: int) -> list[int]:
    """Sample ids, step by step, each rank with a loader of its own that reads its blocks one after the other."""
    share = batch // ranks
    loaders = [loader_of() for _ in range(ranks)]
    found = []
    for step in range(steps):
        for rank, loader in enumerate(loaders):
            found += loader.rows(first + step * batch + rank * share, share).tokens[:, 0].tolist()
    return found


@KINDS
def test_any_number_of_ranks_reads_the_same_sequence(tmp_path, order):
    """Field reports 15 and 16: 1, 2, 3, 5, 7 and 48 ranks, and changes between them in mid-run."""
    a = sharded(tmp_path / "a", 2001, vocab_size=3000, shard_tokens=500)
    b = sharded(tmp_path / "b", 737, first=2100, vocab_size=3000, shard_tokens=500)

    def loader() -> Batches:
        return batches(a, b, weights=[2, 1], order=order)

    batch, steps = 1680, 4
    straight = ids(loader(), 0, batch * steps)
    for ranks in (1, 2, 3, 5, 7, 48):
        assert by_ranks(loader, ranks, 0, batch, 2) == straight[: 2 * batch]
    changed = [by_ranks(loader, ranks, step * batch, batch, 1) for step, ranks in enumerate((48, 7, 2, 5))]
    assert [one for part in changed for one in part] == straight
    for source, rows in ((0, 2001), (1, 737)):
        found = loader().samples(0, 4 * batch)
        mine = found.row[found.source == source]
        for epoch in range(len(mine) // rows):
            assert sorted(mine[epoch * rows : (epoch + 1) * rows]) == list(range(rows))


def test_a_batch_size_that_grows_keeps_the_sequence(tmp_path):
    folder = sharded(tmp_path / "a", 101)
    ramp = OrderOptions(phases=[PhaseOptions(0, 4), PhaseOptions(10, 12), PhaseOptions(15, 48)])
    loader, plain = batches(folder, order=ramp), batches(folder)
    steps = [loader.phases.step(number) for number in range(20)]
    assert [one for step in steps for one in ids(loader, step.first_sample, step.samples)] == ids(plain, 0, 340)
    assert [step.samples for step in steps] == [4] * 10 + [12] * 5 + [48] * 5


@KINDS
def test_a_phase_that_is_added_later_changes_nothing_before_it(tmp_path, order):
    a, b = sharded(tmp_path / "a", 101), sharded(tmp_path / "b", 37, first=110)
    first = PhaseOptions(0, 10, None, {"a": 3, "b": 1})
    plain = batches(a, b, order=replace(order, phases=[first]))
    more = batches(a, b, order=replace(order, phases=[first, PhaseOptions(20, 10, None, {"a": 0, "b": 1})]))
    assert ids(plain, 0, 200) == ids(more, 0, 200)
    assert more.samples(200, 50).source.all()


def test_an_odd_number_of_packed_rows_keeps_two_ranks_in_step(tmp_path):
    """Field report 31: an epoch ends in the middle of a batch, and the next goes on there."""
    folder = write(tmp_path / "a", [[k] * 9 for k in range(1, 22)])
    source = SourceOptions(folder, rows=RowOptions(32, packing="best_fit"))
    loaders = [Batches({"a": source}, "train", 32, 1) for _ in range(2)]
    rows = loaders[0].row_counts[0]
    assert rows % 2 == 1
    found = [[loader.rows(step * 4 + rank * 2, 2) for rank, loader in enumerate(loaders)] for step in range(rows)]
    assert {batch.tokens.shape for step in found for batch in step} == {(2, 32)}
    kept = loaders[0].samples(0, 4 * rows).row.reshape(4, rows)
    assert np.array_equal(np.sort(kept), [np.arange(rows)] * 4)


def test_whatever_is_changed_the_order_and_the_fingerprint_follow(tmp_path):
    """Field report 33: nothing is kept that could be stale. Weights, seed, length and names: see test_loader."""
    documents = [[k] * 3 for k in range(60)]
    base = batches(write(tmp_path / "a", documents, validation=documents[:30]))
    other = [*documents[:7], [99] * 3, *documents[8:]]
    one_document = batches(write(tmp_path / "x/a", other, validation=documents[:30]))
    split = batches(tmp_path / "a", split="validation")
    tokenizer = batches(write(tmp_path / "y/a", documents, validation=documents[:30], vocab_size=300))
    skipping = batches(tmp_path / "a", order=OrderOptions(skips=[(3, 5)]))
    lanes = batches(write(tmp_path / "z/a", documents, shard_tokens=24), order=LANES)
    packed = Batches({"a": SourceOptions(tmp_path / "a", rows=RowOptions(4, packing="best_fit"))}, "train", 4, 1)
    changed = [one_document, split, tokenizer, skipping, lanes, packed]
    assert len({one.fingerprint for one in [base, *changed]}) == 7
    assert batches(tmp_path / "a").fingerprint == base.fingerprint
    first = base.rows(0, 29).tokens.tolist()
    for one in (one_document, split, skipping, lanes, packed):
        assert one.rows(0, 59).tokens[:29].tolist() != first or one is one_document
    assert sorted(ids(one_document, 0, 59)) != sorted(ids(base, 0, 59))
    assert ids(skipping, 0, 20) == ids(base, 0, 3) + ids(base, 6, 17)


def test_no_token_comes_twice_when_the_length_of_rows_changes(tmp_path):
    """128 rows of 16, numbered tokens: 8, then 16, then 4 of them a row; what is lost is at most a group each time."""
    tokens = np.arange(128 * 16)
    folder = write(tmp_path / "a", [tokens.tolist()], vocab_size=4000)
    plan = [PhaseOptions(0, 10, 8), PhaseOptions(5, 7, 16), PhaseOptions(9, 20, 4)]
    loader = batches(folder, sequence_length=8, order=OrderOptions(phases=plan))
    seen, step = [], 0
    while True:
        found = loader.phases.step(step)
        samples = loader.samples(found.first_sample, found.samples)
        if samples.epoch.max() > 0:
            break
        batch = loader.rows(found.first_sample, found.samples)
        assert batch.tokens.shape == (found.samples, plan[found.phase].sequence_length)
        seen.append(batch.tokens.ravel())
        step += 1
    every = np.concatenate(seen)
    assert len(np.unique(every)) == len(every)
    assert len(every) >= 2048 - 2 * 2 * 16 - 20 * 4


def test_use_counts_tokens_over_phases_and_limits_are_known_before_the_start(tmp_path):
    """Field report 8: rows, tokens and epochs of each source are stated, and add up to the whole."""
    a, b = labelled(tmp_path / "a", 64), labelled(tmp_path / "b", 100, first=70)
    plan = [PhaseOptions(0, 8), PhaseOptions(10, 4, 8, {"a": Share(3.0), "b": Share(1.0)})]
    loader = batches(a, b, order=OrderOptions(phases=plan))
    use = {one.name: one for one in loader.use(8 * 10 + 4 * 10)}
    assert {name: one.rows for name, one in use.items()} == {"a": 40 + 30, "b": 40 + 10}
    assert {name: one.tokens for name, one in use.items()} == {"a": 40 * 4 + 30 * 8, "b": 40 * 4 + 10 * 8}
    # a has 256 tokens in whole rows of 8, b 400.
    assert use["a"].epochs == pytest.approx(400 / 256) and use["b"].epochs == pytest.approx(240 / 400)
    with pytest.raises(DataError, match=r"source a would be read 1\.56 times, and max_epochs allows 1"):
        check_epochs(list(use.values()), {"a": 1, "b": 1}, "refuse")


def test_a_budget_in_epochs_is_reached_by_all_sources_together(tmp_path):
    a, b = labelled(tmp_path / "a", 40), labelled(tmp_path / "b", 100, first=50)
    sources = {"a": SourceOptions(a, Share(3, "epochs")), "b": SourceOptions(b, Share(1, "epochs"))}
    loader = Batches(sources, "train", 4, 1)
    assert [(one.rows, one.epochs) for one in loader.use(220)] == [(120, 3.0), (100, 1.0)]


def test_phases_name_all_sources(tmp_path):
    a, b = labelled(tmp_path / "a", 40), labelled(tmp_path / "b", 100, first=50)
    plan = [PhaseOptions(0, 8), PhaseOptions(10, 4, None, {"a": 3.0})]
    with pytest.raises(DataError, match="the phase from step 10 shares out a, and the sources are a, b; name each"):
        batches(a, b, order=OrderOptions(phases=plan))


@KINDS
def test_a_store_hears_of_every_shard_before_it_is_read(tmp_path, order):
    """Of those of a batch first, and of those of the 192 batches after it as soon as it is known how far these lie."""
    folder = sharded(tmp_path / "a", 4000, vocab_size=5000, shard_tokens=500)
    loader = batches(folder, order=order)
    files = loader.datasets[0].files
    asked, missed = [], []

    class Store:
        """Local files that are not of the class by which the loader knows them."""

        def __getattr__(self, name):
            return getattr(files, name)

        def need(self, shards, now):
            asked.append((list(shards), now))
            return []

        def path(self, number, ending):
            if number not in asked[-1][0][: asked[-1][1]]:
                missed.append(number)
            return files.path(number, ending)

    loader.datasets[0].files, loader._in_store = Store(), True
    for step in range(150):
        loader.rows(step * 8 + 4, 2)
    assert len(asked) == 150 and not missed
    assert all(len(set(shards)) == len(shards) for shards, _ in asked)
    # A batch of two rows lies in two shards, or reaches into four.
    assert all(1 <= now <= 4 for _, now in asked)
    for step in (1, 64, 65, 149):
        for later in (step + 1, step + 100, step + 192):
            shards = asked[later][0][: asked[later][1]] if later < 150 else []
            assert set(shards) <= set(asked[step][0])


def test_plans_give_what_single_questions_give(tmp_path):
    """Blocks forwards, backwards, again, of other sizes, and up to the edge of a phase."""
    a, b = sharded(tmp_path / "a", 101), sharded(tmp_path / "b", 37, first=110)
    plan = OrderOptions(
        phases=[PhaseOptions(0, 10), PhaseOptions(50, 10, None, {"a": 1, "b": 5}), PhaseOptions(70, 10, 2)]
    )
    used = batches(a, b, order=replace(plan, skips=[(33, 40)]))
    rng = np.random.default_rng(0)
    firsts = [*range(0, 900, 10), *range(5, 700, 10), *rng.integers(0, 900, 60).tolist(), 3, 3, 6, 9, 0]
    for k, first in enumerate(firsts):
        count = 5 if k < 160 else int(rng.integers(1, 12))
        if first < 500 < first + count or first < 700 < first + count:
            continue
        fresh = batches(a, b, order=replace(plan, skips=[(33, 40)]))
        for found, expected in zip(used.samples(first, count), fresh.samples(first, count), strict=True):
            assert np.array_equal(found, expected)
        assert np.array_equal(used.rows(first, count).tokens, fresh.rows(first, count).tokens)
