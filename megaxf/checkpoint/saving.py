"""Save a checkpoint: read from the engine tensor by tensor, written by all ranks, there as a whole or not at all."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from os import PathLike
from typing import Any, Protocol

import torch

from megaxf import __version__
from megaxf.checkpoint import files, keeping
from megaxf.checkpoint.errors import CheckpointError
from megaxf.checkpoint.files import Entry, Place
from megaxf.checkpoint.finding import name_of
from megaxf.checkpoint.manifest import describe
from megaxf.checkpoint.ranks import on_first, together
from megaxf.checkpoint.tensors import write
from megaxf.checkpoint.weights import CONFIG, MASTER, STATE, TENSORS, TOKENIZER, verify
from megaxf.parallel.mesh import Mesh, build_mesh

SPARE_BYTES = 1 << 20
"""Room for the small files of a checkpoint."""


class State(Protocol):
    """The part of an engine that a checkpoint reads."""

    @property
    def optimizer_step(self) -> int:
        """Updates made so far."""
        ...

    def state_names(self) -> list[str]:
        """The parameters by name."""
        ...

    def read_state(self, name: str) -> dict[str, torch.Tensor]:
        """The fp32 tensors of one parameter."""
        ...


def save(
    folder: str | PathLike[str] | Place,
    step: int,
    engine: State,
    extra: Mapping[str, Any],
    mesh: Mesh,
    *,
    config: str = "",
    tokenizer: str | PathLike[str] | None = None,
    keep_last: int | None = None,
    keep_every: int | None = None,
) -> Place:
    """Write `folder/step-<step>` and give its path; collective.

    folder: created where missing. extra: plain values (JSON) of the training loop, given back by `load`.
    config: text of the resolved configuration. tokenizer: folder of the tokenizer's files.
    keep_last: how many complete checkpoints to keep, this one counted; None keeps all. Older ones go only after every
    file of this one has been read back; those whose step is a multiple of keep_every do not.
    Host memory: each rank holds its share until it is written, 12 bytes a parameter divided by the number of ranks, and
    one whole tensor beside it.
    Raises CheckpointError on every rank, with what was there before untouched: no space, a failed write, a weight that
    is not finite.
    """
    held, shapes = _collect(engine, mesh)
    state = _state_text(step, engine.optimizer_step, shapes, extra)

    def put(into: Place) -> None:
        write(into, {key: value.shape for key, value in held.items()}, held.__getitem__, mesh)

    final = _publish(files.place(folder) / name_of(step), put, shapes, state, config, tokenizer, mesh)
    if keep_last is not None:
        verify(final, mesh)
        on_first(mesh, lambda: keeping.rotate(final.parent, step, keep_last, keep_every))
    return final


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
    mesh = build_mesh()
    masters = {name + MASTER: shape for name, shape in shapes.items()}
    state = _state_text(0, 0, masters, extra)

    def finite(key: str) -> torch.Tensor:
        tensor = read(key.removesuffix(MASTER)).float()
        _refuse([] if torch.isfinite(tensor).all() else [key])
        return tensor

    def put(into: Place) -> None:
        write(into, masters, finite, mesh, one_by_one=True)

    return _publish(files.place(folder) / name_of(0), put, masters, state, config, tokenizer, mesh)


def _publish(
    final: Place,
    put: Callable[[Place], None],
    shapes: Mapping[str, torch.Size],
    state: str,
    config: str,
    tokenizer: str | PathLike[str] | None,
    mesh: Mesh,
) -> Place:
    """A checkpoint of the tensors that `put` writes into a folder: complete, or nothing and CheckpointError."""
    needed = 4 * sum(shape.numel() for shape in shapes.values()) + SPARE_BYTES
    working = on_first(mesh, lambda: keeping.begin(final, needed))
    try:
        put(working / TENSORS)
        on_first(mesh, lambda: _write_small_files(working, state, config, tokenizer))
        _finish(working, final, mesh)
    except CheckpointError as error:
        if mesh.rank == 0:
            keeping.give_up(working)
        raise type(error)(f"{final} was not saved, earlier checkpoints are as they were: {error}") from error
    return final


def _collect(engine: State, mesh: Mesh) -> tuple[dict[str, torch.Tensor], dict[str, torch.Size]]:
    """(the tensors that this rank keeps and writes, the shapes of all), by key.

    Every rank sees each tensor in turn and the one with the fewest bytes so far keeps it, on the CPU.
    """
    held: dict[str, torch.Tensor] = {}
    shapes: dict[str, torch.Size] = {}
    bytes_of_rank = [0] * mesh.world_size
    faults = []
    for name in engine.state_names():
        for part, tensor in engine.read_state(name).items():
            owner = bytes_of_rank.index(min(bytes_of_rank))
            bytes_of_rank[owner] += tensor.nbytes
            shapes[f"{name}/{part}"] = tensor.shape
            if owner == mesh.rank:
                held[f"{name}/{part}"] = tensor
                if not torch.isfinite(tensor).all():
                    faults.append(f"{name} ({part})")
    together(mesh, lambda: _refuse(faults))
    return held, shapes


def _refuse(faults: list[str]) -> None:
    if faults:
        more = f" and {len(faults) - 3} more" if len(faults) > 3 else ""
        raise CheckpointError(
            f"these are not finite: {', '.join(faults[:3])}{more}; "
            "training has diverged: continue from an earlier checkpoint with a lower learning rate"
        )


def _state_text(step: int, optimizer_step: int, shapes: Mapping[str, torch.Size], extra: Mapping[str, Any]) -> str:
    masters = {key.removesuffix(MASTER): list(shape) for key, shape in shapes.items() if key.endswith(MASTER)}
    state = {
        "megaxf_version": __version__,
        "step": step,
        "optimizer_step": optimizer_step,
        "shapes": masters,
        "extra": dict(extra),
    }
    return json.dumps(state, indent=1)


def _write_small_files(working: Place, state: str, config: str, tokenizer: str | PathLike[str] | None) -> None:
    files.write_bytes(working / STATE, state.encode())
    files.write_bytes(working / CONFIG, config.encode())
    if tokenizer is not None:
        source = files.place(tokenizer)
        for name in files.sizes(source):
            files.write_bytes(working / TOKENIZER / name, files.read_bytes(source / name))


def _finish(working: Place, final: Place, mesh: Mesh) -> None:
    """Make a written folder a checkpoint: manifest, then its name; collective."""
    shares = together(mesh, lambda: _describe_share(working, mesh))
    entries = {name: entry for share in shares for name, entry in share.items()}

    def publish() -> None:
        if set(files.sizes(working)) != set(entries):
            raise CheckpointError(f"the ranks see different files in {final.parent}; choose a disk that all share")
        keeping.publish(working, final, entries)

    on_first(mesh, publish)


def _describe_share(folder: Place, mesh: Mesh) -> dict[str, Entry]:
    """Checksums of every n-th file: the ranks share the reading."""
    return {name: describe(folder / name) for name in list(files.sizes(folder))[mesh.rank :: mesh.world_size]}
