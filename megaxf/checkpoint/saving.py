"""Save a checkpoint: read from the engine tensor by tensor, written by all ranks, there as a whole or not at all."""

from __future__ import annotations

import json
import shutil
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

import torch

from megaxf import __version__
from megaxf.checkpoint.errors import CheckpointError
from megaxf.checkpoint.files import Entry, describe, sync_folder, write_bytes, write_manifest
from megaxf.checkpoint.finding import clear_temporaries, name_of, remove, rotate
from megaxf.checkpoint.ranks import on_first, together
from megaxf.checkpoint.tensors import write
from megaxf.checkpoint.weights import CONFIG, MASTER, STATE, TENSORS, TOKENIZER
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
    folder: str | Path,
    step: int,
    engine: State,
    extra: Mapping[str, Any],
    mesh: Mesh,
    *,
    config: str = "",
    tokenizer: str | Path | None = None,
    keep_last: int | None = None,
) -> Path:
    """Write `folder/step-<step>` and give its path; collective.

    folder: created where missing. extra: plain values (JSON) of the training loop, given back by `load`.
    config: text of the resolved configuration. tokenizer: folder of the tokenizer's files.
    keep_last: how many complete checkpoints to keep, this one counted; None keeps all. Older ones go only afterwards.
    Host memory: each rank holds its share until it is written, 12 bytes a parameter divided by the number of ranks, and
    one whole tensor beside it.
    Raises CheckpointError on every rank, with what was there before untouched: no space, a failed write, a weight that
    is not finite.
    """
    held, shapes = _collect(engine, mesh)
    state = _state_text(step, engine.optimizer_step, shapes, extra)

    def put(into: Path) -> None:
        write(into, {key: value.shape for key, value in held.items()}, held.__getitem__, mesh)

    final = _publish(Path(folder) / name_of(step), put, shapes, state, config, tokenizer, mesh)
    if keep_last is not None:
        on_first(mesh, lambda: rotate(final.parent, step, keep_last))
    return final


def save_weights(
    folder: str | Path,
    shapes: Mapping[str, torch.Size],
    read: Callable[[str], torch.Tensor],
    extra: Mapping[str, Any],
    *,
    config: str,
    tokenizer: str | Path | None,
) -> Path:
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

    def put(into: Path) -> None:
        write(into, masters, finite, mesh, one_by_one=True)

    return _publish(Path(folder) / name_of(0), put, masters, state, config, tokenizer, mesh)


def _publish(
    final: Path,
    put: Callable[[Path], None],
    shapes: Mapping[str, torch.Size],
    state: str,
    config: str,
    tokenizer: str | Path | None,
    mesh: Mesh,
) -> Path:
    """A checkpoint of the tensors that `put` writes into a folder: complete, or nothing and CheckpointError."""
    temporary = on_first(mesh, lambda: _prepare(final, shapes))
    try:
        put(temporary / TENSORS)
        on_first(mesh, lambda: _write_small_files(temporary, state, config, tokenizer))
        _finish(temporary, final, mesh)
    except CheckpointError as error:
        if mesh.rank == 0:
            shutil.rmtree(temporary, ignore_errors=True)
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


def _prepare(final: Path, shapes: Mapping[str, torch.Size]) -> Path:
    """A fresh temporary folder beside `final`, on a disk with room enough."""
    folder = final.parent
    folder.mkdir(parents=True, exist_ok=True)
    clear_temporaries(folder)
    needed = 4 * sum(shape.numel() for shape in shapes.values()) + SPARE_BYTES
    free = shutil.disk_usage(folder).free
    if free < needed:
        raise CheckpointError(
            f"{final} needs {needed / 1e9:.3f} GB and the disk has {free / 1e9:.3f} GB free; make room, keep "
            "fewer checkpoints (checkpoint.keep_last) or choose another run_folder"
        )
    temporary = folder / f".{final.name}.tmp-{uuid.uuid4().hex[:8]}"
    (temporary / TENSORS).mkdir(parents=True)
    return temporary


def _write_small_files(temporary: Path, state: str, config: str, tokenizer: str | Path | None) -> None:
    write_bytes(temporary / STATE, state.encode())
    write_bytes(temporary / CONFIG, config.encode())
    if tokenizer is not None:
        for name in _files(Path(tokenizer)):
            write_bytes(temporary / TOKENIZER / name, (Path(tokenizer) / name).read_bytes())


def _finish(temporary: Path, final: Path, mesh: Mesh) -> None:
    """Make a written folder a checkpoint: manifest, then its name; collective."""
    shares = together(mesh, lambda: _describe_share(temporary, mesh))
    entries = {name: entry for share in shares for name, entry in share.items()}

    def publish() -> None:
        if set(_files(temporary)) != set(entries):
            raise CheckpointError(f"the ranks see different files in {temporary.parent}; choose a disk that all share")
        write_manifest(temporary, entries)
        for inner in [path for path in temporary.rglob("*") if path.is_dir()]:
            sync_folder(inner)
        sync_folder(temporary)
        if final.exists():
            remove(final)
        temporary.rename(final)
        sync_folder(final.parent)

    on_first(mesh, publish)


def _describe_share(folder: Path, mesh: Mesh) -> dict[str, Entry]:
    """Checksums of every n-th file: the ranks share the reading."""
    return {name: describe(folder / name) for name in _files(folder)[mesh.rank :: mesh.world_size]}


def _files(folder: Path) -> list[str]:
    """The files of a folder by relative name, sorted."""
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
