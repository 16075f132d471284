"""Signals, ranks that die, launchers that die and restarts, under torchrun (field reports 86 and 87)."""

import json
import os
import signal
import time
from pathlib import Path

import psutil
import pytest

from launch.meeting import free_port
from tests.end_to_end.chaos import chaos_run, last_step, launch, processes, ranks_of
from tests.train.kit import assert_same_end, checkpoints, column, start, write_data

pytestmark = pytest.mark.long
STEPS = 60
LOCAL = ("--standalone", "--nproc-per-node", "2", "--shutdown-timeout", "60")
FORWARD = ("--signals-to-handle", "SIGTERM,SIGINT,SIGHUP,SIGQUIT,SIGUSR1")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("failures")
    write_data(folder / "data", rows=64)
    return folder


@pytest.fixture(scope="module")
def straight(folder):
    """The run undisturbed."""
    run = chaos_run(folder, "straight", STEPS)
    assert launch(run, folder / "straight.log", *LOCAL).wait(400) == 0
    return run


class Started:
    """A run that has made some steps."""

    def __init__(self, folder: Path, name: str, *options: str) -> None:
        self.run, self.log = chaos_run(folder, name, STEPS), folder / f"{name}.log"
        self.launcher = launch(self.run, self.log, *(options or LOCAL))
        wait_for(lambda: last_step(self.run) >= 9 and checkpoints(self.run))

    def ranks(self) -> list[psutil.Process]:
        """By rank."""
        return sorted(ranks_of(self.launcher, self.run), key=lambda one: int(one.environ()["RANK"]))

    def end(self) -> str:
        """Wait for all to be gone; what was said."""
        wait_for(lambda: self.launcher.poll() is not None and not processes(self.run))
        return self.log.read_text()


def wait_for(what, seconds=300):
    deadline = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < deadline, "this has taken too long"
        time.sleep(0.05)


@pytest.mark.parametrize(
    ("victim", "number"),
    [(victim, number) for victim in ("launcher", "rank") for number in (signal.SIGTERM, signal.SIGUSR1)]
    + [("terminal", signal.SIGINT)],
)
def test_a_signal_lets_all_ranks_save_one_step(folder, straight, victim, number):
    """A terminal sends Ctrl-C to the launcher and to all ranks, and the launcher passes it on."""
    started = Started(folder, f"{victim}-{number}", *LOCAL, *FORWARD)
    if victim == "terminal":
        os.killpg(started.launcher.pid, number)
    else:
        os.kill(started.launcher.pid if victim == "launcher" else started.ranks()[1].pid, number)
    said = started.end()
    step = last_step(started.run)
    assert f"stopped after step {step} (" in said and step < STEPS
    assert checkpoints(started.run)[-1] == step
    if victim == "rank":
        assert "exitcode  : 75" in said
    assert launch(started.run, started.log, *LOCAL).wait(400) == 0
    assert_same_end(started.run, straight)


def test_ranks_whose_launcher_is_killed_save_and_leave(folder):
    started = Started(folder, "orphans")
    started.launcher.kill()
    said = started.end()
    assert f"stopped after step {last_step(started.run)} (the launcher is gone)" in said
    assert checkpoints(started.run)[-1] == last_step(started.run)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_a_lost_rank_ends_all_and_is_named(folder, number):
    started = Started(folder, f"lost-{number}")
    os.kill(started.ranks()[1].pid, number)
    said = started.end()
    assert "megaxf: error: rank 1 (" in said and "has been silent for" in said
    assert "Last heard of: step " in said
    assert started.launcher.wait() != 0


def test_torchrun_starts_again_from_the_newest_checkpoint(folder, straight):
    started = Started(folder, "again", *LOCAL, "--max-restarts", "1")
    os.kill(started.ranks()[1].pid, signal.SIGKILL)
    said = started.end()
    assert started.launcher.wait() == 0, said
    assert "going on after step" in said
    assert_same_end(started.run, straight)


def agent(run, log, port, number, seconds):
    """torchrun of one of one or two nodes, of which the first waits so many seconds for the other."""
    meet = ("--rdzv-backend", "c10d", "--rdzv-endpoint", f"127.0.0.1:{port}", "--rdzv-id", "nodes")
    options = (*meet, "--nnodes", "1:2", "--nproc-per-node", "1", "--max-restarts", "3")
    return launch(run, log, *options, "--rdzv-conf", f"is_host={int(number == 1)},last_call_timeout={seconds}")


def test_a_run_goes_on_with_the_nodes_that_are_left(folder, straight):
    """Two agents, one of which is killed with its rank: the other makes the rest of the steps alone."""
    run, port = chaos_run(folder, "nodes", STEPS), free_port()
    first, second = (agent(run, folder / f"node-{number}.log", port, number, 60) for number in (1, 2))
    wait_for(lambda: last_step(run) >= 9 and checkpoints(run))
    for process in [*psutil.Process(second.pid).children(), psutil.Process(second.pid)]:
        process.kill()
    second.wait()
    assert first.wait(400) == 0, (folder / "node-1.log").read_text()
    assert "going on after step" in (folder / "node-1.log").read_text()
    assert column(run, "loss") == pytest.approx(column(straight, "loss"), rel=1e-4)
    assert start(run)[1] == [f"{run.run_folder} stands at step {STEPS} of {STEPS}: nothing is left to do"]


def test_a_run_goes_on_with_a_node_that_comes(folder, monkeypatch):
    """Its ranks save and are started again with those of the new node, at the same global batch."""
    monkeypatch.setenv("TORCH_DISABLE_SHARE_RDZV_TCP_STORE", "1")  # torch 2.13 never tells the new node where rank 0 is
    run, port, log = chaos_run(folder, "more", 100_000), free_port(), folder / "more-1.log"
    alone = chaos_run(folder, "alone", 100_000)
    first = agent(run, log, port, 1, 1)
    wait_for(lambda: last_step(run) >= 9)
    second = agent(run, folder / "more-2.log", port, 2, 1)
    environment = Path(run.run_folder) / "environment.json"
    wait_for(lambda: len(json.loads(environment.read_text())) == 2)
    joined = json.loads(environment.read_text())[-1]["from_step"]
    wait_for(lambda: last_step(run) >= joined + 20)
    for each in (first, second):
        each.terminate()
    wait_for(lambda: not processes(run))
    assert [len(start["ranks"]) for start in json.loads(environment.read_text())] == [1, 2]
    logs = [path.read_text() for path in folder.glob("more-*.log")]
    assert any(f"going on after step {joined} " in said for said in logs), logs
    steps = column(run, "step")
    assert steps == list(range(1, len(steps) + 1))
    start(alone, stop_after=joined + 20)
    losses = column(run, "loss")
    assert losses[:joined] == column(alone, "loss")[:joined]
    assert losses[: joined + 20] == pytest.approx(column(alone, "loss"), rel=1e-4)
