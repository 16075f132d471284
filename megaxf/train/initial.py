"""What a new run starts from where `init.from` names a trained model: the model's weights, and nothing else of it.

run = load_run("run.yaml", complete=complete)       # `model` may be left out, or say only what differs
initial = open_initial(run, tokenizer_folder)       # compared with the run before anything is built
fill(engine, initial, mesh)                         # any layout; the optimizer starts anew
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import torch

from data_pipeline.errors import DataError
from megaxf.checkpoint import CheckpointError, find_latest, read_config
from megaxf.checkpoint.comparing import differences
from megaxf.checkpoint.files import Place
from megaxf.checkpoint.ranks import together
from megaxf.config import Run
from megaxf.config_errors import ConfigError
from megaxf.engine import Engine
from megaxf.parallel.boxes import PARTS
from megaxf.parallel.mesh import Mesh
from megaxf.train.run_folder import RunFolder
from megaxf.train.sources import open_run
from megaxf.train.trained import open_source, read_model_config
from megaxf.train.vocabulary import Extended, compare_tokenizers

ADAPTED = ("max_position_embeddings", "rope_theta", "rope_scaling")
"""Settings of the model that training may go on with other values of: a longer context (arXiv 2308.12950)."""
NEUTRAL = ("vocab_size", "initializer_range")
"""Settings that are compared elsewhere, or say nothing of trained weights."""


class Initial(NamedTuple):
    """A trained model that fits the run."""

    path: Place
    parameters: int
    vocab_size: int
    """Of the trained model; that of the run may be larger."""
    dtype: str
    """Of the trained weights."""
    weights: Extended
    warnings: list[str]


def complete(settings: dict[str, Any]) -> dict[str, Any]:
    """The settings of a run with what they do not say of the model taken from `init.from`.

    A run that has checkpoints takes it from the newest of them, so that it goes on where `init.from` is gone.
    """
    init, given = settings.get("init"), settings.get("model")
    given = {} if given is None else given  # left out, or left blank
    path = init.get("from") if isinstance(init, Mapping) else None
    if not isinstance(path, str) or not isinstance(given, Mapping):
        return settings
    saving = settings.get("checkpoint")
    own = _newest(settings.get("run_folder"), saving.get("folder") if isinstance(saving, Mapping) else None)
    model = read_config(own)["model"] if own else read_model_config(path).model_dump(mode="json")
    return {**settings, "model": {**model, **given}}


def _newest(run_folder: Any, checkpoints: Any) -> Place | None:
    """The newest complete checkpoint of a run; None too where these are not what they should be."""
    if not isinstance(run_folder, str) or not isinstance(checkpoints, str | None):
        return None
    return find_latest(RunFolder(run_folder, checkpoints).checkpoints, say=lambda sentence: None)


def open_initial(run: Run[Any], tokenizer: Path | None) -> Initial | None:
    """What `init.from` names, its weights not yet read; None where nothing is named; collective among ranks.

    tokenizer: the folder of the data's tokenizer; None where the data is not here, and it is not compared.
    Raises ConfigError with every difference that forbids to start from it, and as `open_source` does.
    """
    if run.init.from_ is None:
        return None
    source = open_source(run.init.from_)
    problems, warnings = _compare_models(run, source.config)
    if tokenizer is not None:
        of_ids, to_know = compare_tokenizers(tokenizer, source.tokenizer, source.path)
        problems, warnings = problems + of_ids, warnings + to_know
    if problems:
        raise ConfigError(f"init.from = {run.init.from_}", problems)
    count = sum(shape.numel() for shape in source.weights.shapes.values())
    weights = Extended(source.weights, run.model, run.init.vocabulary_extension, run.seed)
    return Initial(source.path, count, source.config.vocab_size, source.dtype, weights, warnings)


def open_for_check(run: Run[Any]) -> Initial | None:
    """What a run that is started now would start from, as far as its data is on this machine; as `open_initial`."""
    if _newest(run.run_folder, run.checkpoint.folder):
        return None
    tokenizer = None
    if all(source.folder and Path(source.folder).exists() for source in run.data.sources.values()):
        with suppress(DataError):  # One of the problems that the page lists.
            tokenizer = open_run(run).tokenizer_folder()
    return open_initial(run, tokenizer)


def fill(engine: Engine, initial: Initial, mesh: Mesh) -> None:
    """Write the weights into a fresh engine of any layout; collective. Each rank reads the rows that it holds.

    Raises CheckpointError on every rank where a tensor cannot be read, or is not finite.
    """

    def read() -> None:
        for piece in engine.pieces():
            if piece.part == PARTS[0]:
                rows = initial.weights.rows(piece.name, piece.offsets[0], len(piece.values))
                box = piece._replace(offsets=(0, *piece.offsets[1:])).box_in(rows)
                if not torch.isfinite(box).all():
                    raise CheckpointError(f"{piece.name} of {initial.path} is not finite: that model has diverged")
                piece.values.copy_(box)

    together(mesh, read)
    engine.loaded({})


def _compare_models(run: Run[Any], config: Any) -> tuple[list[str], list[str]]:
    """(differences that forbid, differences to know) between the run's model and the trained one."""
    problems, warnings = _compare_vocabularies(run, config.vocab_size), []
    for key, theirs, ours in differences(config.model_dump(mode="json"), run.model.model_dump(mode="json")):
        name = key.split(".")[0]
        if name in NEUTRAL:
            continue
        sentence = f"model.{key} = {ours}, and the model of init.from has {theirs}"
        if name in ADAPTED:
            warnings.append(f"{sentence}: what it has learned of positions changes with it")
        else:
            problems.append(f"{sentence}; leave it out of the run to use that")
    return problems, warnings


def _compare_vocabularies(run: Run[Any], theirs: int) -> list[str]:
    ours, kind = run.model.vocab_size, run.init.vocabulary_extension
    if ours < theirs:
        return [
            f"model.vocab_size = {ours} is smaller than the {theirs} of init.from: rows of trained tokens would be cut "
            f"off; use {theirs}, or more"
        ]
    if ours > theirs and kind is None:
        return [
            f"model.vocab_size = {ours} is larger than the {theirs} of init.from; say what the {ours - theirs} new "
            f"rows start as: init.vocabulary_extension = mean, zeros or random, or use model.vocab_size = {theirs}"
        ]
    if ours == theirs and kind is not None:
        return [
            f"init.vocabulary_extension = {kind} has no effect, since model.vocab_size = {ours} is that of init.from; "
            "remove it"
        ]
    return []
