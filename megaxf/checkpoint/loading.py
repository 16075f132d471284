"""Load a checkpoint into any engine: verified first, then tensor by tensor."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from os import PathLike
from typing import Any, Protocol

import torch

from megaxf.checkpoint import files
from megaxf.checkpoint.errors import CheckpointError, DamagedCheckpoint
from megaxf.checkpoint.files import Place
from megaxf.checkpoint.finding import Say, aloud, find_latest, list_checkpoints, step_of
from megaxf.checkpoint.ranks import on_first, together
from megaxf.checkpoint.tensors import TensorFiles
from megaxf.checkpoint.weights import TENSORS, masters, read_state_file, verify
from megaxf.parallel.mesh import Mesh


class Target(Protocol):
    """The part of an engine that a checkpoint is loaded into; every method is collective."""

    optimizer_step: int

    def state_shapes(self) -> dict[str, torch.Size]:
        """The parameters by name, with the shapes of the whole tensors."""
        ...

    def write_state(self, name: str, tensors: Mapping[str, torch.Tensor]) -> None:
        """Set the fp32 tensors of one parameter."""
        ...


def load(path: str | PathLike[str] | Place, engine: Target, mesh: Mesh) -> dict[str, Any]:
    """Load one checkpoint into the engine; collective. Gives what was saved as `extra`, with "step" and "path" added.

    Every file is compared with its checksum before the engine is touched; one parameter is in memory at a time.
    Raises DamagedCheckpoint where a file is gone, cut or altered, CheckpointError where the parameters of checkpoint
    and engine differ (all of them listed), on every rank.
    """
    path = files.place(path)
    verify(path, mesh)
    state = on_first(mesh, lambda: read_state_file(path))
    saved = TensorFiles(path / TENSORS)
    wanted = engine.state_shapes()
    _compare(path, masters(saved), wanted)
    for name in wanted:
        tensors: dict[str, torch.Tensor] = {}
        together(mesh, lambda tensors=tensors, name=name: tensors.update(_read(saved, name)))  # type: ignore[misc]
        engine.write_state(name, tensors)
    engine.optimizer_step = state["optimizer_step"]
    return {**state["extra"], "step": state["step"], "path": str(path)}


def load_latest(
    folder: str | PathLike[str] | Place, engine: Target, mesh: Mesh, say: Say = aloud
) -> dict[str, Any] | None:
    """Load the newest sound checkpoint of a folder as `load` does; None where the folder holds none; collective.

    A damaged one is passed over for the one before it; `say` is told, on rank 0.
    Raises CheckpointError where there are checkpoints and none is sound: a run must not start anew unasked.
    """
    before = None
    while path := find_latest(folder, mesh, say, before=before):
        try:
            return load(path, engine, mesh)
        except DamagedCheckpoint as error:
            before = step_of(path)
            if mesh.rank == 0:
                say(f"{error}; going back to the checkpoint before it")
    if on_first(mesh, lambda: bool(list_checkpoints(folder))):
        raise CheckpointError(
            f"no checkpoint in {folder} can be loaded; restore one from elsewhere, or move the folder away to start "
            "anew"
        )
    return None


def _read(saved: TensorFiles, name: str) -> dict[str, torch.Tensor]:
    keys = [key for key in (f"{name}/master", f"{name}/exp_avg", f"{name}/exp_avg_sq") if key in saved.shapes]
    return {key.rpartition("/")[2]: saved.read(key) for key in keys}


def _compare(path: Place, found: Mapping[str, torch.Size], wanted: Mapping[str, torch.Size]) -> None:
    problems = [f"{name} is missing in the checkpoint" for name in _without(wanted, found)]
    problems += [f"{name} is in the checkpoint and not in the model" for name in _without(found, wanted)]
    problems += [
        f"{name} is {list(found[name])} in the checkpoint and {list(shape)} in the model"
        for name, shape in wanted.items()
        if name in found and found[name] != shape
    ]
    if problems:
        shown = "".join(f"\n  - {problem}" for problem in problems[:20])
        more = f"\n  ... and {len(problems) - 20} more" if len(problems) > 20 else ""
        raise CheckpointError(
            f"{path} is a checkpoint of another model:{shown}{more}\nuse the model section of {path / 'config.yaml'}"
        )


def _without(names: Iterable[str], others: Iterable[str]) -> list[str]:
    others = set(others)
    return [name for name in names if name not in others]
