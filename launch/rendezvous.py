"""Who am I among the ranks, and how do they meet? The only place that reads environment variables.

    launch = detect()                 # from torchrun, mpirun, srun, or one process
    device = connect(launch)          # torch.distributed is running afterwards

Precedence, since launchers nest and leave variables behind:

1. RANK is set: torchrun, or a starter with its variables (RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR, MASTER_PORT).
2. OMPI_COMM_WORLD_RANK is set: Open MPI's mpirun.
3. SLURM_STEP_NUM_TASKS and SLURM_PROCID are set: a task of srun. SLURM_NTASKS alone belongs to the job: a
   shell or a batch script inherits it, and it means nothing.
4. Otherwise one process.

A half-set environment is a ConfigError: N processes that each believe to be alone would write into one folder.
"""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TYPE_CHECKING

from megaxf.config_errors import ConfigError

if TYPE_CHECKING:
    import torch

TIMEOUT = timedelta(minutes=10)
"""How long a collective may wait for a rank."""


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
    """Host of rank 0."""
    port: int | None = None


def detect(environment: Mapping[str, str] | None = None) -> Launch:
    """The place of this process, by the precedence above; touches no network.

    environment: os.environ by default. Raises ConfigError where it is half set or contradicts itself.
    """
    env = os.environ if environment is None else environment
    if "RANK" in env:
        return _checked(_from_torchrun(env))
    if "OMPI_COMM_WORLD_RANK" in env:
        launch = _from_open_mpi(env)
    elif "SLURM_STEP_NUM_TASKS" in env and "SLURM_PROCID" in env:
        launch = _from_slurm(env)
    else:
        launch = Launch()
    asked = _number(env, "WORLD_SIZE", launch.world_size)
    if asked != launch.world_size:
        if launch.launcher == Launch.launcher:
            raise _half_set("WORLD_SIZE", env, _TORCHRUN)
        raise _fault(f"WORLD_SIZE = {asked}, but {launch.launcher} started {launch.world_size} processes; unset it")
    return _checked(launch)


_TORCHRUN = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT")
_OPEN_MPI = ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK")
_SLURM = ("SLURM_PROCID", "SLURM_STEP_NUM_TASKS", "SLURM_LOCALID", "SLURM_JOB_ID")


def _from_torchrun(env: Mapping[str, str]) -> Launch:
    _need_all(env, _TORCHRUN)
    world_size = _number(env, "WORLD_SIZE")
    return Launch(
        rank=_number(env, "RANK"),
        world_size=world_size,
        local_rank=_number(env, "LOCAL_RANK"),
        local_world_size=_number(env, "LOCAL_WORLD_SIZE", world_size),
        launcher="torchrun" if "TORCHELASTIC_RUN_ID" in env else "RANK and WORLD_SIZE",
        address=env["MASTER_ADDR"],
        port=_number(env, "MASTER_PORT"),
    )


def _from_open_mpi(env: Mapping[str, str]) -> Launch:
    _need_all(env, _OPEN_MPI)
    world_size = _number(env, "OMPI_COMM_WORLD_SIZE")
    launch = Launch(
        rank=_number(env, "OMPI_COMM_WORLD_RANK"),
        world_size=world_size,
        local_rank=_number(env, "OMPI_COMM_WORLD_LOCAL_RANK"),
        local_world_size=_number(env, "OMPI_COMM_WORLD_LOCAL_SIZE", world_size),
        launcher="mpirun",
    )
    if "MASTER_ADDR" in env or "MASTER_PORT" in env:
        _need_all(env, ("MASTER_ADDR", "MASTER_PORT"))
        return replace(launch, address=env["MASTER_ADDR"], port=_number(env, "MASTER_PORT"))
    return launch


def _from_slurm(env: Mapping[str, str]) -> Launch:
    _need_all(env, _SLURM)
    nodes = env.get("SLURM_STEP_NODELIST") or env.get("SLURM_JOB_NODELIST", "")
    one_node = _number(env, "SLURM_STEP_NUM_NODES", 1) == 1
    job, step = _number(env, "SLURM_JOB_ID"), _number(env, "SLURM_STEP_ID", 0)
    return Launch(
        rank=_number(env, "SLURM_PROCID"),
        world_size=_number(env, "SLURM_STEP_NUM_TASKS"),
        local_rank=_number(env, "SLURM_LOCALID"),
        local_world_size=_tasks_here(env),
        launcher="srun",
        address=env.get("MASTER_ADDR") or ("127.0.0.1" if one_node else first_host(nodes)),
        # Below the range from which the system hands out ports; one for each step, as several may run side by side.
        port=_number(env, "MASTER_PORT", 15000 + (61 * job + step) % 15000),
    )


