"""torchrun on two hosts, one of which is cut off in the middle of the run (field report 87)."""

import json
import os
import sys
import time
from pathlib import Path

import pytest

from megaxf.config import to_yaml
from tests.cluster.conftest import ROOT
from tests.cluster.hosts import ADDRESSES, Hosts, missing
from tests.cluster.slurm import PATIENCE
from tests.train.kit import checkpoints, column, tiny_run, write_data

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(3600)]
TIMEOUT_SECONDS = 20


@pytest.fixture
def hosts():
    """alpha and beta."""
    if reason := missing():
        pytest.skip(reason)
    with Hosts() as pair:
        yield pair


def start(hosts, folder, port, *settings):
    """torchrun on both, by host."""
    env = {key: value for key, value in os.environ.items() if key not in ("RANK", "WORLD_SIZE", "LOCAL_RANK")}
    env |= {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}
    started = {}
    for rank, host in enumerate(ADDRESSES):
        place = ["--nnodes=2", f"--node-rank={rank}", f"--master-addr={ADDRESSES['alpha']}", f"--master-port={port}"]
        command = [sys.executable, "-m", "torch.distributed.run", *place, str(ROOT / "launch" / "pretrain.py")]
        log = folder / f"{host}-{port}.log"
        started[host] = hosts.start(host, [*command, str(folder / "run.yaml"), *settings], log, env)
    return started


def wait(started, folder, patience):
    """Until all have ended: their exit codes and what they said, by host."""
    end = time.monotonic() + patience
    while any(process.poll() is None for process in started.values()):
        assert time.monotonic() < end, [path.read_text() for path in folder.glob("*.log")]
        time.sleep(0.2)
    return {host: process.returncode for host, process in started.items()}


def test_a_host_that_is_cut_off_is_named_on_both_sides_and_the_restart_resumes(hosts, tmp_path):
    write_data(tmp_path / "data")
    run = tiny_run(tmp_path, train={"steps": 100_000}, checkpoint={"every": 5, "keep_last": 3})
    (tmp_path / "run.yaml").write_text(to_yaml(run))
    limit = f"guards.timeout_seconds={TIMEOUT_SECONDS}"
    started = start(hosts, tmp_path, 29500, limit)
    metrics, end = Path(run.run_folder) / "metrics.jsonl", time.monotonic() + PATIENCE
    while not (metrics.exists() and len(metrics.read_text().splitlines()) > 12):
        assert time.monotonic() < end, [path.read_text() for path in tmp_path.glob("*.log")]
        time.sleep(0.2)
    time.sleep(TIMEOUT_SECONDS / 2)  # Ranks have told one another by then where they are.
    hosts.cable("down")
    codes = wait(started, tmp_path, 20 * TIMEOUT_SECONDS)  # Without a heartbeat, torch ends them after 600 s.
    assert all(codes.values())
    said = {host: (tmp_path / f"{host}-29500.log").read_text() for host in ADDRESSES}
    assert "rank 1 (beta) has been silent for" in said["alpha"]
    assert ADDRESSES["alpha"] in said["beta"] or "rank 0 (alpha)" in said["beta"]
    assert not any(hosts.processes(host) for host in ADDRESSES)

    hosts.cable("up")
    saved = checkpoints(run)[-1]
    codes = wait(start(hosts, tmp_path, 29501, limit, f"train.steps={saved + 5}"), tmp_path, PATIENCE)
    said = (tmp_path / "alpha-29501.log").read_text()
    assert set(codes.values()) == {0}, said
    assert f"going on after step {saved} " in said
    assert column(run, "step") == list(range(1, saved + 6))
    starts = json.loads((Path(run.run_folder) / "environment.json").read_text())
    assert [sorted({rank["host"] for rank in each["ranks"]}) for each in starts] == [["alpha", "beta"]] * 2
