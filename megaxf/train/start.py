"""Before the first step: what the run folder holds, whether all ranks mean the same run, and from where it goes on."""

from __future__ import annotations

from contextlib import suppress
from typing import Any, NamedTuple

import torch

from data_pipeline.loader.state import describe_change
from data_pipeline.online.batches import OnlineBatches
from data_pipeline.order.phases import Phases
from megaxf import checkpoint
from megaxf.checkpoint.files import Place, place
from megaxf.checkpoint.manifest import read_file
from megaxf.checkpoint.weights import CONFIG
from megaxf.config import Run, to_yaml
from megaxf.config_errors import ConfigError
from megaxf.engine import Engine
from megaxf.models.initialize import initial_weight
from megaxf.parallel.collectives import broadcast_object, gather_objects
from megaxf.parallel.mesh import Mesh
from megaxf.train.console import Report
from megaxf.train.guards import agreed
from megaxf.train.guards.numbers import NumberGuard, Steps
from megaxf.train.initial import Initial, fill
from megaxf.train.lock import Lock
from megaxf.train.resume import compare
from megaxf.train.run_folder import RunFolder
from megaxf.train.sources import AnyBatches


class Position(NamedTuple):
    """How far a run has come; kept in its checkpoints."""

    step: int = 0
    samples: int = 0
    """Sequences read: where the data goes on, whatever the batch size was."""
    tokens: int = 0


class Standing(NamedTuple):
    """What a run folder holds before the start, as far as it can be told without reading all of it."""

    step: int
    path: Place | None
    """The newest checkpoint, which loading may find damaged, and go further back; None where there is none."""
    passed_over: list[Steps]
    """Steps whose data the guards have passed over."""
    skipped: list[Steps]
    """With them, all steps whose data was passed over."""


def look(folder: RunFolder, run: Run, mesh: Mesh, must_resume: bool, allow_missing: bool, lock: Lock) -> Standing:
    """Rank 0's view of the run folder, on all ranks; collective. Raises ConfigError where it may not be used.

    lock: taken before, so that nobody changes what is seen.
    """

    def look_at_it() -> Standing | None:
        if mesh.rank != 0:
            return None
        folder.check()
        lock.take()
        for found in reversed(checkpoint.list_checkpoints(folder.checkpoints)):
            with suppress(checkpoint.DamagedCheckpoint):  # as loading passes over it, and says so
                if found.fault is None:
                    _compare(run, found.path, found.step, allow_missing)
                    return Standing(found.step, found.path, *_skipped(found.path))
        if must_resume:
            raise ConfigError("--resume", [f"run_folder = {folder.path} holds no complete checkpoint to go on from"])
        if folder.config.exists():
            compare(run, folder.config.read_bytes(), str(folder.config), 0)
        return Standing(0, None, [], [])

    standing = broadcast_object(agreed(mesh, look_at_it), mesh)
    assert standing is not None
    return standing


def _skipped(path: Place) -> tuple[list[Steps], list[Steps]]:
    """(what guards have passed over, all that was passed over) of the run that saved a checkpoint."""
    guards = checkpoint.read_extra(path).get("guards", {})
    settings = checkpoint.read_config(path).get("data", {})
    passed_over, skipped = guards.get("passed_over", []), settings.get("skip_steps", [])
    return [(first, last) for first, last in passed_over], [(first, last) for first, last in skipped]


def is_done(standing: Standing, run: Run, mesh: Mesh) -> bool:
    """Whether the last step is made, and its checkpoint is as it was written; collective."""
    if standing.path is None or standing.step < run.train.steps:
        return False
    try:
        checkpoint.verify(standing.path, mesh)
    except checkpoint.DamagedCheckpoint:  # as loading then says
        return False
    return True


def changes(run: Run, path: str | None, step: int, allow_missing: bool, mesh: Mesh) -> list[str]:
    """What has changed since the checkpoint `path` of a step, and what follows; collective. None: there is none."""

    def compare_it() -> list[str]:
        return _compare(run, place(path), step, allow_missing) if path and mesh.rank == 0 else []

    sentences: list[str] = broadcast_object(agreed(mesh, compare_it), mesh)
    return sentences


def _compare(run: Run, path: Place, step: int, other_model: bool) -> list[str]:
    sentences = compare(run, read_file(path, CONFIG), str(path / CONFIG), step, other_model)
    if run.init.from_:
        sentences.append(f"init.from = {run.init.from_} is not read: the run goes on from its own checkpoint")
    return sentences


def same_on_all_ranks(run: Run, batches: AnyBatches, mesh: Mesh) -> None:
    """Raises ConfigError where ranks were started with different settings or see different data; collective."""
    for what, value in (("settings", to_yaml(run)), ("data", batches.fingerprint)):
        values = gather_objects(value, mesh)
        other = [rank for rank, found in enumerate(values) if found != values[0]]
        if other:
            raise ConfigError(
                f"rank {other[0]}",
                [f"has other {what} than rank 0 ({len(other)} ranks differ); give all ranks the same files"],
            )


def load(
    folder: RunFolder,
    run: Run,
    engine: Engine,
    mesh: Mesh,
    batches: AnyBatches,
    report: Report,
    numbers: NumberGuard,
    allow_missing: bool = False,
    initial: Initial | None = None,
) -> tuple[Position, str | None]:
    """The newest sound checkpoint into the engine, and what the guard knew then, or what a new run starts from;
    collective. Gives where the run stands, and the checkpoint's path."""

    def anew(name: str) -> torch.Tensor:
        return initial_weight(engine.placed.model, name, engine.placed.shapes[name], run.seed)

    extra: dict[str, Any] | None = checkpoint.load_latest(
        folder.checkpoints, engine, mesh, report.warn, allow_missing=allow_missing, anew=anew
    )
    if extra is None:
        if initial:
            fill(engine, initial, mesh)
        return Position(), None
    if extra["data"] is None:
        raise checkpoint.CheckpointError(
            f"{extra['path']} holds a model's weights and no state of a run; start a new run, whose init.from names it"
        )
    for sentence in describe_change(extra["data"], batches.state(extra["samples"])):
        report.warn(f"since {extra['path']}: {sentence}")
    if isinstance(batches, OnlineBatches):
        batches.go_on(extra["data"])
    if "guards" in extra:
        numbers.load(extra["guards"])
    _check_phases(batches.phases, Position(extra["step"], extra["samples"]), extra["path"])
    return Position(extra["step"], extra["samples"], extra["tokens"]), extra["path"]


def _check_phases(phases: Phases, position: Position, path: str) -> None:
    """Raises ConfigError where phases, which begin at steps, do not begin where the run will then stand in the data."""
    if len(phases.phases) > 1 and (read := phases.step(position.step).first_sample) != position.samples:
        raise ConfigError(
            path,
            [
                f"data.phases read {read:,} samples in the first {position.step:,} steps, and the run has read "
                f"{position.samples:,}: train.global_batch_size or a phase of the past has changed; set it as it was"
            ],
        )
