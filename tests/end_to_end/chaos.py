"""`make chaos`: a run on two ranks is killed at random again and again, and ends as the run that nobody disturbed.

    python -m tests.end_to_end.chaos --kills 25 --seed 1

Each kill draws its moment (start-up, a step, a save, an evaluation), its victim (a rank, the launcher) and its signal.
After each, nothing of the run may be left alive, and every checkpoint that has its name has to be whole.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import psutil

from megaxf import checkpoint
from megaxf.checkpoint.weights import verify
from megaxf.config import Run, to_yaml
from megaxf.parallel.mesh import build_mesh
from megaxf.train.metrics import read_records
from tests.train.kit import assert_same_end, tiny_run, write_data

ROOT = Path(__file__).resolve().parents[2]
PRETRAIN = str(ROOT / "launch" / "pretrain.py")
SIGNALS = {
    "kill -9 a rank": ("rank", signal.SIGKILL),
    "kill -9 the launcher": ("launcher", signal.SIGKILL),
    "SIGTERM to the launcher": ("launcher", signal.SIGTERM),
    "SIGUSR1 to a rank": ("rank", signal.SIGUSR1),
    "SIGSTOP a rank": ("rank", signal.SIGSTOP),
}
TIMEOUT = 20
"""guards.timeout_seconds: a rank that was stopped is found after it."""
PATIENCE = 180
"""Seconds within which all processes have to be gone."""
STEPS_PER_KILL = 40
TEMPORARY = ".step-*.tmp-*"
"""What a checkpoint is called while it is being written."""


class Moment(NamedTuple):
    """When to kill: a name, and whether it has come."""

    name: str
    has_come: Callable[[], bool]


def chaos_run(folder: Path, name: str, steps: int) -> Run[Any]:
    """A run of two ranks that saves and evaluates often."""
    return tiny_run(
        folder,
        run_folder=str(folder / name),
        train={"steps": steps, "dropout": 0.1},
        checkpoint={"every": 7},
        evaluate={"every": 11},
        guards={"timeout_seconds": TIMEOUT, "replica_check_every": 10},
    )


def launch(run: Run[Any], log: Path, *options: str, program: str = PRETRAIN) -> subprocess.Popen[bytes]:
    """The run under torchrun with these options, in a session of its own."""
    file = Path(f"{run.run_folder}.yaml")
    file.write_text(to_yaml(run))
    here = options or ("--standalone", "--nproc-per-node", "2")
    torchrun = [sys.executable, "-m", "torch.distributed.run", *here]
    unset = ("LOCAL_RANK", "RANK", "WORLD_SIZE")
    env = {key: value for key, value in os.environ.items() if key not in unset}
    env |= {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": str(ROOT)}
    with open(log, "ab") as output:
        return subprocess.Popen(
            [*torchrun, "--shutdown-timeout", "15", program, str(file)],
            env=env,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )


def processes(run: Run[Any]) -> list[psutil.Process]:
    """All that work on the run."""
    words = {process: process.info["cmdline"] or [] for process in psutil.process_iter(["cmdline"])}
    return [process for process, line in words.items() if f"{run.run_folder}.yaml" in line]


def ranks_of(launcher: subprocess.Popen[bytes], run: Run[Any]) -> list[psutil.Process]:
    """The ranks that it has started: not what they start themselves, which is alike until it is another program."""
    with suppress(psutil.NoSuchProcess):
        children = set(psutil.Process(launcher.pid).children())
        return [one for one in processes(run) if one in children and "torch.distributed.run" not in one.cmdline()]
    return []


def last_step(run: Run[Any], kind: str = "train") -> int:
    """Of the records of a kind; 0 where there is none."""
    steps = [one["step"] for one in read_records(Path(run.run_folder) / "metrics.jsonl") if one["kind"] == kind]
    return max(steps, default=0)


def draw_moment(run: Run[Any], draw: random.Random) -> Moment:
    """A moment of the start that was just made."""
    kind, begun, first = (
        draw.choice(("start-up", "step", "step", "save", "evaluation")),
        time.monotonic(),
        last_step(run),
    )
    if kind == "start-up":
        wait = draw.uniform(1, 15)
        return Moment(f"start-up, {wait:.1f} s", lambda: time.monotonic() - begun > wait)
    if kind == "step":
        more = draw.randint(1, 20)
        return Moment(f"step +{more}", lambda: last_step(run) > first + more)
    if kind == "save":
        folder = Path(run.run_folder) / "checkpoints"
        left = set(folder.glob(TEMPORARY))  # by a kill before
        return Moment(kind, lambda: not left.issuperset(folder.glob(TEMPORARY)))
    return Moment(kind, lambda: last_step(run, "evaluation") > first)


def disturb(run: Run[Any], draw: random.Random, log: Path) -> str:
    """Start the run, kill it at a moment of its own, and see that nothing but whole checkpoints is left; says how."""
    launcher, moment, name = launch(run, log), draw_moment(run, draw), draw.choice(list(SIGNALS))
    victim, number = SIGNALS[name]
    choice = draw.random()
    while not moment.has_come() and launcher.poll() is None:
        time.sleep(0.01)
    while not (ranks := ranks_of(launcher, run)) and launcher.poll() is None:
        time.sleep(0.01)
    with suppress(psutil.NoSuchProcess, IndexError):  # that the run has come to its end is seen below
        at_launcher = victim == "launcher"
        (psutil.Process(launcher.pid) if at_launcher else ranks[int(choice * len(ranks))]).send_signal(number)
    deadline = time.monotonic() + PATIENCE
    while (left := processes(run)) and time.monotonic() < deadline:
        launcher.poll()
        time.sleep(0.2)
    assert not left, f"after {name} at {moment.name} these are still there: {left}"
    for listed in checkpoint.list_checkpoints(Path(run.run_folder) / "checkpoints"):
        verify(listed.path, build_mesh())
    code = launcher.wait()
    assert code != 0, f"{name} at {moment.name} did not disturb the run, which has come to its end"
    return f"{name} at {moment.name}: code {code}, step {last_step(run)}"


def main() -> None:
    """Kill, resume, compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=25)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    draw = random.Random(arguments.seed)
    with tempfile.TemporaryDirectory(prefix="megaxf-chaos-") as name:
        folder = Path(name)
        write_data(folder / "data", rows=64)
        steps = STEPS_PER_KILL * arguments.kills
        straight, run = (chaos_run(folder, kind, steps) for kind in ("straight", "disturbed"))
        assert launch(straight, folder / "straight.log").wait() == 0, (folder / "straight.log").read_text()
        print(f"undisturbed: {steps} steps", flush=True)
        for kill in range(1, arguments.kills + 1):
            print(f"{kill:>3} {disturb(run, draw, folder / 'disturbed.log')}", flush=True)
        assert launch(run, folder / "disturbed.log").wait() == 0, (folder / "disturbed.log").read_text()[-9000:]
        assert_same_end(run, straight)
        print(
            f"{arguments.kills} kills, seed {arguments.seed}: losses and final weights are those of the undisturbed run"
        )


if __name__ == "__main__":
    main()
