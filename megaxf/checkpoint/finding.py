"""Checkpoints by their folder names: which are there, which are whole, which may go."""

from __future__ import annotations

import logging
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from megaxf.checkpoint.errors import CheckpointError, DamagedCheckpoint
from megaxf.checkpoint.files import check_sizes, sync_folder
from megaxf.checkpoint.ranks import on_first
from megaxf.parallel.mesh import Mesh, build_mesh

NAME = re.compile(r"step-(\d{8,})")
TEMPORARY = ".step-*.tmp-*"
CHECKPOINTS = "checkpoints"
"""The folder of a run in which its checkpoints lie."""

Say = Callable[[str], None]
aloud = logging.getLogger(__name__).warning


class Listed(NamedTuple):
    """One checkpoint folder."""

    step: int
    path: Path
    fault: str | None
    """Why it cannot be loaded; None where it is complete."""


def name_of(step: int) -> str:
    """The folder name of a step."""
    return f"step-{step:08d}"


def list_checkpoints(folder: str | Path) -> list[Listed]:
    """The checkpoints of a folder by step, oldest first; other names are none of ours.

    Raises CheckpointError where one has a format of another version: it is neither ours to use nor to pass over.
    """
    folder = Path(folder)
    named = [(NAME.fullmatch(path.name), path) for path in folder.iterdir()] if folder.is_dir() else []
    steps = sorted((int(match[1]), path) for match, path in named if match and path.is_dir())
    return [Listed(step, path, _fault(path)) for step, path in steps]


def _fault(path: Path) -> str | None:
    try:
        check_sizes(path)
    except DamagedCheckpoint as error:
        return str(error)
    return None


def find_latest(
    folder: str | Path, mesh: Mesh | None = None, say: Say = aloud, *, before: int | None = None
) -> Path | None:
    """The newest complete checkpoint of a folder, None where there is none; collective: rank 0 looks, all agree.

    say: is told, on rank 0, which incomplete ones were passed over. before: only steps below this one.
    """
    mesh = mesh or build_mesh()

    def look() -> Path | None:
        for listed in reversed(list_checkpoints(folder)):
            if before is not None and listed.step >= before:
                continue
            if listed.fault is None:
                return listed.path
            say(f"passing over an incomplete checkpoint: {listed.fault}")
        return None

    return on_first(mesh, look)


def resolve(source: str | Path) -> Path:
    """The checkpoint that a user means by a path: a checkpoint, a folder of them, or a run folder (the newest one).

    Raises CheckpointError where there is none.
    """
    source = Path(source)
    if not source.is_dir():
        raise CheckpointError(f"{source}: no such folder; name a run folder or a checkpoint ({name_of(12)})")
    if NAME.fullmatch(source.resolve().name):
        check_sizes(source)
        return source
    for folder in (source / CHECKPOINTS, source):
        if found := find_latest(folder):
            return found
    raise CheckpointError(f"{source} holds no complete checkpoint, neither in {CHECKPOINTS}/ nor by the name step-...")


def rotate(folder: Path, newest: int, keep_last: int) -> None:
    """Remove complete checkpoints before the last `keep_last` of those up to step `newest`.

    Steps beyond `newest` are left alone: they stem from a past that was given up. So are incomplete ones.
    """
    complete = [listed.path for listed in list_checkpoints(folder) if listed.fault is None and listed.step <= newest]
    for path in complete[:-keep_last]:
        remove(path)


def remove(path: Path) -> None:
    """Delete a checkpoint so that no half of it is ever seen: it loses its name first."""
    doomed = path.with_name(f".{path.name}.tmp-removed")
    shutil.rmtree(doomed, ignore_errors=True)
    path.rename(doomed)
    sync_folder(path.parent)
    shutil.rmtree(doomed)


def clear_temporaries(folder: Path) -> None:
    """Delete what interrupted saves and removals left."""
    for path in folder.glob(TEMPORARY):
        shutil.rmtree(path)
