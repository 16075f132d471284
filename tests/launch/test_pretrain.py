"""launch/pretrain.py under torchrun with two processes: user faults, signals, the end (field reports 74, 86)."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from megaxf.config import to_yaml
from megaxf.train.guards import Signals
from tests.train.kit import checkpoints, column, tiny_run, write_data

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def torchrun():
    """Starts the command as a process of its own, on the CPU; what a failed test leaves of it is killed."""
    started = []

    def start(*arguments):
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
        command += [str(ROOT / "launch" / "pretrain.py"), *map(str, arguments)]
        env = os.environ | {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
        env = {key: value for key, value in env.items() if key not in ("LOCAL_RANK", "RANK", "WORLD_SIZE")}
        pipe = subprocess.PIPE
        started.append(subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, cwd="/", env=env))
        return started[-1]

    yield start
    for launcher in started:
        if launcher.poll() is None:
            for process in [*psutil.Process(launcher.pid).children(recursive=True), launcher]:
                process.kill()


@pytest.fixture
def write(tmp_path):
    """Write a run file; (its path, the run)."""
    write_data(tmp_path / "data")

    def make(**sections):
        run = tiny_run(tmp_path, **sections)
        (tmp_path / "run.yaml").write_text(to_yaml(run))
        return tmp_path / "run.yaml", run

    return make


def workers(launcher):
    """The ranks, by rank. A child is like the launcher until it is another program, and has no rank."""
    ranks = {}
    for child in psutil.Process(launcher.pid).children():
        if "pretrain.py" in " ".join(child.cmdline()) and "RANK" in (environment := child.environ()):
            ranks[int(environment["RANK"])] = child
    return [ranks[rank] for rank in sorted(ranks)]


def wait_for_step(run, step, launcher, patience=300):
    """Until the step is recorded."""
    metrics, end = Path(run.run_folder) / "metrics.jsonl", time.monotonic() + patience
    while time.monotonic() < end:
        assert launcher.poll() is None, launcher.communicate()[1]
        if metrics.exists() and any(json.loads(line)["step"] >= step for line in metrics.read_text().splitlines()[:-1]):
            return
        time.sleep(0.1)
    raise AssertionError("the run does not come forward")


def test_a_signal_to_one_rank_stops_all_and_the_run_continues(write, torchrun):
    """USR1 to rank 1; start again; then TERM to the launcher."""
    file, run = write(train={"steps": 100_000})
    launcher = torchrun(file)
    wait_for_step(run, 3, launcher)
    both = workers(launcher)
    os.kill(both[1].pid, signal.SIGUSR1)
    out, err = launcher.communicate(timeout=300)
    assert "exitcode  : 75" in err
    (first,) = checkpoints(run)
    assert column(run, "step") == list(range(1, first + 1))
    assert f"stopped after step {first} (another rank was asked to); the same command continues" in out
    assert not any(process.is_running() for process in both)

    launcher = torchrun(file)
    wait_for_step(run, first + 2, launcher)
    both = workers(launcher)
    launcher.send_signal(signal.SIGTERM)
    launcher.communicate(timeout=300)
    second = checkpoints(run)[-1]
    assert second > first
    assert column(run, "step") == list(range(1, second + 1)), "no step lost, none twice"
    assert not any(process.is_running() for process in both)


def holds_signals(process):
    """Whether a process has come so far that no signal kills it: it blocks SIGTERM."""
    (mask,) = [
        line.split()[1] for line in Path(f"/proc/{process.pid}/status").read_text().splitlines() if "SigBlk" in line
    ]
    return bool(int(mask, 16) >> (signal.SIGTERM - 1) & 1)


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="/proc tells which signals a process blocks")
def test_a_signal_to_one_rank_during_its_imports_stops_all_before_the_first_step(write, torchrun):
    file, run = write(train={"steps": 100_000})
    launcher, end = torchrun(file), time.monotonic() + 300
    while not (len(both := workers(launcher)) == 2 and holds_signals(both[-1])):
        assert time.monotonic() < end and launcher.poll() is None
        time.sleep(0.01)
    both[-1].send_signal(signal.SIGTERM)
    out, err = launcher.communicate(timeout=300)
    assert "exitcode  : 75" in err, err
    assert "stopped after step 0 (" in out
    assert checkpoints(run) == column(run, "step") == [], "no step is made, so none is saved"
    assert not any(process.is_running() for process in both)


def test_a_signal_ends_a_rank_that_waits_for_others(write):
    """Rank 0 of 2 under a launcher that started no other: nothing is begun, nothing is written."""
    file, run = write()
    with socket.create_server(("", 0)) as free:
        port = free.getsockname()[1]
    place = {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    command = [sys.executable, str(ROOT / "launch" / "pretrain.py"), str(file)]
    rank = subprocess.Popen(command, env=os.environ | place | {"CUDA_VISIBLE_DEVICES": ""}, stderr=subprocess.PIPE)
    while rank.poll() is None and not any(
        each.laddr.port == port for each in psutil.Process(rank.pid).net_connections()
    ):
        time.sleep(0.1)
    rank.send_signal(signal.SIGTERM)
    assert rank.communicate(timeout=300)[1] == b""
    assert rank.returncode == 75
    assert not Path(run.run_folder).exists()


def test_a_fault_is_said_once_and_no_rank_hangs(write, torchrun):
    file, _ = write()
    launcher = torchrun(file, "train.stepz=3")
    out, err = launcher.communicate(timeout=300)
    assert launcher.returncode == 1
    assert err.count("train.stepz is not a setting; did you mean train.steps?") == 1
    assert "exitcode  : 2" in err
    assert out == ""


def test_signals_are_requests_and_a_second_interrupt_is_not():
    before = signal.getsignal(signal.SIGTERM)
    with Signals() as signals:
        assert not signals.asked()
        signals.ECHO_SECONDS = 600.0
        os.kill(os.getpid(), signal.SIGUSR1)
        os.kill(os.getpid(), signal.SIGINT)
        os.kill(os.getpid(), signal.SIGINT)  # The echo of a launcher.
        assert signals.asked()
        assert signals.name == "SIGUSR1"
        time.sleep(0.05)
        signals.ECHO_SECONDS = 0.01
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
    assert signal.getsignal(signal.SIGTERM) is before
