"""Save a checkpoint: each rank writes what it holds, and it is there as a whole or not at all."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from os import PathLike
from typing import Any, TypedDict, Unpack

import torch

from megaxf import __version__
from megaxf.checkpoint import files, keeping
from megaxf.checkpoint.background import Flow, run_flow
from megaxf.checkpoint.errors import CheckpointError
from megaxf.checkpoint.files import Entry, Place
from megaxf.checkpoint.finding import name_of, step_of
from megaxf.checkpoint.manifest import check_contents, check_sizes
from megaxf.checkpoint.ranks import on_first, together
from megaxf.checkpoint.staging import HostBuffers, State, finite, has_moments, own_pieces
from megaxf.checkpoint.tensors import CONTENTS, BoxWriter, Stored, write_contents
from megaxf.checkpoint.weights import CONFIG, STATE, TENSORS, TOKENIZER
from megaxf.parallel.boxes import Piece
from megaxf.parallel.collectives import gather_to_first
from megaxf.parallel.mesh import Mesh, build_mesh

SPARE_BYTES = 1 << 20
"""Room for the small files of a checkpoint."""
Entries = dict[str, Entry]
Export = Callable[[Place, int, int], Entries]
"""(folder with the tensors, rank, number of ranks) -> what this rank has written into it, by relative name."""


class Options(TypedDict, total=False):
    """What a checkpoint may hold beside its tensors, and what becomes of earlier ones."""

    config: str
    """Text of the resolved configuration."""
    tokenizer: str | PathLike[str] | None
    """Folder of the tokenizer's files."""
    keep_last: int | None
    """How many complete checkpoints to keep, this one counted; None keeps all. Older ones go only after every file of
    this one has been read back."""
    keep_every: int | None
    """Those whose step is a multiple of it do not go."""
    export: Export | None
    """Writes more files, from the tensors; each rank some."""


def save(
    folder: str | PathLike[str] | Place,
    step: int,
    engine: State,
    extra: Mapping[str, Any],
    mesh: Mesh,
    **options: Unpack[Options],
) -> Place:
    """Write `folder/step-<step>` and give its path; collective.

    folder: created where missing. extra: plain values (JSON) of the training loop, given back by `load`.
    Host memory: none that grows with the model but for the largest piece of a tensor on a GPU.
    Raises CheckpointError on every rank, with what was there before untouched: no space, a failed write, a weight that
    is not finite.
    """
    return run_flow(mesh, saving(folder, step, engine, extra, mesh, None, **options))


def saving(
    folder: str | PathLike[str] | Place,
    step: int,
    engine: State,
    extra: Mapping[str, Any],
    mesh: Mesh,
    buffers: HostBuffers | None,
    **options: Unpack[Options],
) -> Flow[Place]:
    """The stages of `save`, to be run in the background: training may go on as soon as this yields for the first time.

    buffers: where a copy of the state is made for that; None writes from the engine itself, which has to wait.
    """
    pieces: Callable[[], Iterable[Piece]] = lambda: finite(own_pieces(engine))  # noqa: E731
    if buffers is not None:
        copies: list[Piece] = []
        together(mesh, lambda: copies.extend(buffers.copy(pieces())))
        pieces = lambda: copies  # noqa: E731
    shapes, moments, counters = engine.state_shapes(), has_moments(engine), engine.counters()
    state = _state_text(step, counters, shapes, extra)
    needed = (12 * moments or 4) + (2 if options.get("export") else 0)  # bytes for each parameter
    needed *= sum(shape.numel() for shape in shapes.values())

    def put(working: Place) -> tuple[list[Stored], Entries]:
        with BoxWriter(working / TENSORS, mesh.rank) as writer:
            for piece in pieces():
                writer.put(piece.key, shapes[piece.name], piece.offsets, piece.values)
        return writer.stored, writer.entries()

    return (yield from _publishing(files.place(folder) / name_of(step), put, needed, state, mesh, **options))


