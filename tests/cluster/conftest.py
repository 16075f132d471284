"""One Slurm for all tests of this folder, and runs to submit to it."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from megaxf.config import to_yaml
from tests.cluster.slurm import PATIENCE, Slurm, missing
from tests.train.kit import tiny_run, write_data

ROOT = Path(__file__).resolve().parents[2]
ENVIRONMENT = "export MASTER_ADDR=127.0.0.1 OMP_NUM_THREADS=1 CUDA_VISIBLE_DEVICES= PYTHONPATH={root}\npause=2\n"
"""Slurm's names of nodes do not lead anywhere on one host."""


@pytest.fixture(scope="session")
def slurm(tmp_path_factory):
    """A Slurm of two nodes."""
    if reason := missing():
        pytest.skip(reason)
    with Slurm(tmp_path_factory.mktemp("slurm") / "cluster") as cluster:
        yield cluster


class Site:
    """A folder with data, and what is submitted from there."""

    def __init__(self, folder: Path, slurm: Slurm | None) -> None:
        self.folder, self.slurm = folder, slurm
        write_data(folder / "data")
        (folder / "site.sh").write_text(ENVIRONMENT.format(root=ROOT))

    def write(self, **sections):
        """A run file of a nasty name, and its run."""
        run = tiny_run(self.folder, **sections)
        path = self.folder / f"{Path(run.run_folder).name} it's.yaml"
        path.write_text(to_yaml(run))
        return path.name, run

    def megaxf(self, *words, code=0):
        """What the command prints, started in the folder; with another code than 0, its error."""
        env = (self.slurm.env if self.slurm else os.environ) | {"PYTHONPATH": str(ROOT), "CUDA_VISIBLE_DEVICES": ""}
        command = [sys.executable, "-m", "launch.megaxf", *map(str, words)]
        done = subprocess.run(command, cwd=self.folder, env=env, capture_output=True, text=True, timeout=PATIENCE)
        assert done.returncode == code, done.stdout + done.stderr
        return done.stderr if code else done.stdout

    def submit(self, *words):
        """The number of a job, whose ranks are on the CPU."""
        options = ["--gpus-per-node", "0", "--time", "60", "--environment", "site.sh", "--json"]
        (job,) = json.loads(self.megaxf("submit", *words, *options))["jobs"]
        return job

    def sbatch(self, template, *arguments, options=(), **variables):
        """The number of a job of a script of slurm/, submitted as by hand from the folder."""
        env = (
            self.slurm.env
            | {"here": str(ROOT / "slurm"), "environment": "site.sh", "python": sys.executable}
            | variables
        )
        command = ["sbatch", "--parsable", *options, str(ROOT / "slurm" / template), *map(str, arguments)]
        done = subprocess.run(command, cwd=self.folder, env=env, capture_output=True, text=True, timeout=PATIENCE)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def log(self, job):
        """What the job has printed."""
        return "".join(path.read_text() for path in self.folder.rglob(f"slurm-{job}.out"))


@pytest.fixture
def site(tmp_path, slurm):
    """A folder to submit from."""
    return Site(tmp_path, slurm)
