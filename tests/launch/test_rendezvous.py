"""Who wins among the variables of launchers, and what is refused (field reports 84, 88, 89, 92)."""

import os
import socket
import sys
from dataclasses import replace
from types import SimpleNamespace

import pytest

from launch import rendezvous
from launch.launchers import Launch
from launch.rendezvous import detect
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

MPICH = {"PMI_RANK": "2", "PMI_SIZE": "6", "MPI_LOCALRANKID": "0", "MPI_LOCALNRANKS": "2", "PMI_JOBID": "kvs_7"}

HOST = socket.gethostname()
BY_TORCHRUN = Launch(5, 8, 1, 4, "torchrun", "head", 29400, "", HOST)
BY_SLURM = Launch(3, 4, 0, 1, "srun", "gpu007", None, "Slurm job 1234.2", HOST)
BY_MPI = Launch(1, 2, 1, 2, "mpirun", "127.0.0.1", None, f"mpirun {os.getppid()}", HOST)
BY_MPICH = Launch(2, 6, 0, 2, "mpirun", None, None, "mpirun kvs_7", HOST)
ALONE = Launch(host=HOST)


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
        (MPI | {"OMPI_COMM_WORLD_LOCAL_SIZE": "1"}, replace(BY_MPI, local_world_size=1, address=None, job="mpirun")),
        (MPI | {"PMIX_NAMESPACE": "prterun-9"}, replace(BY_MPI, job="mpirun prterun-9")),
        (MPICH, BY_MPICH),
        (MPICH | SLURM, BY_MPICH),
        (SLURM | {"PMI_RANK": "3", "PMI_SIZE": "4"}, BY_SLURM),
        (MPICH | MPI, BY_MPI),
        (MPICH | {"MASTER_ADDR": "head"}, replace(BY_MPICH, address="head")),
        (SLURM | {"SLURMD_NODENAME": "gpu008"}, replace(BY_SLURM, host="gpu008")),
        (TORCHRUN | SLURM | MPI, BY_TORCHRUN),
        ({"SLURM_NTASKS": "8", "SLURM_PROCID": "0", "SLURM_JOB_ID": "1"}, ALONE),
        ({"WORLD_SIZE": "1"}, ALONE),
        ({"MASTER_ADDR": "old", "MASTER_PORT": "1"}, ALONE),
        ({"LOCAL_RANK": "0"}, ALONE),
        (MPI | {"MASTER_ADDR": "head", "MASTER_PORT": "5"}, replace(BY_MPI, address="head", port=5)),
        (SLURM | {"MASTER_ADDR": "head", "MASTER_PORT": "5"}, replace(BY_SLURM, address="head", port=5)),
        (SLURM | {"SLURM_STEP_NUM_NODES": "1", "SLURM_STEP_TASKS_PER_NODE": "4", "SLURM_NODEID": "0",
          "MASTER_PORT": "5"},
         replace(BY_SLURM, local_world_size=4, address="127.0.0.1", port=5)),
        ({key: value for key, value in TORCHRUN.items() if key not in ("LOCAL_WORLD_SIZE", "TORCHELASTIC_RUN_ID")},
         replace(BY_TORCHRUN, local_world_size=8, launcher="RANK and WORLD_SIZE")),
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
        ({"PMI_RANK": "0"}, "PMI_RANK = 0 is set, but PMI_SIZE, MPI_LOCALRANKID is not"),
        (SLURM | {"SLURM_STEP_NODELIST": "gpu[007-"}, "SLURM_STEP_NODELIST: 'gpu[007-' is not a node list"),
        (MPI | {"WORLD_SIZE": "4"}, "WORLD_SIZE = 4, but mpirun started 2 processes; unset it"),
        (SLURM | {"WORLD_SIZE": "8"}, "WORLD_SIZE = 8, but srun started 4 processes; unset it"),
        (TORCHRUN | {"RANK": "8"}, "torchrun gives rank 8 in a world of 8"),
        (TORCHRUN | {"MASTER_PORT": "99999"}, "MASTER_PORT = 99999 is no port; use one from 1024 to 65535"),
        (SLURM | {"MASTER_PORT": "0"}, "MASTER_PORT = 0 is no port"),
        (TORCHRUN | {"WORLD_SIZE": "eight"}, "WORLD_SIZE = 'eight' is not a whole number"),
    ],
)
def test_half_set_environments_are_refused(environment, sentence):
    with pytest.raises(ConfigError) as caught:
        detect(environment)
    assert sentence in str(caught.value)


def test_a_library_of_another_mpi_is_refused_before_its_ranks_wait(monkeypatch):
    """As where MPICH's mpirun starts an mpi4py that finds Open MPI: each process is the only one of its world."""
    alone = SimpleNamespace(COMM_WORLD=SimpleNamespace(Get_size=lambda: 1))
    monkeypatch.setitem(sys.modules, "mpi4py", SimpleNamespace(MPI=alone))
    with pytest.raises(ConfigError, match=r"mpirun started 6 processes, but mpi4py sees 1: .* MPI4PY_LIBMPI"):
        rendezvous._address_over_mpi(BY_MPICH)
