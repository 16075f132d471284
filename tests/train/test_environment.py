"""What is written down about a start."""

import json
import os
import platform
import subprocess
from pathlib import Path

from megaxf.train.environment import git_state, idle_cores
from tests.train.kit import start


def test_each_start_is_described(make):
    run = make()
    start(run, stop_after=2, launcher="torchrun")
    start(run, stop_after=1)
    first, second = json.loads((Path(run.run_folder) / "environment.json").read_text())
    assert (first["from_step"], second["from_step"]) == (0, 2)
    assert first["launcher"] == "torchrun"
    assert first["ranks"][0]["host"] == platform.node()
    assert set(first["packages"]) >= {"torch", "deepspeed"}
    assert first["python"] == platform.python_version()


def test_git_state(tmp_path):
    assert git_state(tmp_path) is None
    git = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@b.c"]
    (tmp_path / "__init__.py").write_text("")
    for command in (["init", "-q"], ["add", "."], ["commit", "-qm", "one"]):
        subprocess.run([*git, *command], check=True)
    clean = git_state(tmp_path)
    assert len(clean["commit"]) == 40 and not clean["changed"]
    (tmp_path / "__init__.py").write_text("x = 1")
    assert git_state(tmp_path) == clean | {"changed": True}


def test_idle_cores():
    cores = len(os.sched_getaffinity(0))
    rank, far = {"host": platform.node()}, {"host": "far"}
    assert idle_cores({"ranks": [rank, far], "threads_per_rank": cores}) is None
    assert idle_cores({"ranks": [rank] * cores + [far], "threads_per_rank": 1}) is None
    if cores > 1:
        advice = idle_cores({"ranks": [rank], "threads_per_rank": 1})
        assert (
            advice
            == f"each process uses 1 of the {cores} cores that are its share; OMP_NUM_THREADS={cores} uses them all"
        )
