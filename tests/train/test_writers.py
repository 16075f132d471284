"""Weights & Biases gets what TensorBoard gets, in one run over restarts, and can fail without ending anything.

A small module stands for the package, which the test suite does not need.
"""

import sys
import threading
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.summary.writer.record_writer import RecordWriter

from launch.megaxf import main
from megaxf.config import to_yaml
from tests.train.kit import column, start

WANDB = {"project": "trials"}


class Run:
    """A run of the stand-in: what was logged, by step."""

    def __init__(self, settings, step):
        self.settings, self.step, self.logged, self.finished = settings, step, {}, False

    def log(self, values, step):
        self.logged.setdefault(step, {}).update(values)

    def finish(self):
        self.finished = True


def stand_in(monkeypatch):
    """The module that stands for the package, with the list of its runs."""
    module = ModuleType("wandb")
    module.__spec__ = ModuleSpec("wandb", None)
    module.runs, module.steps = [], iter([0] * 9)
    module.Settings = lambda **settings: SimpleNamespace(**settings)

    def init(**settings):
        module.runs.append(Run(settings, next(module.steps)))
        return module.runs[-1]

    module.init = init
    monkeypatch.setitem(sys.modules, "wandb", module)
    return module


@pytest.fixture
def wandb(monkeypatch):
    return stand_in(monkeypatch)


def wanted(make, **more):
    return make(metrics={"tensorboard": True, "peak_tflops": 1.0, "wandb": WANDB | more}, train={"steps": 6})


def test_it_gets_the_scalars_of_tensorboard(make, wandb):
    run = wanted(make, name="first", entity="us")
    start(run)
    (there,) = wandb.runs
    board = EventAccumulator(str(Path(run.run_folder) / "tensorboard"), size_guidance={"scalars": 0})
    board.Reload()
    tags = board.Tags()["scalars"]
    assert {"train/loss", "time/optimizer", "gradient_norm/head", "evaluation/text/loss"} <= set(tags)
    for tag in tags:
        logged = {step: values[tag] for step, values in there.logged.items() if tag in values}
        assert logged == {event.step: pytest.approx(event.value, rel=1e-6) for event in board.Scalars(tag)}, tag
    assert {tag for values in there.logged.values() for tag in values} == set(tags)
    said = there.settings
    assert (said["project"], said["entity"], said["name"], said["mode"]) == ("trials", "us", "first", "online")
    assert said["config"]["train"]["steps"] == 6 and there.finished


def test_a_run_that_goes_on_goes_on_there(make, wandb):
    run = wanted(make)
    wandb.steps = iter([0, 5])  # it has more than the checkpoint that the run goes back to
    start(run, stop_after=4)
    start(run)
    first, second = wandb.runs
    assert first.settings["id"] == second.settings["id"] and second.settings["resume"] == "allow"
    assert first.settings["id"] == (Path(run.run_folder) / "wandb-id").read_text().strip()
    assert first.settings["name"] == "run"
    assert sorted(second.logged) == [5, 6]
    assert column(run, "step") == list(range(1, 7))


@pytest.mark.parametrize("place", ["init", "log", "finish"])
def test_what_fails_there_is_said_once_and_ends_nothing(make, wandb, monkeypatch, place):
    def fail(*given, **named):
        raise OSError("the network\nis gone")

    monkeypatch.setattr(*((wandb, "init") if place == "init" else (Run, place)), fail)
    run = wanted(make)
    outcome, said = start(run)
    assert outcome == 0 and column(run, "step") == list(range(1, 7))
    (sentence,) = (one for one in said if "Weights & Biases" in one)
    assert sentence == "Weights & Biases: the network is gone; the run goes on without it"


@pytest.mark.parametrize("place", ["write", "flush"])
def test_a_full_disk_ends_tensorboard_and_no_run(make, monkeypatch, place):
    """Its thread fails, of which the next call tells; no traceback is printed."""
    tracebacks, written = [], [0]
    monkeypatch.setattr(threading, "excepthook", tracebacks.append)
    plain = getattr(RecordWriter, place)

    def fail(*given):
        written[0] += 1
        if written[0] > 5:
            raise OSError("the disk is full")
        plain(*given)

    run = make(metrics={"tensorboard": True, "peak_tflops": 1.0}, train={"steps": 6}, evaluate={"every": 1})
    with monkeypatch.context() as patch:
        patch.setattr(RecordWriter, place, fail)
        outcome, said = start(run)
    assert outcome == 0 and column(run, "step") == list(range(1, 7))
    assert sum(one == "TensorBoard: the disk is full; the run goes on without it" for one in said) == 1
    assert threading.excepthook == tracebacks.append and not tracebacks


def test_rank_0_alone_writes_there(make, ranks2):
    run = make(metrics={"peak_tflops": 1.0, "wandb": WANDB}, train={"steps": 4})
    assert ranks2(runs_there, run) == [1, 0]


def runs_there(run):
    with pytest.MonkeyPatch.context() as patch:
        module = stand_in(patch)
        start(run)
        return len(module.runs)


def test_without_the_package_check_and_start_say_what_to_do(make, tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "wandb", None)
    monkeypatch.setattr("megaxf.train.writers.find_spec", lambda name: None)
    file = tmp_path / "run.yaml"
    file.write_text(to_yaml(wanted(make)))
    for words in (["--check"], []):
        assert main(["pretrain", str(file), *words]) == 2
        said = capsys.readouterr().err
        assert "metrics.wandb needs the package wandb, which is not installed; pip install 'megaxf[wandb]'" in said
    assert not (tmp_path / "run").exists()
