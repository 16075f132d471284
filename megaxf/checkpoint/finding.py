"""Checkpoints by their folder names: which are there, and which are whole."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from os import PathLike
from typing import NamedTuple

import yaml

from megaxf.checkpoint import files
from megaxf.checkpoint.errors import CheckpointError, DamagedCheckpoint
from megaxf.checkpoint.files import Place
from megaxf.checkpoint.manifest import check_sizes
from megaxf.checkpoint.ranks import on_first
from megaxf.parallel.mesh import Mesh, build_mesh

NAME = re.compile(r"step-(\d{8,})")
REPLACED = re.compile(r"\.(step-(\d{8,}))\.replaced")
"""One that another of the same step is about to take the place of: it counts until the other has its name."""
CHECKPOINTS = "checkpoints"
"""The folder of a run in which its checkpoints lie, unless its `checkpoint.folder` says otherwise."""

Say = Callable[[str], None]
aloud = logging.getLogger(__name__).warning


class Listed(NamedTuple):
    """One checkpoint folder."""

    step: int
    path: Place
    fault: str | None
    """Why it cannot be loaded; None where it is complete."""


def name_of(step: int) -> str:
    """The folder name of a step."""
    return f"step-{step:08d}"


def step_of(path: Place) -> int | None:
    """The step of a checkpoint by the name of its folder; None where it is none."""
    match = NAME.fullmatch(path.name) or REPLACED.fullmatch(path.name)
    return int(match.groups()[-1]) if match else None


def list_checkpoints(folder: str | PathLike[str] | Place) -> list[Listed]:
    """The checkpoints of a folder by step, oldest first; other names are none of ours.

    Raises CheckpointError where one has a format of another version: it is neither ours to use nor to pass over.
    """
    folder = files.place(folder)
    there = files.names(folder)
    paths = [folder / name for name in there if not ((old := REPLACED.fullmatch(name)) and old[1] in there)]
    steps = [(step, path) for path in paths if (step := step_of(path)) is not None and files.is_folder(path)]
    return [Listed(step, path, _fault(path)) for step, path in sorted(steps, key=lambda found: found[0])]


def _fault(path: Place) -> str | None:
    try:
        check_sizes(path)
    except DamagedCheckpoint as error:
        return str(error)
    return None


def find_latest(
    folder: str | PathLike[str] | Place, mesh: Mesh | None = None, say: Say = aloud, *, before: int | None = None
) -> Place | None:
    """The newest complete checkpoint of a folder, None where there is none; collective: rank 0 looks, all agree.

    say: is told, on rank 0, which incomplete ones were passed over. before: only steps below this one.
    """
    mesh = mesh or build_mesh()

    def look() -> Place | None:
        for listed in reversed(list_checkpoints(folder)):
            if before is not None and listed.step >= before:
                continue
            if listed.fault is None:
                return listed.path
            say(f"passing over an incomplete checkpoint: {listed.fault}")
        return None

    return on_first(mesh, look)


def find_all(source: str | PathLike[str] | Place) -> list[Listed]:
    """The checkpoints that a path means, whole or not: itself, those of a run folder, or of a folder of them.

    Raises CheckpointError where there is none.
    """
    source = files.place(source)
    here = source.resolve()
    if step_of(here) is not None:
        found = [Listed(one.step, source, one.fault) for one in list_checkpoints(here.parent) if one.path == here]
    else:
        found = next((listed for folder in _folders(source) if (listed := list_checkpoints(folder))), [])
    if not found:
        raise CheckpointError(f"{source} is no checkpoint ({name_of(12)}), nor a run folder or a folder that holds any")
    return found


def resolve(source: str | PathLike[str] | Place) -> Place:
    """The checkpoint that a user means by a path: a checkpoint, a folder of them, or a run folder (the newest one).

    Raises CheckpointError where there is none.
    """
    source = files.place(source)
    if not files.is_folder(source):
        raise CheckpointError(f"{source}: no such folder; name a run folder or a checkpoint ({name_of(12)})")
    if step_of(source.resolve()) is not None:
        check_sizes(source)
        return source
    for folder in _folders(source):
        if found := find_latest(folder):
            return found
    raise CheckpointError(f"{source} holds no complete checkpoint, neither in {CHECKPOINTS}/ nor by the name step-...")


def _folders(source: Place) -> list[Place]:
    """Where the checkpoints of a run folder, or of what looks like one, may be."""
    config = source / "config.yaml"
    settings = yaml.safe_load(files.read_bytes(config)) if config.name in files.names(source) else None
    section = settings.get("checkpoint") if isinstance(settings, dict) else None
    configured = section.get("folder") if isinstance(section, dict) else None
    return [files.place(configured)] if configured else [source / CHECKPOINTS, source]
