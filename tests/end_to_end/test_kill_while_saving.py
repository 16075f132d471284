"""All ranks are killed while threads beside training write a checkpoint and its export (field reports 77 and 78)."""

import json
import time
from pathlib import Path

import psutil
import pytest

from megaxf.checkpoint import list_checkpoints
from megaxf.checkpoint.checking import find_faults
from tests.end_to_end import held
from tests.end_to_end.chaos import TEMPORARY, last_step, launch, processes
from tests.train.kit import assert_same_end, checkpoints, tiny_run, write_data

pytestmark = pytest.mark.long
PATIENCE = 400


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("killed")
    write_data(folder / "data", rows=64)
    return folder


def run_of(folder, name):
    """The save of step 14 waits for that of step 7: none is skipped, however slow the machine."""
    checkpoint = {"every": 7, "export": "huggingface", "keep_last": 2}
    return tiny_run(folder, run_folder=str(folder / name), train={"steps": 40, "dropout": 0.1}, checkpoint=checkpoint)


@pytest.fixture(scope="module")
def straight(folder):
    run = run_of(folder, "straight")
    assert launch(run, folder / "straight.log").wait(PATIENCE) == 0, (folder / "straight.log").read_text()
    return run


def wait_for(what, launcher, log):
    deadline = time.monotonic() + PATIENCE
    while not what():
        assert launcher.poll() is None and time.monotonic() < deadline, log.read_text()
        time.sleep(0.05)


@pytest.mark.parametrize("place", held.PLACES)
def test_the_checkpoint_before_is_found_and_gone_on_from(folder, straight, monkeypatch, place):
    monkeypatch.setenv("MEGAXF_HELD_AT", place)
    run, log = run_of(folder, place), folder / f"{place}.log"
    launcher = launch(run, log, program=held.__file__)
    ranks = 1 if place == "rename" else 2
    # Training goes on beside what stands still.
    wait_for(lambda: len(list(Path(run.run_folder).glob("held-*"))) == ranks and last_step(run) >= 18, launcher, log)
    for process in (*processes(run), psutil.Process(launcher.pid)):
        process.kill()
    launcher.wait(PATIENCE)
    saved = Path(run.run_folder) / "checkpoints"
    (working,) = saved.glob(TEMPORARY)
    assert (working / "manifest.json").exists() is (place == "rename")
    assert "step-00000014" in working.name
    assert [(one.step, one.fault) for one in list_checkpoints(saved)] == [(7, None)]
    assert launch(run, log).wait(PATIENCE) == 0, log.read_text()
    assert "going on after step 7" in log.read_text()
    assert_same_end(run, straight)
    assert checkpoints(run) == checkpoints(straight) and not any(saved.glob(TEMPORARY))
    for one in list_checkpoints(saved):
        assert find_faults(one.path, 1, lambda size: None) == []
        config = json.loads((one.path / "huggingface/config.json").read_text())
        assert config["dtype"] == "bfloat16"
