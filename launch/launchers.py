"""What each launcher tells a process about its place, in variables: torchrun, mpirun of Open MPI and MPICH, srun.

Precedence, since launchers nest and leave variables behind:

1. RANK is set: torchrun, or a starter with its variables (RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR, MASTER_PORT).
2. OMPI_COMM_WORLD_RANK is set: Open MPI's mpirun.
3. PMI_RANK and MPI_LOCALRANKID are set: mpiexec of MPICH and its kin (Intel MPI). PMI_RANK alone may be srun's.
4. SLURM_STEP_NUM_TASKS and SLURM_PROCID are set: a task of srun. SLURM_NTASKS alone belongs to the job: a
   shell or a batch script inherits it, and it means nothing.
5. Otherwise one process.

MASTER_ADDR and MASTER_PORT are what the user wants with every launcher. A half-set environment is a ConfigError: N
processes that each believe to be alone would write into one folder.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass, replace

from launch.node_list import expand
from megaxf.config_errors import ConfigError

Environment = Mapping[str, str]

HERE = "127.0.0.1"


@dataclass(frozen=True)
class Launch:
    """One process among those of a run."""

    rank: int = 0
    world_size: int = 1
    local_rank: int = 0
    """Place among the processes of this host: the number of its GPU."""
    local_world_size: int = 1
    launcher: str = "one process"
    address: str | None = None
    """Host of rank 0, None where only MPI can tell."""
    port: int | None = None
    """Where rank 0 listens; None: on one of those that follow from `job`."""
    job: str = ""
    """What tells this run from others of the cluster; the same on all ranks."""
    host: str = ""
    """The name of this host in messages."""

    @property
    def alone(self) -> bool:
        """Whether no launcher started this process."""
        return self.launcher == Launch.launcher


def find_place(env: Environment) -> Launch:
    """The place that a set of variables tells, by the precedence above. Raises ConfigError where it is half set."""
    if "RANK" in env:
        launch = _from_torchrun(env)
    elif "OMPI_COMM_WORLD_RANK" in env:
        launch = _from_mpi(env, _OPEN_MPI, "OMPI_COMM_WORLD_LOCAL_SIZE", env.get("PMIX_NAMESPACE"))
    elif "PMI_RANK" in env and ("MPI_LOCALRANKID" in env or not _is_step(env)):
        launch = _from_mpi(env, _MPICH, "MPI_LOCALNRANKS", env.get("PMI_JOBID"))
    elif _is_step(env):
        launch = _from_slurm(env)
    else:
        launch = Launch()
    asked = _number(env, "WORLD_SIZE", launch.world_size)
    if asked != launch.world_size:
        if launch.alone:
            raise _half_set("WORLD_SIZE", env, _TORCHRUN)
        raise fault(f"WORLD_SIZE = {asked}, but {launch.launcher} started {launch.world_size} processes; unset it")
    if not 0 <= launch.rank < launch.world_size:
        raise fault(f"{launch.launcher} gives rank {launch.rank} in a world of {launch.world_size}; start anew")
    return replace(launch, host=env.get("SLURMD_NODENAME") or socket.gethostname())


_TORCHRUN = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
_OPEN_MPI = ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK")
_MPICH = ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID")
_SLURM = ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", "SLURM_JOB_ID")


def _from_torchrun(env: Environment) -> Launch:
    _need_all(env, _TORCHRUN)
    world_size = _number(env, "WORLD_SIZE")
    return Launch(
        rank=_number(env, "RANK"),
        world_size=world_size,
        local_rank=_number(env, "LOCAL_RANK"),
        local_world_size=_number(env, "LOCAL_WORLD_SIZE", world_size),
        launcher="torchrun" if "TORCHELASTIC_RUN_ID" in env else "RANK and WORLD_SIZE",
        address=env["MASTER_ADDR"],
        port=_port(env),
    )


def _from_mpi(env: Environment, names: tuple[str, ...], local_size: str, job: str | None) -> Launch:
    """names: the variables of rank, size and rank on this host. job: its name, if it has one."""
    _need_all(env, names)
    world_size = _number(env, names[1])
    on_this_host = _number(env, local_size, world_size)
    return Launch(
        rank=_number(env, names[0]),
        world_size=world_size,
        local_rank=_number(env, names[2]),
        local_world_size=on_this_host,
        launcher="mpirun",
        address=env.get("MASTER_ADDR") or (HERE if on_this_host == world_size else None),
        port=_port(env),
        job=f"mpirun {job or (os.getppid() if on_this_host == world_size else '')}".strip(),
    )


def _is_step(env: Environment) -> bool:
    return "SLURM_STEP_NUM_TASKS" in env and "SLURM_PROCID" in env


def _from_slurm(env: Environment) -> Launch:
    _need_all(env, _SLURM)
    one_node = _number(env, "SLURM_STEP_NUM_NODES", 1) == 1
    return Launch(
        rank=_number(env, "SLURM_PROCID"),
        world_size=_number(env, "SLURM_STEP_NUM_TASKS"),
        local_rank=_number(env, "SLURM_LOCALID"),
        local_world_size=_tasks_here(env),
        launcher="srun",
        address=env.get("MASTER_ADDR") or (HERE if one_node else _head_node(env)),
        port=_port(env),
        job=f"Slurm job {env['SLURM_JOB_ID']}.{env.get('SLURM_STEP_ID', '0')}",
    )


def _head_node(env: Environment) -> str:
    """The node of rank 0: the first of the step's."""
    name = "SLURM_STEP_NODELIST" if "SLURM_STEP_NODELIST" in env else "SLURM_JOB_NODELIST"
    try:
        return expand(env.get(name, ""))[0]
    except ValueError as error:
        raise fault(f"{name}: {error}; set MASTER_ADDR to the host of rank 0") from None


def _tasks_here(env: Environment) -> int:
    """Tasks of this node, from the form "4(x2),3" that lists them by node."""
    counts: list[int] = []
    for part in env.get("SLURM_STEP_TASKS_PER_NODE", env["SLURM_STEP_NUM_TASKS"]).split(","):
        count, _, times = part.rstrip(")").partition("(x")
        counts += [int(count)] * int(times or 1)
    node = _number(env, "SLURM_NODEID", 0)
    return counts[node] if node < len(counts) else counts[0]


def _port(env: Environment) -> int | None:
    if "MASTER_PORT" not in env:
        return None
    port = _number(env, "MASTER_PORT")
    if not 0 < port < 65536:
        raise fault(f"MASTER_PORT = {port} is no port; use one from 1024 to 65535 that is free on rank 0's host")
    return port


def _number(env: Environment, name: str, default: int | None = None) -> int:
    if name not in env and default is not None:
        return default
    try:
        return int(env[name])
    except ValueError:
        raise fault(f"{name} = {env[name]!r} is not a whole number") from None


def _need_all(env: Environment, names: tuple[str, ...]) -> None:
    present = [name for name in names if name in env]
    if len(present) < len(names):
        raise _half_set(present[0], env, names)


def _half_set(present: str, env: Environment, names: tuple[str, ...]) -> ConfigError:
    missing = ", ".join(name for name in names if name not in env)
    return fault(
        f"{present} = {env[present]} is set, but {missing} is not: processes that cannot find one another would each "
        "train alone; start with torchrun, srun or mpirun, or unset it"
    )


def fault(message: str) -> ConfigError:
    """A fault of the environment that a launcher or the user made."""
    return ConfigError("environment", [message])
