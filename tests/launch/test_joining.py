"""Processes that join: torch.distributed over what the launcher says (field reports 85, 88, 92)."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.launch.test_rendezvous import MPI, SLURM, TORCHRUN

ROOT = str(Path(__file__).resolve().parents[2])
JOIN = """
import sys
sys.path.insert(0, sys.argv[1])
from launch.rendezvous import connect, detect, disconnect
import torch, torch.distributed as dist
launch = detect()
device = connect(launch)
total = torch.tensor([1.0 + launch.rank])
dist.all_reduce(total)
print(launch.rank, launch.world_size, total.item(), torch.get_num_threads(), device)
disconnect()
"""


def processes(environments):
    """Start one process with each set of variables; (exit codes, outputs)."""
    clean = {key: value for key, value in os.environ.items() if key not in ("OMP_NUM_THREADS", *TORCHRUN)}
    command = [sys.executable, "-c", JOIN, ROOT]
    started = [
        subprocess.Popen(command, env=clean | env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for env in environments
    ]
    outputs = [process.communicate(timeout=300) for process in started]
    return [process.returncode for process in started], outputs


def test_open_mpis_variables_by_hand_make_a_world_of_two_without_mpi():
    ranks = [MPI | {"OMPI_COMM_WORLD_RANK": str(r), "OMPI_COMM_WORLD_LOCAL_RANK": str(r)} for r in range(2)]
    codes, outputs = processes([rank | {"CUDA_VISIBLE_DEVICES": ""} for rank in ranks])
    threads = max(1, len(os.sched_getaffinity(0)) // 2)
    assert codes == [0, 0], outputs
    assert [out for out, _ in outputs] == [f"{rank} 2 3.0 {threads} cpu\n" for rank in range(2)]


def test_one_process_has_a_group_of_its_own():
    codes, outputs = processes([{"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}])
    assert codes == [0], outputs
    assert outputs[0][0] == "0 1 1.0 1 cpu\n"


AGAIN = f"""
import os, sys, time
from pathlib import Path
sys.path.insert(0, {ROOT!r})
from launch.rendezvous import connect, detect, disconnect
import torch, torch.distributed as dist
launch, start = detect(), os.environ["TORCHELASTIC_RESTART_COUNT"]
time.sleep(3 * (start == "1" and launch.rank == int(os.environ["LATE"])))
connect(launch)
total = torch.tensor([1.0 + launch.rank])
dist.all_reduce(total)
Path(f"start-{{start}}-rank-{{launch.rank}}").write_text(str(total.item()))
disconnect()
sys.exit(start == "0" and launch.rank == 1)
"""


@pytest.mark.parametrize(("late", "shared"), [(0, True), (1, True), (0, False)])
def test_ranks_that_torchrun_starts_again_do_not_take_a_dead_ones_address(tmp_path, late, shared):
    """What the first start left in the store of the agent, which both starts share, is there when one is late."""
    (tmp_path / "again.py").write_text(AGAIN)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    environment = os.environ | {
        "LATE": str(late), "CUDA_VISIBLE_DEVICES": "", "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": str(int(not shared)),
    }  # fmt: skip
    done = subprocess.run(
        [*command, "--max-restarts", "1", "again.py"],
        env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    written = {path.name: path.read_text() for path in tmp_path.glob("start-*")}
    assert written == {f"start-{start}-rank-{rank}": "3.0" for start in range(2) for rank in range(2)}


@pytest.mark.long
def test_two_runs_at_the_same_moment_and_tasks_on_two_nodes():
    """Four processes of two runs with the same settings; one of them as tasks of two nodes that are this host."""
    two_nodes = SLURM | {"SLURM_STEP_NUM_TASKS": "2", "SLURM_STEP_TASKS_PER_NODE": "1(x2)", "MASTER_ADDR": "127.0.0.1"}
    slurm = [two_nodes | {"SLURM_PROCID": str(r), "SLURM_NODEID": str(r)} for r in range(2)]
    mpi = [MPI | {"OMPI_COMM_WORLD_RANK": str(r), "OMPI_COMM_WORLD_LOCAL_RANK": str(r)} for r in range(2)]
    codes, outputs = processes([place | {"CUDA_VISIBLE_DEVICES": ""} for place in (*slurm, *mpi)])
    assert codes == [0] * 4, outputs
    assert [out.split()[:3] for out, _ in outputs] == [["0", "2", "3.0"], ["1", "2", "3.0"]] * 2
