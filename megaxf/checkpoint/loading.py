"""Load a checkpoint into any engine: verified first, then each rank the boxes that it holds."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from os import PathLike
from typing import Any, Protocol

import torch

from megaxf.checkpoint import files
from megaxf.checkpoint.errors import CheckpointError, DamagedCheckpoint
from megaxf.checkpoint.files import Entry, Place
from megaxf.checkpoint.finding import Say, aloud, find_latest, list_checkpoints, step_of
from megaxf.checkpoint.manifest import check_contents, check_sizes, read_file
from megaxf.checkpoint.ranks import on_first, together
from megaxf.checkpoint.tensors import CONTENTS, MASTER, TensorFiles
from megaxf.checkpoint.weights import CONFIG, TENSORS, read_state_file
from megaxf.parallel.boxes import PARTS, Piece
from megaxf.parallel.collectives import gather_objects
from megaxf.parallel.mesh import Mesh

Anew = Callable[[str], torch.Tensor]
"""Takes the name of a parameter, gives the whole of it in fp32."""


class Target(Protocol):
    """The part of an engine that a checkpoint is loaded into; see megaxf.engine.protocol."""

    def state_shapes(self) -> dict[str, torch.Size]:
        """The parameters by name, with the shapes of the whole tensors."""
        ...

    def pieces(self) -> Iterator[Piece]:
        """What this rank holds, to be written into."""
        ...

    def loaded(self, counters: Mapping[str, float]) -> None:
        """Take up what was written; collective."""
        ...


def load(
    path: str | PathLike[str] | Place,
    engine: Target,
    mesh: Mesh,
    *,
    allow_missing: bool = False,
    anew: Anew | None = None,
    say: Say = aloud,
) -> dict[str, Any]:
    """Load one checkpoint into the engine; collective. Gives what was saved as `extra`, with "step" and "path" added.

    Each rank reads the boxes that it holds, whatever boxes they were saved as, straight to where they belong. Before
    the engine is touched, each file that any rank reads is compared with its checksum by one of its readers.

    allow_missing: what the checkpoint lacks stays as it is in a fresh engine, what it has beyond the model is left
    alone, and `say` is told each of them, on rank 0. Tensors of other shapes are refused all the same.
    anew: what that begins as, for an engine that may have trained since it was made.
    Raises DamagedCheckpoint where a file is gone, cut or altered, CheckpointError where the parameters of checkpoint
    and engine differ (all of them listed), on every rank.
    """
    path = files.place(path)
    state, contents, entries = on_first(mesh, lambda: _read_small(path))
    saved = TensorFiles(path / TENSORS, contents)
    parts = PARTS if state["optimizer_step"] else PARTS[:1]
    for sentence in _compare(path, saved.shapes, engine.state_shapes(), parts, allow_missing):
        if mesh.rank == 0:
            say(f"{path}: {sentence}")
    _verify(path, _files_of(saved, engine), entries, mesh)

    def fill() -> None:
        for piece in engine.pieces():
            if piece.key in saved.shapes:
                saved.fill(piece.key, piece.offsets, piece.values)
            elif piece.part != PARTS[0]:
                piece.values.zero_()
            elif anew is not None:
                piece.values.copy_(piece.box_in(anew(piece.name)))

    together(mesh, fill)
    engine.loaded({"optimizer_step": state["optimizer_step"], **state["counters"]})
    return {**state["extra"], "step": state["step"], "path": str(path)}


def load_latest(
    folder: str | PathLike[str] | Place, engine: Target, mesh: Mesh, say: Say = aloud, **more: Any
) -> dict[str, Any] | None:
    """Load the newest sound checkpoint of a folder as `load` does, which `more` is given to; collective.

    None where the folder holds none. A damaged one is passed over for the one before it; `say` is told, on rank 0.
    Raises CheckpointError where there are checkpoints and none is sound: a run must not start anew unasked.
    """
    before = None
    while path := find_latest(folder, mesh, say, before=before):
        try:
            return load(path, engine, mesh, say=say, **more)
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


def _read_small(path: Place) -> tuple[dict[str, Any], bytes, dict[str, Entry]]:
    """What one rank reads for all: the state file, the table of contents, the manifest, each as it was written."""
    entries = check_sizes(path)
    check_contents(path, [CONFIG], entries)
    return read_state_file(path), read_file(path, f"{TENSORS}/{CONTENTS}"), entries


def _files_of(saved: TensorFiles, engine: Target) -> set[str]:
    """The files that this rank is going to read, by their names in the manifest."""
    pieces = [piece for piece in engine.pieces() if piece.key in saved.shapes]
    names = (saved.files_of(piece.key, piece.offsets, piece.values.shape) for piece in pieces)
    return {f"{TENSORS}/{name}" for name in set().union(*names)}


def _verify(path: Place, own: set[str], entries: Mapping[str, Entry], mesh: Mesh) -> None:
    """See that each file that a rank reads is there, and that each is what was written: one of its readers looks."""
    readers = gather_objects(own, mesh)
    mine, burden = [], [0] * mesh.world_size
    for name in sorted(set().union(*readers), key=lambda name: (-entries[name].size, name)):
        reader = min((rank for rank, names in enumerate(readers) if name in names), key=burden.__getitem__)
        burden[reader] += entries[name].size
        if reader == mesh.rank:
            mine.append(name)

    def check() -> None:
        for name in own:
            with files.reading(path / name):
                pass
        check_contents(path, mine, entries)

    together(mesh, check)


def _compare(
    path: Place, found: Mapping[str, torch.Size], model: Mapping[str, torch.Size], parts: Sequence[str], lenient: bool
) -> list[str]:
    """Sentences on what is on one side only, where that is allowed; else it is an error, as other shapes always are."""
    wanted = {f"{name}/{part}": name + MASTER for name in model for part in parts}
    absent = [key for key, master in wanted.items() if key not in found and (key == master or master in found)]
    partial = [f"{key.removesuffix(MASTER)} is missing in the checkpoint" for key in absent]
    partial += [
        f"{key.removesuffix(MASTER)} is in the checkpoint and not in the model"
        for key in found
        if key.endswith(MASTER) and key not in wanted
    ]
    problems = [] if lenient else list(partial)
    problems += [
        f"{name} is {list(found[name + MASTER])} in the checkpoint and {list(shape)} in the model"
        for name, shape in model.items()
        if found.get(name + MASTER, shape) != shape
    ]
    if problems:
        shown = "".join(f"\n  - {problem}" for problem in problems[:20])
        hint = ", or --allow-missing to begin anew with what is missing" if partial else ""
        more = f"\n  ... and {len(problems) - 20} more" if len(problems) > 20 else ""
        raise CheckpointError(
            f"{path} is a checkpoint of another model:{shown}{more}\n"
            f"use the model section of {path / 'config.yaml'}{hint}"
        )
    return partial
