"""megaxf doctor on a real Slurm of two nodes."""

import json
import subprocess
import sys

import pytest

from tests.cluster.conftest import ROOT
from tests.cluster.slurm import PATIENCE

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(3600)]


def test_nodes_are_measured_and_named_as_slurm_names_them(site):
    """What is slow can be left out with sbatch --exclude."""
    doctor = [sys.executable, "-m", "launch.megaxf", "doctor", "--tensor-parallel-size", "2", "--json"]
    command = ["srun", "--nodes", "2", "--ntasks-per-node", "2", *doctor]
    env = site.slurm.env | {"MASTER_ADDR": "127.0.0.1", "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=site.folder, env=env, capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stdout + done.stderr
    said = json.loads(done.stdout)
    assert list(said["hosts"]) == ["node1", "node2"]
    found = said["measured"]
    assert found["hosts"] == ["node1", "node1", "node2", "node2"]
    assert [hosts for hosts, *_ in found["pairs"]] == [["node1", "node2"]]
    axes = [f"{message}, {axis}" for axis in ("data", "tensor") for message in ("all-reduce", "all-gather")]
    assert {one["name"] for one in said["cluster"]} >= {"ranks", "clocks", *axes}
    assert all(one["verdict"] == "good" for one in said["cluster"])
