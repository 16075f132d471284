"""DeepSpeed's operators in C++, which are compiled at their first use in a virtual environment."""

from __future__ import annotations

import fcntl
import time
from pathlib import Path
from typing import Any

import psutil

_YOUNG = 30.0
"""Seconds within which a build may have its lock and not yet a compiler at work."""


def load_operator(builder: Any) -> Any:
    """Compile and load what a DeepSpeed `OpBuilder` stands for; raises what the compiler and the linker say.

    One process of a machine at a time: the first compiles, the others find its work done. torch marks a build by a
    file, which a killed build leaves behind and on which every later one would wait for ever: such a file is removed.
    """
    # Its import speaks on machines with a CUDA toolkit and no GPU.
    from torch.utils.cpp_extension import _get_build_directory

    root = Path(_get_build_directory(builder.name, verbose=False)).parent
    with open(root / "megaxf.lock", "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        remove_abandoned_locks(root)
        return builder.load(verbose=False)


def remove_abandoned_locks(root: Path) -> list[Path]:
    """Locks in the build folders below `root` that no process is behind: removed, and returned."""
    abandoned = [
        lock for lock in root.glob("*/lock") if time.time() - lock.stat().st_mtime > _YOUNG and not _is_in_use(lock)
    ]
    for lock in abandoned:
        lock.unlink(missing_ok=True)
    return abandoned


def _is_in_use(lock: Path) -> bool:
    """Whether a compiler works in the folder: torch starts ninja there."""
    folder = str(lock.parent.resolve())
    return any(process.info["cwd"] == folder for process in psutil.process_iter(["cwd"]))
