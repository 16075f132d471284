"""The loop on one process: what is saved when, and what a second start does (field reports 71 to 74, 83, 104, 113)."""

import json
import math
import os
import shutil
from pathlib import Path

import pytest
import torch

from megaxf.checkpoint import CheckpointError
from megaxf.config_errors import ConfigError
from megaxf.models.initialize import initialize
from megaxf.models.llama import Model
from megaxf.train import loop
from megaxf.train.guards import Outcome
from megaxf.train.schedules import rate_of
from tests.train.kit import (
    assert_same_end,
    checkpoints,
    column,
    records,
    start,
    tiny_run,
    weights,
    write_data,
)


def snapshot(folder):
    """Every file of a folder with its content and time."""
    files = [path for path in Path(folder).rglob("*") if path.is_file()]
    return {str(path): (path.read_bytes(), path.stat().st_mtime_ns) for path in files}


def test_a_run_and_a_finished_run(make):
    run = make(train={"steps": 7}, checkpoint={"every": 3, "keep_last": 9}, evaluate={"every": 4})
    outcome, said = start(run)
    assert outcome == Outcome.DONE
    assert checkpoints(run) == [3, 6, 7]
    assert column(run, "step") == [1, 2, 3, 4, 5, 6, 7]
    assert column(run, "learning_rate") == [rate_of(run, step) for step in range(1, 8)]
    assert column(run, "tokens") == [64 * step for step in range(1, 8)]
    assert [record["step"] for record in records(run, "evaluation")] == [0, 4, 7]
    assert abs(column(run, "loss")[0] - math.log(61)) < 0.1
    assert said[-2].startswith("done: 7 steps, 448 tokens")
    before = snapshot(run.run_folder)
    outcome, said = start(run)
    assert (outcome, said) == (Outcome.DONE, [f"{run.run_folder} stands at step 7 of 7: nothing is left to do"])
    assert snapshot(run.run_folder) == before


@pytest.fixture(scope="module")
def straight(tmp_path_factory):
    """12 steps in one go. 16 rows, 4 a step: an epoch ends with step 4, 8 and 12; the warm-up with step 3."""
    folder = tmp_path_factory.mktemp("straight")
    write_data(folder / "data")
    run = tiny_run(folder)
    start(run)
    return run


@pytest.mark.parametrize("stops", [[1], [2], [4], [11], [3, 1, 5]])
def test_stopped_and_continued_is_the_straight_run(make, straight, stops):
    run = make()
    for done, stop in enumerate(stops):
        outcome, said = start(run, stop_after=stop)
        assert outcome == Outcome.STOPPED
        assert f"stopped after step {sum(stops[: done + 1])} (a signal); the same command continues" in said
        assert checkpoints(run)[-1] == sum(stops[: done + 1])
    assert start(run)[0] == Outcome.DONE
    assert_same_end(run, straight)
    assert [record["step"] for record in records(run, "evaluation")] == [0, 12], "no evaluation twice"


def test_dropout_goes_on_where_it_stopped(make):
    """Masks follow from the place of a row in the data, so that neither a stop nor an epoch repeats one."""
    runs = [make(run_folder=f"{make().run_folder}-{name}", train={"dropout": 0.3}) for name in ("straight", "stopped")]
    start(runs[0])
    start(runs[1], stop_after=5)
    start(runs[1])
    assert_same_end(*runs)
    frozen = make(train={"dropout": 0.3}, optimizer={"learning_rate": 1e-30})
    start(frozen)
    losses = column(frozen, "loss")
    assert len(set(losses)) == 12, "the same rows come in steps 1, 5 and 9, and fall out elsewhere"


