"""Under which circumstances a run was started: enough to find out later why two runs differ."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

import megaxf
from megaxf.parallel.collectives import gather_objects
from megaxf.parallel.mesh import Mesh

PACKAGES = ("torch", "deepspeed", "numpy", "pydantic", "sentencepiece", "tokenizers", "mpi4py")


def describe(mesh: Mesh, device: torch.device, launcher: str, step: int) -> dict[str, Any]:
    """The environment as plain values; collective: every rank tells its host and device."""
    ranks = gather_objects({"host": platform.node(), "device": device_name(device)}, mesh)
    return {
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "from_step": step,
        "command": sys.argv,
        "launcher": launcher,
        "ranks": ranks,
        "threads_per_rank": torch.get_num_threads(),
        "megaxf": megaxf.__version__,
        "git": git_state(Path(megaxf.__file__).parent),
        "python": platform.python_version(),
        "platform": platform.platform(),
        "cuda": torch.version.cuda,
        "packages": {name: _version(name) for name in PACKAGES},
    }


def start_line(environment: dict[str, Any]) -> str:
    """What to say of a start: from where it goes on, and on what."""
    step, ranks, threads = environment["from_step"], environment["ranks"], environment["threads_per_rank"]
    begins = f"going on after step {step:,}" if step else "a new run"
    devices = sorted({rank["device"] for rank in ranks})
    each = "thread" if threads == 1 else "threads"
    return f"{begins} on {len(ranks)} x {', '.join(devices)}, {threads} {each} each"


def idle_cores(environment: dict[str, Any]) -> str | None:
    """What to say where the ranks of this host leave cores idle, as torchrun's default of one thread does."""
    here = sum(rank["host"] == platform.node() for rank in environment["ranks"])
    threads, share = environment["threads_per_rank"], len(os.sched_getaffinity(0)) // here
    if threads >= share:
        return None
    return f"each process uses {threads} of the {share} cores that are its share; OMP_NUM_THREADS={share} uses them all"


def device_name(device: torch.device) -> str:
    """The name of a GPU, or of the processor."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return _processor() or platform.processor() or platform.machine()


def git_state(folder: Path) -> dict[str, Any] | None:
    """Commit of the code's folder and whether files differ from it; None where git does not know the folder."""
    commit = _git(folder, "rev-parse", "HEAD")
    if commit is None or _git(folder, "ls-files", "--error-unmatch", "__init__.py") is None:
        return None
    return {"commit": commit, "changed": bool(_git(folder, "status", "--porcelain", "--untracked-files=no"))}


def _git(folder: Path, *arguments: str) -> str | None:
    try:
        found = subprocess.run(["git", *arguments], cwd=folder, capture_output=True, text=True, timeout=30)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return found.stdout.strip() if found.returncode == 0 else None


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _processor() -> str | None:
    """The model name that Linux gives."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return None
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), None)
