"""Spikes of the loss and numbers that are not finite: found in the same step on all ranks, and the policy done."""

import json
import math
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.distributed as dist

from data_pipeline.format.writer import DatasetWriter
from megaxf.config_errors import ConfigError
from megaxf.engine import create
from megaxf.parallel import clock
from megaxf.train import loop
from megaxf.train.guards import Outcome
from megaxf.train.guards.numbers import LossWindow, join
from megaxf.train.sources import open_run
from tests.train.kit import LENGTH, VOCABULARY, assert_same_end, checkpoints, column, records, start, tiny_run, weights

BAD_STEP = 20


def write_counting(folder, bad=(), rows=96):
    """Documents of one row each that count upwards; the documents `bad` have tokens that no other has."""
    with DatasetWriter(folder, vocab_size=VOCABULARY, eod_id=0) as writer:
        for number in range(rows + 1):
            ids = 1 + (number + np.arange(LENGTH)) % 7
            if number in bad:
                ids = np.random.default_rng(0).permutation(40)[:LENGTH] + 11
            ids[-1] = 0
            writer.add("train", ids, np.asarray([LENGTH]))
        writer.finish()


def spiking(tmp_path, *more, **guards):
    """A run of 24 steps whose 20th (and `more`) reads documents that spike, and their numbers."""
    folder = Path(tmp_path)
    run = tiny_run(
        folder,
        train={"steps": 24},
        guards={"spike_window": 8, "spike_threshold": 5.0} | guards,
        checkpoint={"every": 6, "keep_last": 9},
        schedule={"kind": "constant"},
    )
    write_counting(folder / "probe")
    probe = run.model_dump(mode="json")
    probe = tiny_run(folder, data={"sources": {"text": {"folder": str(folder / "probe")}}})
    data = open_run(probe)
    bad = [row for step in (BAD_STEP, *more) for row in data.samples((step - 1) * 4, 4).row.tolist()]
    write_counting(folder / "data", bad)
    return run, bad


def found(run):
    return records(run, "guard")


def again(run, name, **sections):
    """The run in another folder with other settings."""
    settings = changed(run, **sections) | {"run_folder": f"{run.run_folder}-{name}"}
    return tiny_run(Path(run.run_folder).parent, **settings)


def changed(run, **sections):
    """The settings of the run with others."""
    settings = run.model_dump(mode="json")
    for section, values in sections.items():
        settings[section] |= values
    return settings


def test_the_limit_is_the_median_and_the_spread_of_the_window():
    window = LossWindow(8, 5.0)
    for loss in (9.0, 2.0, 2.1):
        window.losses.append(loss)
    assert window.limit() == math.inf, "half a window tells"
    window.losses.extend([1.9, 2.3])
    assert window.limit() == pytest.approx(2.1 + 5 * 1.4826 * 0.2)
    window.losses.extend([3.0] * 8)
    assert window.limit() == pytest.approx(3.0 + 5 * 0.005 * 3.0), "a loss that stands still has a least spread"


def test_a_spike_is_recorded_with_the_documents_of_its_batch(tmp_path):
    run, bad = spiking(tmp_path)
    outcome, said = start(run)
    assert outcome == Outcome.DONE
    (one,) = found(run)
    assert (one["step"], one["found"], one["action"], one["samples"]) == (20, "spike", "record", [76, 79])
    assert set(bad) <= set(one["documents"]["text"]) and len(one["documents"]["text"]) <= 8
    assert one["loss"] == column(run, "loss")[19] > one["limit"]
    assert sum("the loss of step 20 is a spike" in sentence for sentence in said) == 1


def test_a_spike_is_skipped_and_stopped_at(tmp_path):
    run, _ = spiking(tmp_path, on_spike="skip")
    assert start(run)[0] == Outcome.DONE
    assert column(run, "skipped_steps")[18:] == [0, 1, 1, 1, 1, 1]
    assert [step for step, norm in enumerate(column(run, "gradient_norm"), 1) if norm is None] == [20]
    state = json.loads((Path(run.run_folder) / "checkpoints" / "step-00000024" / "state.json").read_text())
    assert (state["step"], state["optimizer_step"]) == (24, 23)
    stopped = again(run, "stop", guards={"on_spike": "stop"})
    outcome, said = start(stopped)
    assert outcome == Outcome.DIVERGED
    assert column(stopped, "step")[-1] == 20 and checkpoints(stopped) == [6, 12, 18]
    assert column(stopped, "loss") == column(run, "loss")[:20]
    assert "data.skip_steps='[[20, 20]]'" in said[-2]