def test_after_a_crash_no_step_is_doubled_or_lost(make, straight):
    """The crash comes beyond the last checkpoint, in the middle of a line."""
    run = make(checkpoint={"every": 5, "keep_last": 9})
    start(run, stop_after=7)
    assert checkpoints(run) == [5, 7]
    for path in (Path(run.run_folder) / "checkpoints" / "step-00000007").rglob("*"):
        path.unlink() if path.is_file() else None
    with (Path(run.run_folder) / "metrics.jsonl").open("a") as file:
        file.write('{"kind": "train", "step": 8, "lo')
    outcome, said = start(run)
    assert outcome == Outcome.DONE
    assert any("passing over" in sentence for sentence in said)
    assert any(sentence.startswith("going on after step 5 ") for sentence in said)
    assert_same_end(run, straight)


def test_stopping_before_the_first_step_saves_nothing(make):
    run = make()
    assert start(run, stop_after=0)[0] == Outcome.STOPPED
    assert checkpoints(run) == []
    assert start(run)[0] == Outcome.DONE
    assert len(records(run, "evaluation")) == 2, "the first start's evaluation is replaced"


@pytest.mark.parametrize("warmup", [0, 1, 5])
def test_the_first_update_changes_the_weights(make, warmup):
    run = make(train={"steps": 5}, schedule={"warmup_steps": warmup})
    start(run, stop_after=1)
    model = Model(run.model)
    initialize(model, run.seed)
    before, after = model.state_dict()["model.layers.1.mlp.up_proj.weight"], weights(run)
    moved = (after["model.layers.1.mlp.up_proj.weight"] - before).abs().max()
    assert moved == pytest.approx(rate_of(run, 1), rel=0.1), "AdamW's first step moves by the rate"


def test_evaluating_changes_nothing(make, straight):
    run = make(evaluate={"every": 3})
    start(run)
    assert_same_end(run, straight)
    losses = [record["loss"] for record in records(run, "evaluation")]
    assert len(losses) == 5 and len(set(losses)) == 5


def test_a_longer_run_says_what_happens_to_the_learning_rate(make):
    run = make()
    start(run, stop_after=6)
    longer = make(train={"steps": 24}, schedule={"kind": "linear"})
    outcome, said = start(longer)
    assert outcome == Outcome.DONE
    old, new = rate_of(run, 7), rate_of(longer, 7)
    assert "train.steps has changed: 12 -> 24" in said
    assert "schedule.kind has changed: cosine -> linear" in said
    assert f"the learning rate of step 7 was to be {old:.6g} and now is {new:.6g}" in said
    assert column(run, "step") == list(range(1, 25))
    said_later = start(make(train={"steps": 25}, schedule={"kind": "linear"}))[1]
    assert "schedule.kind has changed" not in " ".join(said_later), "compared with the newest checkpoint"


def test_another_batch_size_goes_on_at_the_next_sample(make):
    run = make()
    start(run, stop_after=3)
    other = make(train={"global_batch_size": 8, "steps": 5})
    _, said = start(other)
    assert any(
        sentence.startswith("train.global_batch_size has changed: 4 -> 8; reading goes on at the next sample")
        for sentence in said
    )
    assert column(other, "tokens") == [64, 128, 192, 192 + 128, 192 + 256]


def test_another_layout_is_announced_and_goes_on(make):
    start(make(), stop_after=3)
    outcome, said = start(make(engine={"zero_stage": 0}, train={"micro_batch_size": 1, "recompute": "full"}))
    assert outcome == Outcome.DONE
    for change in ("train.micro_batch_size has changed: 2 -> 1", "train.recompute has changed: none -> full"):
        assert f"{change}; the losses go on as they would have, but for rounding" in said


def test_another_order_of_the_data_is_announced(make, tmp_path):
    start(make(), stop_after=2)
    _, said = start(make(seed=8), stop_after=1)
    assert "seed has changed: 7 -> 8; weights go on as they are" in said
    assert any(sentence.endswith("step-00000002: seed was 7 and is 8: everything is drawn anew") for sentence in said)
    (tmp_path / "data").rename(tmp_path / "gone")
    write_data(tmp_path / "data", seed=1)
    _, said = start(make(seed=8), stop_after=1)
    assert any("step-00000003: source text holds other data: its manifest was" in sentence for sentence in said)


