"""Slurm's node lists, as `scontrol show hostnames` writes them out (field report 84)."""

import os
import shutil
import subprocess

import pytest

from launch.node_list import expand

LISTS = {
    "linux[1,2]": ["linux1", "linux2"],
    "alpha,beta,gamma": ["alpha", "beta", "gamma"],
    "nodeA,nodeB[001,003],nodeC": ["nodeA", "nodeB001", "nodeB003", "nodeC"],
    "ml-16-node-[001-002,004],ml-17-node-[001-003]": [
        "ml-16-node-001",
        "ml-16-node-002",
        "ml-16-node-004",
        "ml-17-node-001",
        "ml-17-node-002",
        "ml-17-node-003",
    ],
    "d05-[41-42]": ["d05-41", "d05-42"],
    "node[01-03,07]": ["node01", "node02", "node03", "node07"],
    "localhost": ["localhost"],
    "n[8-11]": ["n8", "n9", "n10", "n11"],
    "n[098-101]": ["n098", "n099", "n100", "n101"],
    "rack[1-2]n[3,5-6]": ["rack1n3", "rack1n5", "rack1n6", "rack2n3", "rack2n5", "rack2n6"],
    "gpu[007-008,20],login1": ["gpu007", "gpu008", "gpu20", "login1"],
}


@pytest.mark.parametrize("nodes", LISTS)
def test_expands(nodes):
    assert expand(nodes) == LISTS[nodes]


def test_scontrol_agrees(tmp_path):
    if not shutil.which("scontrol"):
        pytest.skip("Slurm's scontrol is not installed (Debian and Ubuntu: apt install slurm-client)")
    (tmp_path / "slurm.conf").write_text("ClusterName=none\nSlurmctldHost=localhost\n")
    env = os.environ | {"SLURM_CONF": str(tmp_path / "slurm.conf")}
    for nodes, names in LISTS.items():
        shown = subprocess.run(["scontrol", "show", "hostnames", nodes], env=env, capture_output=True, text=True).stdout
        assert shown.split() == names


@pytest.mark.parametrize(
    "nodes", ["", "a,,b", "a[1", "a1]", "a[1-", "a[2-1]", "a[x]", "a[]", "a[1,]", "a[[1]]", "a[1-2-3]"]
)
def test_refuses(nodes):
    with pytest.raises(ValueError, match="is not a node list"):
        expand(nodes)
