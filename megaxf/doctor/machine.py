"""Devices, memory, limits and disks of one host."""

from __future__ import annotations

import os
import resource
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import torch

from megaxf.checkpoint.files import no_folder
from megaxf.doctor.check import Check, judged
from megaxf.plan.hardware import peak_flops

GIB = 2**30
OPEN_FILES = 65_536
"""Sockets, shards and libraries of eight ranks: what cluster guides set."""
SHARED_MEMORY = Path("/dev/shm")
DISK_BYTES = 256 * 2**20
SLOW_DISK = 50e6
"""Bytes/s below which the checkpoints of a large model take longer than the time between them."""


def machine(run_folder: Path) -> Iterator[Check]:
    """Everything about this host; writes and removes 256 MiB in `run_folder` or the nearest folder above it."""
    yield from devices()
    yield memory()
    yield shared_memory()
    yield from limits()
    yield from disk(run_folder)


def devices() -> Iterator[Check]:
    """GPUs, or the processor's cores without any."""
    cores = len(os.sched_getaffinity(0))
    if not torch.cuda.is_available():
        seen = torch.version.cuda or torch.version.hip
        advice = "torch sees no GPU; on a machine that has some, look at nvidia-smi and at the driver's version"
        yield judged("accelerator", f"none, {cores} cores", (bool(seen), "note", advice))
        return
    names = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
    mixed = len(set(names)) > 1
    kinds = ", ".join(f"{names.count(name)} x {name}" for name in dict.fromkeys(names))
    yield judged("accelerator", kinds, (mixed, "note", "GPUs of several kinds: the slowest sets the pace"))
    yield _in_table(names[0])
    for index in range(len(names)):
        free, whole = torch.cuda.mem_get_info(index)
        advice = f"another program holds {(whole - free) / GIB:.1f} GiB of it; see nvidia-smi"
        found = f"{free / GIB:.1f} of {whole / GIB:.1f} GiB free"
        yield judged(f"gpu {index} memory", found, (free < 0.9 * whole, "note", advice))


def _in_table(name: str) -> Check:
    peak = peak_flops(name, "bf16")
    if peak is None:
        advice = "the MFU will be of a measured peak; metrics.peak_tflops sets the maker's"
        return Check("peak", f"{name} is not in the hardware table", "note", advice)
    return Check("peak", f"{peak / 1e12:,.0f} TFLOP/s in bf16")


def memory() -> Check:
    """Of the host, beside that of its GPUs: ranks hold a copy of their state there while checkpoints are written."""
    held = psutil.virtual_memory()
    gpus = sum(torch.cuda.get_device_properties(index).total_memory for index in range(torch.cuda.device_count()))
    advice = "the host has less memory than its GPUs: save with checkpoint.asynchronous = false, do not offload"
    found = f"{held.available / GIB:.1f} of {held.total / GIB:.1f} GiB available"
    return judged("memory", found, (held.total < gpus, "note", advice))


def shared_memory() -> Check:
    """Through which the GPUs of a host talk where they cannot reach each other's memory."""
    try:
        size = shutil.disk_usage(SHARED_MEMORY).total
    except OSError:
        return Check("shared memory", "none", "note", f"mount a tmpfs at {SHARED_MEMORY}")
    small = size < GIB * max(1, torch.cuda.device_count())
    advice = "NCCL needs 1 GiB a GPU, and a container's default is 64 MiB: start it with --shm-size=16g or --ipc=host"
    return judged("shared memory", f"{size / GIB:.2f} GiB", (small, "note", advice))


def limits() -> Iterator[Check]:
    """What the system lets a process have."""
    files, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    advice = f"ulimit -n {OPEN_FILES} (the system allows {_limit(hard)})"
    yield judged("open files", _limit(files), (0 <= files < OPEN_FILES, "note", advice))
    locked, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    little = locked != resource.RLIM_INFINITY and torch.cuda.is_available()
    advice = "InfiniBand and pinned memory need it: ulimit -l unlimited"
    yield judged("locked memory", _limit(locked, "bytes"), (little, "note", advice))
    written, _ = resource.getrlimit(resource.RLIMIT_FSIZE)
    advice = "checkpoints are large: ulimit -f unlimited"
    yield judged("file size", _limit(written, "bytes"), (written != resource.RLIM_INFINITY, "bad", advice))


def _limit(value: int, unit: str = "") -> str:
    return "unlimited" if value == resource.RLIM_INFINITY else f"{value:,} {unit}".strip()


def disk(run_folder: Path) -> Iterator[Check]:
    """Room, and the speed of a file that is written through to the disk."""
    if file := no_folder(run_folder.absolute()):
        yield Check("disk room", f"{file} is a file", "bad", "choose another run_folder")
        return
    folder = next(path for path in (run_folder.absolute(), *run_folder.absolute().parents) if path.is_dir())
    free = shutil.disk_usage(folder).free
    advice = "a checkpoint takes 12 bytes a parameter; choose another run_folder"
    yield judged("disk room", f"{free / GIB:,.1f} GiB free in {folder}", (free < 10 * GIB, "note", advice))
    try:
        speed = write_speed(folder, min(DISK_BYTES, free // 4))
    except OSError as error:
        yield Check("disk speed", f"{folder} cannot be written: {error.strerror}", "bad", "choose another run_folder")
        return
    advice = "checkpoints will be slow: choose a faster disk for run_folder"
    yield judged("disk speed", f"{speed / 1e6:,.0f} MB/s written through", (speed < SLOW_DISK, "note", advice))


def write_speed(folder: Path, size: int) -> float:
    """Bytes/s of one file of `size` bytes, to the disk and not to its cache."""
    block = os.urandom(1 << 20)
    with tempfile.TemporaryFile(dir=folder) as file:
        started = time.perf_counter()
        for _ in range(max(1, size // len(block))):
            file.write(block)
        file.flush()
        os.fsync(file.fileno())
        return max(1, size // len(block)) * len(block) / (time.perf_counter() - started)
