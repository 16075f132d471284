"""Who am I among the ranks, and how do they meet? The only place that reads environment variables.

    launch = detect()                 # from torchrun, mpirun, mpiexec, srun, or one process
    device = connect(launch)          # torch.distributed is running afterwards

Whose word counts where several launchers have left variables: see launch/launchers.py. What the user may set:

MASTER_ADDR, MASTER_PORT        host of rank 0 and port there, where launchers say nothing or something wrong
MEGAXF_INTERFACE                network interface that the ranks talk over, for gloo and NCCL; by default that towards
                                rank 0. GLOO_SOCKET_IFNAME and NCCL_SOCKET_IFNAME are left as they are
MEGAXF_CONNECT_SECONDS          how long ranks wait for one another at the start, 300 by default
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from launch import interfaces
from launch.agent_store import of_this_start
from launch.launchers import HERE, Launch, fault, find_place
from launch.meeting import meet
from megaxf.config_errors import ConfigError

if TYPE_CHECKING:
    import torch
    from torch.distributed import Store  # type: ignore[attr-defined]

TIMEOUT_SECONDS = 600.0
"""How long a collective may wait for a rank."""
CONNECT_SECONDS = 300.0


def detect(environment: Mapping[str, str] | None = None) -> Launch:
    """The place of this process among those that its launcher started; touches no network.

    environment: os.environ by default. Raises ConfigError where it is half set or contradicts itself.
    """
    return find_place(os.environ if environment is None else environment)


def connect(launch: Launch, timeout_seconds: float = TIMEOUT_SECONDS) -> torch.device:
    """Start torch.distributed (nccl and gloo on GPUs, gloo without) and give this rank's device; collective.

    timeout_seconds: how long a collective may wait for a rank.
    Raises ConfigError where the host has fewer GPUs than ranks, where ranks do not come, or come twice.
    """
    import torch.distributed as dist

    device, timeout = _device(launch), timedelta(seconds=timeout_seconds)
    _share_cores(launch, device)
    os.environ["LOCAL_RANK"] = str(launch.local_rank)  # DeepSpeed takes its device from here
    if launch.alone:
        place: dict[str, Any] = {"store": dist.HashStore()}  # type: ignore[attr-defined]
    else:
        launch = launch if launch.address else _address_over_mpi(launch)
        choose_interface(launch)
        place = {"store": _agents_store(launch, timeout) if launch.launcher == "torchrun" else _store(launch, timeout)}
    dist.init_process_group(
        "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo",
        **place,
        rank=launch.rank,
        world_size=launch.world_size,
        timeout=timeout,
    )
    return device


def disconnect() -> None:
    """End torch.distributed where it runs."""
    import torch.distributed as dist

    if dist.is_initialized():
        dist.destroy_process_group()


def connect_seconds() -> float:
    """How long ranks wait for one another at the start."""
    text = os.environ.get("MEGAXF_CONNECT_SECONDS", str(CONNECT_SECONDS))
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds <= 1e9:
        raise fault(f"MEGAXF_CONNECT_SECONDS = {text!r} is not a number of seconds above 0 and up to 1e9")
    return seconds


def choose_interface(launch: Launch) -> None:
    """Tell gloo and NCCL which interface to use, where the user has not told them. NCCL finds a good one by itself."""
    named = os.environ.get("MEGAXF_INTERFACE")
    if named:
        interfaces.check(named, "MEGAXF_INTERFACE")
        os.environ.setdefault("NCCL_SOCKET_IFNAME", f"={named}")
    elif launch.local_world_size < launch.world_size:
        named = interfaces.towards(launch.address or "")
    if named:
        os.environ.setdefault("GLOO_SOCKET_IFNAME", named)


def _store(launch: Launch, timeout: timedelta) -> Store:
    """The store of all ranks: on rank 0, at a port that the system gives it and that the meeting tells the others."""
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    seconds, world_size = connect_seconds(), launch.world_size
    if launch.rank > 0:
        port = int(meet(launch, "", seconds))
        return TCPStore(str(launch.address), port, world_size, is_master=False, timeout=timeout)
    store = TCPStore(HERE, 0, world_size, is_master=True, timeout=timeout, wait_for_workers=False)
    meet(launch, str(store.port), seconds)
    return store


def _agents_store(launch: Launch, timeout: timedelta) -> Store:
    """The part of this start of the store that torchrun's agents have for their ranks; without one, that of rank 0."""
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    # Where TORCH_DISABLE_SHARE_RDZV_TCP_STORE is set, its agents give every start a port, and rank 0 listens there.
    listen = launch.rank == 0 and os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True"
    store = TCPStore(str(launch.address), int(launch.port or 0), launch.world_size, listen, timeout, False)
    return of_this_start(store, launch, min(connect_seconds(), timeout.total_seconds()))


def _device(launch: Launch) -> torch.device:
    import torch

    if not torch.cuda.is_available():
        return torch.device("cpu")
    count = torch.cuda.device_count()
    # Slurm's --gpus-per-task and its kin show each task one GPU only, which is then number 0.
    index = 0 if count == 1 and "CUDA_VISIBLE_DEVICES" in os.environ else launch.local_rank
    if index >= count:
        raise fault(
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


def _address_over_mpi(launch: Launch) -> Launch:
    """Rank 0 tells the others where it is; needs an MPI library."""
    try:
        from mpi4py import MPI
    except (ImportError, RuntimeError) as error:
        raise fault(
            f"mpirun started {launch.world_size} processes on several hosts, but mpi4py cannot tell them where to meet "
            f"({str(error).splitlines()[0]}); install an MPI library, or set MASTER_ADDR to rank 0's host"
        ) from None
    if MPI.COMM_WORLD.Get_size() != launch.world_size:
        raise fault(
            f"mpirun started {launch.world_size} processes, but mpi4py sees {MPI.COMM_WORLD.Get_size()}: it has loaded "
            "the library of another MPI; name mpirun's own in MPI4PY_LIBMPI, or set MASTER_ADDR to rank 0's host"
        )
    mine, error_of_rank_0 = None, None
    if launch.rank == 0:
        try:
            mine = interfaces.own_address(os.environ.get("MEGAXF_INTERFACE"))
        except ConfigError as error:
            error_of_rank_0 = error
    job = f"{launch.job} of process {os.getpid()}"
    address, job, told = MPI.COMM_WORLD.bcast((mine, job, error_of_rank_0), root=0)
    if told:  # The others would wait for an address.
        raise told
    return replace(launch, address=address, job=job)
