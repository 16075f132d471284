"""Who wins among the variables of launchers, and what is refused (field reports 88, 89, 92)."""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from launch.rendezvous import Launch, detect, first_host, free_port
from megaxf.config_errors import ConfigError

TORCHRUN = {
    "RANK": "5",
    "WORLD_SIZE": "8",
    "LOCAL_RANK": "1",
    "LOCAL_WORLD_SIZE": "4",
    "MASTER_ADDR": "head",
    "MASTER_PORT": "29400",
    "TORCHELASTIC_RUN_ID": "x",
}
SLURM = {
    "SLURM_JOB_ID": "1234",
    "SLURM_STEP_ID": "2",
    "SLURM_PROCID": "3",
    "SLURM_LOCALID": "0",
    "SLURM_NODEID": "1",
    "SLURM_STEP_NUM_TASKS": "4",
    "SLURM_STEP_NUM_NODES": "2",
    "SLURM_STEP_TASKS_PER_NODE": "3,1",
    "SLURM_STEP_NODELIST": "gpu[007-008]",
    "SLURM_NTASKS": "4",
}
MPI = {
    "OMPI_COMM_WORLD_RANK": "1",
    "OMPI_COMM_WORLD_SIZE": "2",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
}

BY_TORCHRUN = Launch(5, 8, 1, 4, "torchrun", "head", 29400)
BY_SLURM = Launch(3, 4, 0, 1, "srun", "gpu007", 15000 + (61 * 1234 + 2) % 15000)
BY_MPI = Launch(1, 2, 1, 2, "mpirun", None, None)
ALONE = Launch()


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, ALONE),
        (TORCHRUN, BY_TORCHRUN),
        (SLURM, BY_SLURM),
        (MPI, BY_MPI),
        (SLURM | {"SLURM_STEP_TASKS_PER_NODE": "2(x2),3", "SLURM_NODEID": "2"}, replace(BY_SLURM, local_world_size=3)),
        (TORCHRUN | SLURM, BY_TORCHRUN),
        (TORCHRUN | MPI, BY_TORCHRUN),
        (MPI | SLURM, BY_MPI),
        (TORCHRUN | SLURM | MPI, BY_TORCHRUN),
        ({"SLURM_NTASKS": "8", "SLURM_PROCID": "0", "SLURM_JOB_ID": "1"}, ALONE),
        ({"WORLD_SIZE": "1"}, ALONE),
        ({"MASTER_ADDR": "old", "MASTER_PORT": "1"}, ALONE),
        ({"LOCAL_RANK": "0"}, ALONE),
        (MPI | {"MASTER_ADDR": "head", "MASTER_PORT": "5"}, Launch(1, 2, 1, 2, "mpirun", "head", 5)),
        (SLURM | {"MASTER_ADDR": "head", "MASTER_PORT": "5"}, Launch(3, 4, 0, 1, "srun", "head", 5)),
        (SLURM | {"SLURM_STEP_NUM_NODES": "1", "SLURM_STEP_TASKS_PER_NODE": "4", "SLURM_NODEID": "0",
          "MASTER_PORT": "5"},
         Launch(3, 4, 0, 4, "srun", "127.0.0.1", 5)),
        ({key: value for key, value in TORCHRUN.items() if key not in ("LOCAL_WORLD_SIZE", "TORCHELASTIC_RUN_ID")},
         Launch(5, 8, 1, 8, "RANK and WORLD_SIZE", "head", 29400)),
    ],
)  # fmt: skip
def test_precedence(environment, expected):
    assert detect(environment) == expected


@pytest.mark.parametrize(
    ("environment", "sentence"),
    [
        ({"WORLD_SIZE": "4"}, "WORLD_SIZE = 4 is set, but RANK, LOCAL_RANK, MASTER_ADDR, MASTER_PORT is not"),
        ({"RANK": "0", "WORLD_SIZE": "4"}, "RANK = 0 is set, but LOCAL_RANK, MASTER_ADDR, MASTER_PORT is not"),
        ({"RANK": "0"}, "RANK = 0 is set, but WORLD_SIZE"),
        ({"OMPI_COMM_WORLD_RANK": "0"}, "but OMPI_COMM_WORLD_SIZE, OMPI_COMM_WORLD_LOCAL_RANK is not"),
        (MPI | {"MASTER_ADDR": "head"}, "MASTER_ADDR = head is set, but MASTER_PORT is not"),
        (MPI | {"WORLD_SIZE": "4"}, "WORLD_SIZE = 4, but mpirun started 2 processes; unset it"),
        (SLURM | {"WORLD_SIZE": "8"}, "WORLD_SIZE = 8, but srun started 4 processes; unset it"),
        (TORCHRUN | {"RANK": "8"}, "torchrun gives rank 8 in a world of 8"),
        (TORCHRUN | {"WORLD_SIZE": "eight"}, "WORLD_SIZE = 'eight' is not a whole number"),
    ],
)
def test_half_set_environments_are_refused(environment, sentence):
    with pytest.raises(ConfigError) as caught:
        detect(environment)
    assert sentence in str(caught.value)


@pytest.mark.parametrize(
    ("nodes", "first"),
    [
        ("node1", "node1"),
        ("node1,node2", "node1"),
        ("gpu[007-012,20],login1", "gpu007"),
        ("rack[2,4]-n[3-5]", "rack2-n3"),
        ("a-[1-2].b,c", "a-1.b"),
    ],
)
def test_first_host(nodes, first):
    assert first_host(nodes) == first


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
    root = str(Path(__file__).resolve().parents[2])
    clean = {key: value for key, value in os.environ.items() if key not in ("OMP_NUM_THREADS", *TORCHRUN)}
    command = [sys.executable, "-c", JOIN, root]
    started = [
        subprocess.Popen(command, env=clean | env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for env in environments
    ]
    outputs = [process.communicate(timeout=120) for process in started]
    return [process.returncode for process in started], outputs


def test_open_mpis_variables_by_hand_make_a_world_of_two_without_mpi():
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "CUDA_VISIBLE_DEVICES": ""}
    ranks = [MPI | place | {"OMPI_COMM_WORLD_RANK": str(r), "OMPI_COMM_WORLD_LOCAL_RANK": str(r)} for r in range(2)]
    codes, outputs = processes(ranks)
    threads = max(1, len(os.sched_getaffinity(0)) // 2)
    assert codes == [0, 0], outputs
    assert [out for out, _ in outputs] == [f"{rank} 2 3.0 {threads} cpu\n" for rank in range(2)]


def test_one_process_has_a_group_of_its_own():
    codes, outputs = processes([{"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}])
    assert codes == [0], outputs
    assert outputs[0][0] == "0 1 1.0 1 cpu\n"


def test_a_taken_port_is_named():
    import socket

    with socket.socket() as taken:
        taken.bind(("", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        env = MPI | {"OMPI_COMM_WORLD_RANK": "0", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
        codes, outputs = processes([env | {"CUDA_VISIBLE_DEVICES": ""}])
    assert codes == [1]
    assert f"cannot meet the others at 127.0.0.1:{port}" in outputs[0][1]