def test_rewinding_passes_over_the_data_up_to_the_spike(tmp_path):
    """As the run that was told to pass over it from its start, also where it is stopped on the way."""
    run, bad = spiking(tmp_path, on_spike="rewind-and-skip-data", rewind_batches=2)
    outcome, said = start(run)
    assert outcome == Outcome.DONE
    assert "back to the checkpoint of step 18 and pass over the data of steps 19 to 20" in " ".join(said)
    (one,) = found(run)
    assert (one["step"], one["at_step"], one["passed_over"]) == (18, 20, [19, 20])
    assert set(bad) <= set(one["documents"]["text"])
    told = again(run, "told", data={"skip_steps": [[19, 20]]}, guards={"on_spike": "record", "rewind_batches": 100})
    assert start(told)[0] == Outcome.DONE
    assert not found(told)
    assert_same_end(run, told)
    stopped = again(run, "stopped")
    assert start(stopped, stop_after=21)[0] == Outcome.STOPPED
    assert column(stopped, "step")[-1] == 19 and checkpoints(stopped) == [6, 12, 18, 19]
    assert start(stopped)[0] == Outcome.DONE
    assert_same_end(stopped, told)


def test_rewinding_ends_where_it_must(tmp_path):
    run, _ = spiking(tmp_path, 22, on_spike="rewind-and-skip-data", max_rewinds=1, rewind_batches=1)
    outcome, said = start(run)
    assert outcome == Outcome.DIVERGED
    assert [one["at_step"] for one in found(run)] == [20, 21]
    assert "the run was rewound guards.max_rewinds = 1 times before: all ranks stop" in " ".join(said)
    early = again(run, "early", checkpoint={"every": 100})
    outcome, said = start(early)
    assert (outcome, checkpoints(early)) == (Outcome.DIVERGED, [])
    assert "and there is no checkpoint yet to go back to" in " ".join(said)
    with pytest.raises(ConfigError, match=r"guards.on_spike = rewind-and-skip-data needs checkpoints"):
        again(run, "none", checkpoint={"every": 0})
    with pytest.raises(ConfigError, match=r"guards.max_skips = 9 has no effect while neither"):
        tiny_run(tmp_path, guards={"max_skips": 9})


def test_rewinding_over_steps_of_the_same_numbers_as_the_users_passes_over_other_data(tmp_path):
    run, _ = spiking(tmp_path, 22, on_spike="rewind-and-skip-data", rewind_batches=2)
    run = again(run, "both", data={"skip_steps": [[19, 20]]})
    assert start(run)[0] == Outcome.DONE
    assert [one["passed_over"] for one in found(run)] == [[19, 20]]
    told = again(run, "told", data={"skip_steps": [[19, 20], [19, 20]]}, guards={"on_spike": "record"} | KEPT)
    assert start(told)[0] == Outcome.DONE
    assert not found(told)
    assert_same_end(run, told)


KEPT = {"rewind_batches": 100, "max_rewinds": 5}
"""The defaults, which a run that does not rewind has to have."""


def advised(said):
    """The `data.skip_steps` that a run which was stopped says to go on with."""
    (sentence,) = (one for one in said if "data.skip_steps=" in one)
    return json.loads(sentence.split("data.skip_steps='")[1].split("'")[0])


def test_the_ranges_advised_are_all_that_is_to_be_passed_over(tmp_path):
    run, _ = spiking(tmp_path, on_spike="stop")
    run = again(run, "stopped", data={"skip_steps": [[12, 12]]})
    outcome, said = start(run)
    assert (outcome, advised(said)) == (Outcome.DIVERGED, [[12, 12], [19, 19]])
    outcome, _ = start(tiny_run(tmp_path, **changed(run, data={"skip_steps": advised(said)})))
    assert outcome == Outcome.DONE
    told = again(run, "told", data={"skip_steps": [[12, 12], [19, 19]]})
    start(told)
    assert_same_end(run, told)


@pytest.mark.parametrize("every", [1, 6])
def test_the_ranges_advised_hold_what_was_rewound_over(tmp_path, every):
    """Whether or not a checkpoint knows of the rewind; in 22 steps, since the next epoch has the bad rows again."""
    run, _ = spiking(tmp_path, 22, on_spike="rewind-and-skip-data", max_rewinds=1, rewind_batches=1)
    run = again(run, "rewound", checkpoint={"every": every}, train={"steps": 22})
    outcome, said = start(run)
    assert (outcome, advised(said)) == (Outcome.DIVERGED, [[20, 20], [21, 21]])
    outcome, _ = start(tiny_run(tmp_path, **changed(run, data={"skip_steps": advised(said)})))
    assert outcome == Outcome.DONE
    told = again(run, "told", data={"skip_steps": [[20, 20], [21, 21]]}, guards={"on_spike": "record"} | KEPT)
    start(told)
    assert_same_end(run, told)


A, B, C, G = (11, 12), (30, 30), (40, 41), (20, 20)


@pytest.mark.parametrize(
    ("asked", "skipped", "passed_over", "joined"),
    [
        ([], [], [], []),
        ([A], [], [], [A]),
        ([A], [A, G], [G], [A, G]),
        ([A, G], [A, G], [G], [A, G]),
        ([A, G, B], [A, G], [G], [A, G, B]),
        ([A, B], [A, G], [G], [A, G, B]),
        ([A, B, C], [A, G, B], [G], [A, G, B, C]),
        ([A], [A, A], [A], [A, A]),
        ([A, A], [A, A], [A], [A, A]),
        ([B], [A, G], [G], [B, G]),
        ([], [A], [], []),
    ],
)
def test_ranges_asked_for_later_come_behind_those_of_the_run_so_far(asked, skipped, passed_over, joined):
    assert join(asked, skipped, passed_over) == joined