def test_another_model_is_refused(make):
    start(make(), stop_after=1)
    with pytest.raises(
        ConfigError, match=r"another model: model.num_hidden_layers: 2 -> 3, model.qk_norm: False -> True"
    ):
        start(make(model={"num_hidden_layers": 3, "qk_norm": True}))


@pytest.mark.parametrize("written", [0, 1])
@pytest.mark.parametrize("new", [True, False])
def test_a_start_that_is_killed_at_the_folders_files_is_followed_by_another(make, monkeypatch, new, written):
    run, replace, left = make(), os.replace, 0
    folder = Path(run.run_folder)
    if not new:
        start(run, stop_after=2)

    def kill(source, target):
        nonlocal left
        if Path(target).parent == folder:
            if left == written:
                raise SystemExit("killed")
            left += 1
        replace(source, target)

    with monkeypatch.context() as patch, pytest.raises(SystemExit, match="killed"):
        patch.setattr(os, "replace", kill)
        start(run)
    (folder / "stacks").mkdir()  # of a rank that was lost while others loaded
    assert start(run)[0] == Outcome.DONE
    starts = json.loads((folder / "environment.json").read_text())
    assert [one["from_step"] for one in starts] == ([0] if new else [0, 2])


def test_resume_must_find_something(make, tmp_path):
    with pytest.raises(ConfigError, match=r"--resume: 1 error\n.*run_folder = .* holds no complete checkpoint"):
        start(make(), must_resume=True)
    assert not (tmp_path / "run").exists()
    start(make(), stop_after=1)
    assert start(make(), must_resume=True)[0] == Outcome.DONE


def test_a_run_whose_checkpoints_are_all_damaged_does_not_start_anew(make):
    run = make()
    start(run, stop_after=2)
    manifest = Path(run.run_folder) / "checkpoints" / "step-00000002" / "manifest.json"
    manifest.unlink()
    with pytest.raises(CheckpointError, match=r"no checkpoint in .* can be loaded"):
        start(run)


def damage(run, step):
    """One bit of the largest file of a checkpoint, the size of which stays."""
    files = (Path(run.run_folder) / "checkpoints" / f"step-{step:08}" / "tensors").iterdir()
    file = max(files, key=lambda path: path.stat().st_size)
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)


def test_what_is_said_at_a_start_is_of_the_checkpoint_that_is_loaded(make):
    run = make(checkpoint={"every": 4, "keep_last": 9})
    start(run, stop_after=8)
    damage(run, 8)
    longer = make(train={"steps": 24})
    said = start(longer, stop_after=0)[1]
    assert any(sentence.startswith("going on after step 4 ") for sentence in said)
    old, new = rate_of(run, 5), rate_of(longer, 5)
    assert f"the learning rate of step 5 was to be {old:.6g} and now is {new:.6g}" in said
    assert not any("learning rate of step 9" in sentence for sentence in said)


def test_a_finished_run_whose_last_checkpoint_is_damaged_makes_it_again(make, straight, run_on):
    run = make(checkpoint={"every": 5, "keep_last": 9})
    start(run)
    damage(run, 12)
    outcome, said = start(run)
    assert outcome == Outcome.DONE
    assert any(sentence.startswith("going on after step 10 ") for sentence in said)
    assert_same_end(run, straight)
    nothing = f"{run.run_folder} stands at step 12 of 12: nothing is left to do"
    assert start(run) == (Outcome.DONE, [nothing])
    assert run_on(2, start, run) == [(Outcome.DONE, [nothing])] * 2
    damage(run, 12)
    assert nothing not in run_on(2, start, run)[0][1]