def _tasks_here(env: Mapping[str, str]) -> int:
    """Tasks of this node, from the form "4(x2),3" that lists them by node."""
    counts: list[int] = []
    for part in env.get("SLURM_STEP_TASKS_PER_NODE", env["SLURM_STEP_NUM_TASKS"]).split(","):
        count, _, times = part.rstrip(")").partition("(x")
        counts += [int(count)] * int(times or 1)
    node = _number(env, "SLURM_NODEID", 0)
    return counts[node] if node < len(counts) else counts[0]


def first_host(nodes: str) -> str:
    """The first name of a Slurm node list: `gpu[007-012,20],login1` gives gpu007."""
    first = re.split(r",(?![^\[]*\])", nodes)[0]
    return re.sub(r"\[([^\],-]+)[^\]]*\]", r"\1", first)


def connect(launch: Launch) -> torch.device:
    """Start torch.distributed (nccl and gloo on GPUs, gloo without) and give this rank's device; collective.

    Raises ConfigError where the host has fewer GPUs than ranks, or the meeting port is taken.
    """
    import torch.distributed as dist

    device = _device(launch)
    _share_cores(launch, device)
    os.environ["LOCAL_RANK"] = str(launch.local_rank)  # DeepSpeed takes its device from here
    backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
    if launch.launcher == Launch.launcher:
        store = dist.HashStore()  # type: ignore[attr-defined]
        dist.init_process_group(backend, store=store, rank=0, world_size=1)
        return device
    if launch.address is None:
        launch = _meet_over_mpi(launch)
    try:
        dist.init_process_group(
            backend,
            init_method=f"tcp://{launch.address}:{launch.port}",
            rank=launch.rank,
            world_size=launch.world_size,
            timeout=TIMEOUT,
        )
    except dist.DistNetworkError as error:
        raise _fault(
            f"rank {launch.rank} of {launch.world_size} cannot meet the others at {launch.address}:{launch.port} "
            f"({str(error).splitlines()[0]}); set MASTER_PORT to a free port of rank 0's host"
        ) from None
    return device


def disconnect() -> None:
    """End torch.distributed where it runs."""
    import torch.distributed as dist

    if dist.is_initialized():
        dist.destroy_process_group()


def _device(launch: Launch) -> torch.device:
    import torch

    if not torch.cuda.is_available():
        return torch.device("cpu")
    count = torch.cuda.device_count()
    # Slurm's --gpus-per-task and its kin show each task one GPU only, which is then number 0.
    index = 0 if count == 1 and "CUDA_VISIBLE_DEVICES" in os.environ else launch.local_rank
    if index >= count:
        raise _fault(
            f"rank {launch.rank} is the process number {launch.local_rank + 1} of its host, which shows {count} GPUs; "
            "start at most one process a GPU"
        )
    torch.cuda.set_device(index)
    return torch.device("cuda", index)


def _share_cores(launch: Launch, device: torch.device) -> None:
    """Divide the cores among the ranks of a host, unless the user (or torchrun, with 1) has set the threads."""
    import torch

    if device.type == "cpu" and launch.local_world_size > 1 and "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(max(1, len(os.sched_getaffinity(0)) // launch.local_world_size))


def _meet_over_mpi(launch: Launch) -> Launch:
    """Rank 0 chooses a free port and tells the others; needs an MPI library."""
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:
        raise _fault(
            f"mpirun started {launch.world_size} processes, but mpi4py cannot tell them where to meet "
            f"({str(error).splitlines()[0]}); "
            "install an MPI library, or set MASTER_ADDR and MASTER_PORT to a free port of rank 0's host"
        ) from None
    place = None
    if launch.rank == 0:
        address = "127.0.0.1" if launch.local_world_size == launch.world_size else socket.gethostname()
        place = (address, free_port())
    address, port = MPI.COMM_WORLD.bcast(place, root=0)
    return replace(launch, address=address, port=port)


def free_port() -> int:
    """A port that nothing listens on at this moment."""
    with socket.socket() as listener:
        listener.bind(("", 0))
        return int(listener.getsockname()[1])


def _checked(launch: Launch) -> Launch:
    if not 0 <= launch.rank < launch.world_size:
        raise _fault(f"{launch.launcher} gives rank {launch.rank} in a world of {launch.world_size}; start anew")
    return launch


def _number(env: Mapping[str, str], name: str, default: int | None = None) -> int:
    if name not in env and default is not None:
        return default
    try:
        return int(env[name])
    except ValueError:
        raise _fault(f"{name} = {env[name]!r} is not a whole number") from None


def _need_all(env: Mapping[str, str], names: tuple[str, ...]) -> None:
    present = [name for name in names if name in env]
    if len(present) < len(names):
        raise _half_set(present[0], env, names)


def _half_set(present: str, env: Mapping[str, str], names: tuple[str, ...]) -> ConfigError:
    missing = ", ".join(name for name in names if name not in env)
    return _fault(
        f"{present} = {env[present]} is set, but {missing} is not: processes that cannot find one another would each "
        "train alone; start with torchrun, srun or mpirun, or unset it"
    )


def _fault(message: str) -> ConfigError:
    return ConfigError("environment", [message])
