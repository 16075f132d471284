"""What a run remembers, and what it says when it goes on otherwise."""

from __future__ import annotations

import json

from data_pipeline.loader.batches import Batches
from data_pipeline.loader.settings import OrderOptions, PhaseOptions
from data_pipeline.loader.state import describe_change
from data_pipeline.order.lanes import Lanes
from data_pipeline.stream.options import CacheOptions
from tests.data_pipeline.faulty_store import QUICK, build_set
from tests.data_pipeline.test_loader import batches, labelled, write


def state(*folders, samples: int = 100, **options):
    """Through JSON, as a checkpoint keeps it."""
    return json.loads(json.dumps(batches(*folders, **options).state(samples)))


def plan(*phases, **options) -> OrderOptions:
    return OrderOptions(phases=[PhaseOptions(*phase) for phase in phases], **options)


def test_the_state_is_small_and_the_same_run_changes_nothing(tmp_path):
    a, b = labelled(tmp_path / "a", 20), labelled(tmp_path / "b", 20, first=50)
    order = plan((0, 4), (9, 8), skips=[(3, 5)])
    old = state(a, b, order=order)
    assert len(json.dumps(old)) < 600
    assert describe_change(old, batches(a, b, order=order).state(0)) == []


def test_every_change_is_named(tmp_path):
    a, b = labelled(tmp_path / "a", 20), labelled(tmp_path / "b", 20, first=50)
    other = write(tmp_path / "x/a", [[9] * 80])
    old = state(a, b)
    cases = {
        "seed was 1 and is 2: everything is drawn anew": batches(a, b, seed=2),
        "isolate_documents was False and is True": batches(a, b, isolate_documents=True),
        "lanes was None and is [1, 2, 3]": batches(a, b, order=OrderOptions(lanes=Lanes(1, 2, 3))),
        "source b is gone": batches(a),
        "source a holds other data: its manifest was": batches(other, b),
        "longest was 4 and is 8: all rows are numbered anew": batches(a, b, order=plan((0, 4), (50, 4, 8))),
    }
    for sentence, changed in cases.items():
        assert any(one.startswith(sentence) for one in describe_change(old, changed.state(0)))
    assert any(one == "source b is new" for one in describe_change(state(a), old))


def test_a_change_in_the_future_is_told_from_one_in_the_past(tmp_path):
    a = labelled(tmp_path / "a", 20)
    old = state(a, order=plan((0, 4)), samples=100)
    [later] = describe_change(old, batches(a, order=plan((0, 4), (30, 8))).state(0))
    assert later == (
        "phases[1] was not there and is (from step 30: batch 8, length 4, weights [1.0]): "
        "samples from 120 on change, none of which was read yet"
    )
    [past] = describe_change(old, batches(a, order=plan((0, 4), (10, 8))).state(0))
    assert past.endswith("60 samples were read since; the run goes on as if this had held from there on")


def test_a_skip_is_placed_by_what_was_read(tmp_path):
    a = labelled(tmp_path / "a", 20)
    old = state(a, order=OrderOptions(skips=[(10, 19)]), samples=100)
    [later] = describe_change(old, batches(a, order=OrderOptions(skips=[(10, 19), (110, 140)])).state(0))
    assert later.endswith("samples from 100 on change, none of which was read yet")
    [past] = describe_change(old, batches(a, order=OrderOptions(skips=[(10, 19), (108, 140)])).state(0))
    assert past == (
        "skips were [(10, 19)] and are [(10, 19), (108, 140)]: "
        "2 samples were read since; the run goes on as if this had held from there on"
    )


def test_shards_found_damaged_are_in_the_state_and_do_not_make_it_another_run(tmp_path):
    build_set(tmp_path / "a", 5)

    def opened(run: str) -> Batches:
        damage = {"storage_options": {"flip": {"shard-00001.bin": 99}}, "on_damage": "skip"}
        cache = CacheOptions(tmp_path / run / "cache", 1 << 30, retries=QUICK, quarantine=tmp_path / run, **damage)
        return Batches({"a": (f"faulty://{tmp_path}/a", 1.0)}, "train", 60, seed=1, cache=cache)

    run = opened("run")
    before, sound = run.fingerprint, run.state(0)
    run.rows(0, run.row_counts[0])
    damaged = json.loads(json.dumps(run.state(9)))
    assert damaged["quarantined"] == {"a": ["shard-00001"]}
    assert run.fingerprint == before
    assert describe_change(damaged, opened("run").state(9)) == []
    assert describe_change(sound, damaged) == ["source a goes without shard-00001, found damaged"]
    [sentence] = describe_change(damaged, opened("another run").state(9))
    assert sentence.startswith("source a is read with shard-00001 again")
    del damaged["quarantined"]  # as earlier versions wrote it
    assert describe_change(damaged, sound) == []
