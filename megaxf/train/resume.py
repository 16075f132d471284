"""What a run continues from, and what a changed configuration means for it: said aloud, or refused."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from megaxf.checkpoint.comparing import differences
from megaxf.config import Run, validate
from megaxf.config_errors import ConfigError
from megaxf.config_files import parse_yaml
from megaxf.train.schedules import rate_of

Settings = Mapping[str, Any]

ROUNDING = "the losses go on as they would have, but for rounding"
CONSEQUENCES = {
    "seed": "weights go on as they are",
    "train.global_batch_size": "reading goes on at the next sample that has not been read",
    "train.precision": "the losses are not those of the run so far",
    "train.dropout": "the losses are not those of the run so far",
    "train.micro_batch_size": ROUNDING,
    "train.recompute": ROUNDING,
    "parallel.": ROUNDING,
    "engine.": ROUNDING,
}
"""Start of a key -> what follows from changing it."""

SILENT = (
    "run_folder",
    "init.",
    "evaluate.",
    "checkpoint.",
    "metrics.",
    "profile.",
    "guards.",
    "train.exit_after_minutes",
    "data.",
)
"""data: what its settings lead to is compared with the state of the data in the checkpoint."""
HORIZON = ("train.steps", "schedule.", "optimizer.learning_rate")


def compare(run: Run, saved: bytes, origin: str, step: int, other_model: bool = False) -> list[str]:
    """Sentences about what differs from the configuration `saved`, of `origin`, for a run that goes on after `step`.

    Sections that are not in the file are not compared: weights that were imported have a model and no past.
    Raises ConfigError where `saved` is damaged, or the model is another one; where `other_model` is allowed, that is
    said, too.
    """
    old = _settings(saved, origin)
    new = {section: value for section, value in run.model_dump(mode="json").items() if section in old}
    changed = {key: values for key, *values in differences(old, new)}
    model = [f"{key}: {was} -> {now}" for key, (was, now) in changed.items() if key.startswith("model.")]
    if model and not other_model:
        raise ConfigError(
            origin,
            [
                f"the run folder holds another model: {', '.join(model)}; use its model, another run_folder, or "
                "--allow-missing to go on with what both have"
            ],
        )
    spoken = {key: values for key, values in changed.items() if not key.startswith(SILENT)}
    sentences = [f"{key} has changed: {was} -> {now}{_consequence(key)}" for key, (was, now) in spoken.items()]
    if any(key.startswith(HORIZON) for key in spoken):
        sentences.append(_rates(old, run, step + 1))
    return sentences


def _settings(saved: bytes, origin: str) -> Settings:
    try:
        found = parse_yaml(saved.decode(), origin)
    except UnicodeDecodeError:
        found = None
    if not isinstance(found, Mapping):
        raise ConfigError(origin, ["is damaged: it holds no settings; restore it, or use another run_folder"])
    return found


def _consequence(key: str) -> str:
    found = next((text for start, text in CONSEQUENCES.items() if key.startswith(start)), None)
    return f"; {found}" if found else ""


def _rates(old: Settings, run: Run, step: int) -> str:
    """The learning rate of the next step before and after."""
    try:
        before = f"{rate_of(validate(dict(old), 'saved'), step):.6g}"
    except ConfigError:
        before = "unknown, since this version does not read the old configuration"
    return f"the learning rate of step {step} was to be {before} and now is {rate_of(run, step):.6g}"