def save_weights(
    folder: str | PathLike[str] | Place,
    shapes: Mapping[str, torch.Size],
    read: Callable[[str], torch.Tensor],
    extra: Mapping[str, Any],
    *,
    config: str,
    tokenizer: str | PathLike[str] | None,
) -> Place:
    """Write `folder/step-00000000` from weights alone, as a run that has made no step; one process.

    shapes: of every weight. read: gives one by name, in any float dtype, when it is its turn.
    Raises as `save` does.
    """
    mesh, needed = build_mesh(), 4 * sum(shape.numel() for shape in shapes.values())

    def put(working: Place) -> tuple[list[Stored], Entries]:
        with BoxWriter(working / TENSORS, 0) as writer:
            pieces = (Piece(name, "master", (0,) * len(shape), read(name).float()) for name, shape in shapes.items())
            for piece in finite(pieces):
                writer.put(piece.key, shapes[piece.name], piece.offsets, piece.values)
        return writer.stored, writer.entries()

    state = _state_text(0, {"optimizer_step": 0}, shapes, extra)
    final = files.place(folder) / name_of(0)
    return run_flow(mesh, _publishing(final, put, needed, state, mesh, config=config, tokenizer=tokenizer))


def _publishing(
    final: Place,
    put: Callable[[Place], tuple[list[Stored], Entries]],
    needed: int,
    state: str,
    mesh: Mesh,
    *,
    config: str = "",
    tokenizer: str | PathLike[str] | None = None,
    keep_last: int | None = None,
    keep_every: int | None = None,
    export: Export | None = None,
) -> Flow[Place]:
    """The stages of a checkpoint of `needed` bytes: complete, or nothing and CheckpointError.

    put: writes this rank's boxes into a folder; gives where they are, and the files by their names.
    """
    first = mesh.rank == 0
    working = on_first(mesh, lambda: keeping.begin(final, needed + SPARE_BYTES))
    try:
        stored, own = yield lambda: put(working)
        own = {f"{TENSORS}/{name}": entry for name, entry in own.items()}
        everything = gather_to_first(stored, mesh)
        small = yield lambda: _write_small(working, everything or [], state, config, tokenizer) if first else {}
        own |= small
        if export is not None:
            exported = yield lambda: export(working, mesh.rank, mesh.world_size)
            own |= exported
        shares = gather_to_first(own, mesh)
        yield lambda: _publish(working, final, shares or []) if first else None
    except CheckpointError as error:
        if first:
            keeping.give_up(working)
        raise type(error)(f"{final} was not saved, earlier checkpoints are as they were: {error}") from error
    if keep_last is not None:
        yield lambda: check_contents(final, own, own, last=True)
        yield lambda: keeping.rotate(final.parent, step_of(final) or 0, keep_last, keep_every) if first else None
    return final


def _state_text(
    step: int, counters: Mapping[str, float], shapes: Mapping[str, torch.Size], extra: Mapping[str, Any]
) -> str:
    others = dict(counters)
    state = {
        "megaxf_version": __version__,
        "step": step,
        "optimizer_step": others.pop("optimizer_step"),
        "counters": others,
        "shapes": {name: list(shape) for name, shape in shapes.items()},
        "extra": dict(extra),
    }
    return json.dumps(state, indent=1)


def _write_small(
    working: Place, stored: Iterable[list[Stored]], state: str, config: str, tokenizer: str | PathLike[str] | None
) -> Entries:
    """What one rank writes: the table of contents of all boxes, and what is no tensor."""
    entries = {
        f"{TENSORS}/{CONTENTS}": write_contents(working / TENSORS, (one for share in stored for one in share)),
        STATE: files.write_bytes(working / STATE, state.encode()),
        CONFIG: files.write_bytes(working / CONFIG, config.encode()),
    }
    if tokenizer is not None:
        source = files.place(tokenizer)
        for name in files.sizes(source):
            path = f"{TOKENIZER}/{name}"
            entries[path] = files.write_bytes(working / path, files.read_bytes(source / name))
    return entries


def _publish(working: Place, final: Place, shares: Iterable[Entries]) -> None:
    """Make a written folder a checkpoint: manifest, then its name."""
    entries = {name: entry for share in shares for name, entry in share.items()}
    if files.sizes(working) != {name: entry.size for name, entry in entries.items()}:
        raise CheckpointError(f"the ranks see different files in {final.parent}; choose a disk that all share")
    keeping.publish(working, final, entries)
    check_sizes(final)