def test_divergence_stops_and_keeps_the_last_good_checkpoint(make):
    run = make(checkpoint={"every": 2})
    start(run, stop_after=2)
    outcome, said = start(make(optimizer={"learning_rate": 1e30}, checkpoint={"every": 1}))
    assert outcome == Outcome.DIVERGED == 3
    assert any("is not finite: all ranks stop here and save nothing" in sentence for sentence in said)
    assert all(torch.isfinite(tensor).all() for tensor in weights(run).values())
    assert records(run)[-1]["loss"] is None or records(run)[-1]["gradient_norm"] is None


def test_data_of_a_larger_vocabulary_stops_before_the_first_step(make, tmp_path):
    with pytest.raises(ValueError, match=r"largest id used: 60\), but model.vocab_size = 60; set it to 61 or more"):
        start(make(model={"vocab_size": 60}))
    assert not (tmp_path / "run").exists()


def test_evaluation_without_validation_data(make, tmp_path):
    write_data(tmp_path / "only-train", validation_rows=0)
    data = {"sources": {"text": {"folder": str(tmp_path / "only-train")}}}
    with pytest.raises(ConfigError, match="the section evaluate has no effect, since no source has validation data"):
        start(make(data=data, evaluate={"every": 2}))
    assert start(make(data=data), stop_after=1)[0] == Outcome.STOPPED


def test_another_model_goes_on_where_that_is_asked_for(make):
    """What the checkpoint lacks is said, tensor by tensor, and begins anew; the rest is as it was."""
    start(make(), stop_after=3)
    before = weights(make())
    other = make(model={"qk_norm": True})
    with pytest.raises(ConfigError, match=r"model.qk_norm: False -> True; use its model, .* --allow-missing"):
        start(other)
    outcome, said = start(other, stop_after=0, allow_missing=True)
    assert outcome == Outcome.STOPPED
    missing = {line.split(": ")[1] for line in said if "step-00000003: " in line}
    norms = {f"model.layers.{layer}.self_attn.{which}_norm.weight" for layer in (0, 1) for which in "qk"}
    assert missing == {f"{name} is missing in the checkpoint" for name in norms}
    assert start(other, stop_after=1, allow_missing=True)[0] == Outcome.STOPPED
    after = weights(other)
    assert after.keys() - before.keys() == norms and all((after[name] - 1).abs().max() < 0.05 for name in norms)
    assert all((after[name] - before[name]).abs().max() < 0.05 for name in before)


def going_on(run, bad=()):
    """Go on with another model; the loss of these steps is not finite when they are first made."""
    create = loop.create

    def planted(*arguments):
        engine = create(*arguments)
        plain, left = engine.train_step, list(bad)

        def train_step(*batch):
            result = plain(*batch)
            if engine.optimizer_step in left:
                left.remove(engine.optimizer_step)
                return result._replace(loss=math.nan)
            return result

        engine.train_step = train_step
        return engine

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(loop, "create", planted)
        return start(run, allow_missing=True)


@pytest.mark.parametrize(("ranks", "zero_stage"), [(1, 0), (2, 1)])
def test_another_model_begins_anew_in_a_rewind_too(make, run_on, ranks, zero_stage):
    """What the checkpoint lacks has learned from the data that is passed over, and must not keep that."""
    start(make(), stop_after=3)
    folder, changed = Path(make().run_folder), {"model": {"qk_norm": True}, "engine": {"zero_stage": zero_stage}}
    shutil.copytree(folder, f"{folder}-told")
    run = make(guards={"on_non_finite": "rewind-and-skip-data"}, checkpoint={"every": 50}, **changed)
    for outcome, said in run_on(ranks, going_on, run, (5,)):
        assert outcome == Outcome.DONE
        assert "back to the checkpoint of step 3 and pass over the data of steps 4 to 5" in " ".join(said)
    told = make(run_folder=f"{folder}-told", data={"skip_steps": [[4, 5]]}, **changed)
    run_on(ranks, going_on, told)
    assert_same_end(run, told)
