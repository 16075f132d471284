"""Runs under the mpirun of Open MPI and of MPICH: how they start, stop and go on."""

import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from megaxf.checkpoint import list_checkpoints
from megaxf.config import to_yaml
from tests.cluster.conftest import ROOT
from tests.cluster.slurm import PATIENCE
from tests.end_to_end import held
from tests.end_to_end.chaos import TEMPORARY, last_step
from tests.train.kit import assert_same_end, checkpoints, column, tiny_run, write_data

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(3600)]
PRETRAIN = str(ROOT / "launch" / "pretrain.py")
RANKS = {"tensor_parallel_size": 2}


def launcher_of(library):
    """The command of Open MPI or MPICH for 4 ranks, whatever Debian's `mpirun` leads to."""
    name = shutil.which(f"mpirun.{library}") or shutil.which("mpirun")
    said = subprocess.run([name, "--version"], capture_output=True, text=True).stdout if name else ""
    if not name or {"openmpi": "OpenRTE", "mpich": "HYDRA"}[library] not in said:
        package = {"openmpi": "openmpi-bin", "mpich": "mpich"}[library]
        pytest.skip(f"mpirun of {library} is not installed (Debian and Ubuntu: apt install {package})")
    return [name, "-n", "4"] + (["--oversubscribe", "--allow-run-as-root"] if library == "openmpi" else [])


class Started:
    """A run of 4 ranks under mpirun."""

    def __init__(self, folder, library, *options, program=PRETRAIN, **sections):
        if not (folder / "data").exists():
            write_data(folder / "data")
        self.run = tiny_run(folder, parallel=RANKS, **sections)
        self._log, self._file = folder / "log", f"{self.run.run_folder}.yaml"
        Path(self._file).write_text(to_yaml(self.run))
        env = os.environ | {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": str(ROOT)}
        command = [*launcher_of(library), *options, sys.executable, program, self._file]
        with self._log.open("ab") as log:
            self.launcher = subprocess.Popen(command, env=env, stdout=log, stderr=log, start_new_session=True)

    def wait_for_steps(self):
        """Until three steps are made."""
        metrics = Path(self.run.run_folder) / "metrics.jsonl"
        self.until(lambda: metrics.exists() and metrics.read_text().count('"kind": "train"') > 3)

    def processes(self):
        """All that work on the run."""
        return [each for each in psutil.process_iter(["cmdline"]) if self._file in (each.info["cmdline"] or [])]

    def end(self):
        """Wait for all to be gone: the exit code of mpirun, and what was said."""
        code = self.launcher.wait(PATIENCE)
        self.until(lambda: not self.processes())
        return code, self._log.read_text()

    def until(self, true):
        """Wait for what must come."""
        end = time.monotonic() + PATIENCE
        while not true():
            assert time.monotonic() < end, self._log.read_text()
            time.sleep(0.1)


@pytest.mark.parametrize(
    ("library", "number"),
    [("openmpi", signal.SIGUSR1), ("mpich", signal.SIGUSR1), ("mpich", signal.SIGTERM), ("mpich", signal.SIGINT)],
)
def test_a_run_of_four_ranks_is_asked_to_stop_and_goes_on(tmp_path, library, number):
    """A signal to mpirun saves and leaves with 75; the same command makes the other steps."""
    started = Started(tmp_path, library, train={"steps": 100_000})
    started.wait_for_steps()
    started.launcher.send_signal(number)
    code, said = started.end()
    (stopped,) = checkpoints(started.run)
    assert code == 75 and f"stopped after step {stopped} (" in said, said
    again = Started(tmp_path, library, train={"steps": stopped + 5})
    code, said = again.end()
    assert code == 0 and f"going on after step {stopped} " in said, said
    assert column(again.run, "step") == list(range(1, stopped + 6))
    assert "Traceback" not in said


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_what_open_mpi_leaves_its_ranks_two_seconds_for_is_whole(tmp_path, number):
    """Its mpirun passes on SIGTERM after a second, and kills after another: where they suffice, all is saved."""
    started = Started(tmp_path, "openmpi", train={"steps": 100_000}, checkpoint={"every": 3})
    started.wait_for_steps()
    started.launcher.send_signal(number)
    code, said = started.end()
    found = list_checkpoints(Path(started.run.run_folder) / "checkpoints")
    assert code == 1 and not [one for one in found if one.fault], said
    assert ("stopped after step" in said) <= (found[-1].step == last_step(started.run)), said


def test_mpirun_is_killed_while_ranks_write_a_checkpoint(tmp_path, monkeypatch):
    """The save of step 14 never ends. The ranks go, and the run goes on from step 7 as if nothing had been."""
    sections = {"train": {"steps": 40, "dropout": 0.1}, "checkpoint": {"every": 7}, "guards": {"timeout_seconds": 15}}
    monkeypatch.setenv("MEGAXF_HELD_AT", "tensors")
    started = Started(tmp_path, "openmpi", program=held.__file__, **sections)
    saved, folder = Path(started.run.run_folder) / "checkpoints", Path(started.run.run_folder)
    started.until(lambda: any(folder.glob("held-*")) and last_step(started.run) >= 16)
    started.launcher.kill()
    started.end()
    (working,) = saved.glob(TEMPORARY)
    assert "step-00000014" in working.name
    assert [(one.step, one.fault) for one in list_checkpoints(saved)] == [(7, None)]

    again = Started(tmp_path, "openmpi", **sections)
    code, said = again.end()
    assert code == 0 and "going on after step 7 " in said, said
    calm = Started(tmp_path, "openmpi", run_folder=str(tmp_path / "calm"), **sections)
    assert calm.end()[0] == 0
    assert_same_end(again.run, calm.run)
    assert not any(saved.glob(TEMPORARY))


def test_ranks_whose_mpirun_is_killed_save_and_leave(tmp_path):
    """It takes their output with it."""
    started = Started(tmp_path, "openmpi", train={"steps": 100_000})
    started.wait_for_steps()
    started.launcher.kill()
    started.end()
    assert checkpoints(started.run) == column(started.run, "step")[-1:]
