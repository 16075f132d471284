"""Room on a disk, asked for before anything is written to it."""

from __future__ import annotations

import shutil
from pathlib import Path

from data_pipeline.format.report import megabytes


def free_bytes(folder: Path) -> int:
    """Bytes that may be written in a folder, which need not be there yet."""
    there = next(path for path in (folder, *folder.absolute().parents) if path.exists())
    return shutil.disk_usage(there).free


def shortage(folder: Path, needed: int) -> str | None:
    """A sentence's end that says how far a folder's disk is too small for `needed` bytes; None where it is not."""
    free = free_bytes(folder)
    if free >= needed:
        return None
    return f"needs {needed:,} bytes ({megabytes(needed)}), and {free:,} ({megabytes(free)}) are free in {folder}"
