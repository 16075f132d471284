"""What asks a run to stop: the file STOP, the end of a slot, a launcher that is gone."""

import os
from pathlib import Path

import pytest

from megaxf.config_errors import ConfigError
from megaxf.train.guards import Outcome, Requests
from megaxf.train.guards import stop as stop_module
from tests.train.kit import checkpoints, start


def never():
    return False


def test_the_end_of_the_slot_counts_a_step_and_the_measured_save(tmp_path, monkeypatch):
    requests = Requests(never, tmp_path, minutes=10.0)
    begun = requests._end - 600

    def asked(after, step, save):
        monkeypatch.setattr(stop_module.time, "time", lambda: begun + after)
        return requests.stop(step, save)

    assert not asked(594, 1, 4), "594 + 1 + 1.25 x 4 = 600"
    assert not asked(524, 1, 0), "without a measured save a tenth of the slot is kept, 75 s with the margin"
    assert asked(524.1, 1, 0)
    assert requests.reason.startswith("train.exit_after_minutes, with 75.0 s left")
    assert asked(594.1, 1, 4) and asked(594, 1.1, 4)
    assert not Requests(never, tmp_path, minutes=None).stop(1e9, 1e9)


def test_a_launcher_that_is_gone_is_a_reason(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "getppid", lambda: 77)
    requests = {launched: Requests(never, None, None, launched) for launched in (True, False)}
    assert not requests[True].stop(0, 0)
    monkeypatch.setattr(os, "getppid", lambda: 1)
    assert requests[True].stop(0, 0) and requests[True].reason == "the launcher is gone"
    assert not requests[False].stop(0, 0), "a shell may end before the run that it has started"


def test_a_file_stops_the_run_and_keeps_it_stopped(make):
    """It stays: a requeue would otherwise take up again what somebody has stopped."""
    run = make()
    folder = Path(run.run_folder)
    assert start(run, stop_after=2)[0] == Outcome.STOPPED
    (folder / "STOP").touch()
    with pytest.raises(ConfigError, match=r"STOP.*\n.*remove the file to go on with the run"):
        start(run)
    (folder / "STOP").unlink()

    def touch(step, phase):
        if (step, phase) == (5, "train"):
            (folder / "STOP").touch()

    outcome, said = start(run, beat=touch)
    assert (outcome, checkpoints(run)) == (Outcome.STOPPED, [2, 5])
    assert f"stopped after step 5 ({folder / 'STOP'}; remove it to go on); the same command continues" in said


def test_a_slot_that_is_over_saves_and_leaves(make):
    run = make(train={"exit_after_minutes": 1e-6})
    outcome, said = start(run)
    assert (outcome, checkpoints(run)) == (Outcome.STOPPED, [])
    assert any("stopped after step 0 (train.exit_after_minutes" in sentence for sentence in said)
