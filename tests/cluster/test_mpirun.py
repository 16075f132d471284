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

from megaxf.config import to_yaml
from tests.cluster.conftest import ROOT
from tests.cluster.slurm import PATIENCE
from tests.train.kit import checkpoints, column, tiny_run, write_data

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

    def __init__(self, folder, library, *options, **sections):
        if not (folder / "data").exists():
            write_data(folder / "data")
        self.run, self._log = tiny_run(folder, parallel=RANKS, **sections), folder / "log"
        (folder / "run.yaml").write_text(to_yaml(self.run))
        env = os.environ | {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": "", "PYTHONPATH": str(ROOT)}
        command = [*launcher_of(library), *options, sys.executable, PRETRAIN, str(folder / "run.yaml")]
        with self._log.open("ab") as log:
            self.launcher = subprocess.Popen(command, env=env, stdout=log, stderr=log, start_new_session=True)

    def wait_for_steps(self):
        """Until three steps are made."""
        metrics = Path(self.run.run_folder) / "metrics.jsonl"
        self.until(lambda: metrics.exists() and metrics.read_text().count('"kind": "train"') > 3)

    def ranks(self):
        """The processes of the ranks."""
        return [each for each in psutil.process_iter(["cmdline"]) if PRETRAIN in (each.info["cmdline"] or [])[1:2]]

    def end(self):
        """Wait for all to be gone: the exit code of mpirun, and what was said."""
        code = self.launcher.wait(PATIENCE)
        self.until(lambda: not [one for one in self.ranks() if str(self.run.run_folder) in " ".join(one.cmdline())])
        return code, self._log.read_text()

    def until(self, true):
        """Wait for what must come."""
        end = time.monotonic() + PATIENCE
        while not true():
            assert time.monotonic() < end, self._log.read_text()
            time.sleep(0.1)


@pytest.mark.parametrize("library", ["openmpi", "mpich"])
def test_a_run_of_four_ranks_is_asked_to_stop_and_goes_on(tmp_path, library):
    """SIGUSR1 to mpirun saves and leaves with 75; the same command makes the other steps."""
    started = Started(tmp_path, library, train={"steps": 100_000})
    started.wait_for_steps()
    started.launcher.send_signal(signal.SIGUSR1)
    code, said = started.end()
    (stopped,) = checkpoints(started.run)
    assert code == 75 and f"stopped after step {stopped} (" in said, said
    again = Started(tmp_path, library, train={"steps": stopped + 5})
    code, said = again.end()
    assert code == 0 and f"going on after step {stopped} " in said, said
    assert column(again.run, "step") == list(range(1, stopped + 6))
    assert "Traceback" not in said