@pytest.mark.parametrize(
    ("policy", "ends"),
    [("stop", Outcome.DIVERGED), ("skip", Outcome.DONE), ("rewind-and-skip-data", Outcome.DONE)],
)
def test_a_spike_in_the_rows_of_one_rank_is_found_by_both(tmp_path, run_on, policy, ends):
    run, bad = spiking(tmp_path)
    write_counting(tmp_path / "half", bad[2:])
    half = {"sources": {"text": {"folder": str(tmp_path / "half")}}}
    run = again(run, policy, data=half, guards={"on_spike": policy})
    for outcome, said in run_on(2, start, run):
        assert outcome == ends
        assert [sentence.split(":")[0] for sentence in said if "is a spike" in sentence] == [
            "the loss of step 20 is a spike"
        ]
    assert [(one["at_step"], one["action"]) for one in found(run)] == [(20, policy)]
    assert set(bad[2:]) <= set(found(run)[0]["documents"]["text"])


def planted(run, plant, steps):
    """Train with `plant(engine)` called on rank 1 before these steps: (outcome, steps of findings heard)."""

    def planting(*arguments):
        engine = create(*arguments)
        plain, made = engine.train_step, [0]

        def train_step(*batch):
            made[0] += 1
            if made[0] in steps and dist.get_rank() == 1:
                plant(engine)
            return plain(*batch)

        engine.train_step = train_step
        return engine

    loop.create = planting
    try:
        outcome, said = start(run)
    finally:
        loop.create = create
    return outcome, [
        sentence for sentence in said if "step" in sentence and ("finite" in sentence or "same" in sentence)
    ]


def infinite_gradient(engine):
    """The next gradient of one weight has an infinite element."""
    weight = next(iter(engine.replicated().values()))

    def spoil(gradient):
        handle.remove()
        return gradient.index_fill(0, torch.tensor([3]), math.inf)

    handle = weight.register_hook(spoil)


def flip_a_bit(engine):
    """The lowest bit of one weight, or of its moment, is another."""
    name = "model.layers.1.mlp.up_proj.weight"
    engine.replicated()[name].data.view(torch.int32)[5, 7] ^= 1


def test_a_gradient_that_is_not_finite_on_one_rank_is_skipped_on_both(make, run_on):
    run = make(guards={"on_non_finite": "skip", "max_skips": 2}, checkpoint={"every": 1, "keep_last": 20})
    for outcome, heard in run_on(2, planted, run, infinite_gradient, {4, 5, 8}):
        assert outcome == Outcome.DONE
        assert [sentence.split(" is ")[0] for sentence in heard] == [f"loss or gradient of step {n}" for n in (4, 5, 8)]
    assert column(run, "skipped_steps")[3:8] == [1, 2, 2, 2, 3]
    more = make(run_folder=run.run_folder + "-more", guards={"on_non_finite": "skip", "max_skips": 2})
    for outcome, heard in run_on(2, planted, more, infinite_gradient, {4, 5, 6}):
        assert outcome == Outcome.DIVERGED
        assert "max_skips = 2 steps in a row were skipped before it" in heard[-1]
    assert checkpoints(more) == []
    assert all(torch.isfinite(tensor).all() for tensor in weights(run).values())


def slow_start(run):
    """Forward passes take a hundred seconds on rank 1 and ten on the other, by a clock that nothing else moves."""
    now = 0.0

    def slow(*arguments):
        engine = create(*arguments)
        plain = engine._objective._loss

        def late(*given, **named):
            nonlocal now
            now += 100.0 if dist.get_rank() == 1 else 10.0
            return plain(*given, **named)

        engine._objective._loss = late
        return engine

    loop.create, clock.time = slow, SimpleNamespace(perf_counter=lambda: now)
    try:
        return start(run)
    finally:
        loop.create, clock.time = create, time


def test_a_slow_rank_is_named(make, run_on):
    run = make(train={"steps": 4}, guards={"stragglers_every": 2, "straggler_ratio": 1.4})
    for outcome, said in run_on(2, slow_start, run):
        assert outcome == Outcome.DONE
        assert sum("slow by themselves: rank 1 (" in sentence for sentence in said) >= 1
    assert all(slow["rank"] == 1 and slow["seconds"] >= 100 for one in found(run) for slow in one["slow"])


def test_a_flipped_bit_of_one_replica_is_named_on_both_ranks_in_the_same_step(make, run_on):
    run = make(guards={"replica_check_every": 3}, checkpoint={"every": 2, "keep_last": 9})
    outcomes = run_on(2, planted, run, flip_a_bit, {5})
    assert [outcome for outcome, _ in outcomes] == [Outcome.DIVERGED] * 2
    assert outcomes[0] == outcomes[1]
    assert "after step 6, model.layers.1.mlp.up_proj.weight is not the same on data-parallel ranks: rank 0" in str(
        outcomes
    )
    assert checkpoints(run) == [2, 4], "nothing is saved of weights that differ"
    assert found(run)[0]["found"] == "replicas"
