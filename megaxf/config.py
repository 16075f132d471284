"""The whole run as one strict, typed object, read from YAML and overridden by `section.key=value`.

    run = load_run("configs/runs/demo.yaml", ["train.steps=100"])
    check_world(run, world_size=64)

All errors of a file are found at once and raised as one `ConfigError`, before a process group or a GPU is touched.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Generic, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from megaxf.config_errors import ConfigError, explain
from megaxf.config_files import read_run_file
from megaxf.models.registry import family

Positive = Annotated[int, Field(gt=0)]
NonNegative = Annotated[int, Field(ge=0)]
PositiveFloat = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NonNegativeFloat = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Fraction = Annotated[float, Field(ge=0, le=1)]


class Section(BaseModel):
    """A part of the run: unknown keys, wrong types and silent conversions ("1e-4" for 1e-4) are errors."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class Source(Section):
    """One shard folder made by `megaxf prepare`."""

    folder: str
    weight: PositiveFloat = 1.0
    """Share of the rows drawn from this source, relative to the sum of all weights."""


class Data(Section):
    """What the model reads."""

    sources: dict[str, Source] = Field(min_length=1)
    sequence_length: Positive
    isolate_documents: bool = False
    """True: a token attends within its own document only, positions restart in each document, and the first token of
    a document is never a target. False: documents are joined and attended across."""


class Train(Section):
    """How long, in which portions and in which precision."""

    steps: Positive
    global_batch_size: Positive
    """Sequences in one optimizer step, over all ranks and accumulation."""
    micro_batch_size: Positive
    """Sequences in one forward pass on one rank."""
    precision: Literal["bf16", "fp32"] = "bf16"
    """bf16 keeps fp32 master weights and accumulates gradients in fp32."""
    recompute: Literal["none", "selective", "full"] = "none"
    attention_backend: Literal["sdpa", "reference"] = "sdpa"
    gradient_clip: NonNegativeFloat = 1.0
    """Largest global gradient norm; 0 turns clipping off."""
    z_loss: NonNegativeFloat = 0.0
    """Coefficient of the squared log-partition penalty (PaLM, arXiv 2204.02311)."""
    compile: bool = False
    """torch.compile each layer."""


class Optimizer(Section):
    """AdamW (arXiv 1711.05101); no weight decay on norms and biases."""

    learning_rate: PositiveFloat
    betas: tuple[Fraction, Fraction] = Field((0.9, 0.95), strict=False)
    eps: PositiveFloat = 1e-8
    weight_decay: NonNegativeFloat = 0.1


class Schedule(Section):
    """The learning rate over the steps; `optimizer.learning_rate` is its peak."""

    kind: Literal["constant", "linear", "cosine", "warmup_stable_decay", "inverse_sqrt"] = "cosine"
    warmup_steps: NonNegative = 0
    min_learning_rate: NonNegativeFloat = 0.0
    decay_steps: Positive | None = None
    """Length of the last phase of warmup_stable_decay; by default a tenth of the run."""
    decay_shape: Literal["linear", "sqrt"] = "linear"
    """Form of the decay phase of warmup_stable_decay."""

    @model_validator(mode="after")
    def _settings_have_an_effect(self) -> Schedule:
        given = self.model_fields_set & {"decay_steps", "decay_shape"}
        if self.kind != "warmup_stable_decay" and given:
            names = ", ".join(f"schedule.{name}" for name in sorted(given))
            raise ValueError(f"{names} has no effect with schedule.kind = {self.kind}; remove it")
        if self.kind in ("constant", "inverse_sqrt") and self.min_learning_rate:
            raise ValueError(f"schedule.min_learning_rate has no effect with schedule.kind = {self.kind}; remove it")
        return self


class EngineSection(Section):
    """Who holds what: 0 is the plain-torch reference engine, 1 to 3 are DeepSpeed's ZeRO stages."""

    zero_stage: Literal[0, 1, 2, 3] = 1


class Evaluate(Section):
    """Loss on the validation split."""

    every: NonNegative = 0
    """Steps between evaluations, 0 for the first and the last step only."""
    sequences: Positive | None = None
    """Sequences of each source to use; all of them by default."""


class Checkpoint(Section):
    """When to save and what to keep."""

    every: NonNegative = 0
    """Steps between checkpoints; the last step is always saved, 0 saves only that."""
    keep_last: Positive = 2


class Metrics(Section):
    """What is written beside the console line."""

    tensorboard: bool = True
    peak_tflops: PositiveFloat | None = None
    """Peak dense TFLOP/s of one device for the MFU; by default from the hardware table, else measured at the start."""


ModelConfig = TypeVar("ModelConfig", bound=BaseModel)


class Run(Section, Generic[ModelConfig]):
    """A whole pretraining run."""

    run_folder: str
    seed: NonNegative = 1234
    model: ModelConfig
    data: Data
    train: Train
    optimizer: Optimizer
    schedule: Schedule = Schedule()
    engine: EngineSection = EngineSection()
    evaluate: Evaluate = Evaluate()
    checkpoint: Checkpoint = Checkpoint()
    metrics: Metrics = Metrics()

    @model_validator(mode="after")
    def _sections_agree(self) -> Run[ModelConfig]:
        problems = list(_cross_section_problems(self))
        if problems:
            raise ValueError("\n".join(problems))
        return self


def _cross_section_problems(run: Run[Any]) -> list[str]:
    problems = []
    limit = run.model.max_position_embeddings
    if run.data.sequence_length > limit:
        problems.append(
            f"data.sequence_length = {run.data.sequence_length} is beyond model.max_position_embeddings = {limit}; "
            "shorten the sequence or raise the limit"
        )
    if run.train.global_batch_size % run.train.micro_batch_size:
        problems.append(
            f"train.micro_batch_size = {run.train.micro_batch_size} does not divide train.global_batch_size = "
            f"{run.train.global_batch_size}; {_divisor_advice(run.train.global_batch_size)}"
        )
    if run.schedule.warmup_steps > run.train.steps:
        problems.append(
            f"schedule.warmup_steps = {run.schedule.warmup_steps} is longer than the run, train.steps = "
            f"{run.train.steps}; shorten the warm-up"
        )
    decay = run.schedule.decay_steps or 0
    if decay + run.schedule.warmup_steps > run.train.steps >= run.schedule.warmup_steps:
        problems.append(
            f"schedule.warmup_steps + schedule.decay_steps = {run.schedule.warmup_steps + decay} is longer than the "
            f"run, train.steps = {run.train.steps}; shorten one"
        )
    if run.schedule.min_learning_rate > run.optimizer.learning_rate:
        problems.append(
            f"schedule.min_learning_rate = {run.schedule.min_learning_rate} is above the peak, "
            f"optimizer.learning_rate = {run.optimizer.learning_rate}; lower it"
        )
    return problems


def _divisor_advice(number: int) -> str:
    """The divisors nearest to small counts, as a sentence."""
    divisors = [d for d in range(1, number + 1) if number % d == 0]
    shown = ", ".join(map(str, divisors[:8])) + (", ..." if len(divisors) > 8 else "")
    return f"use one of {shown}"


def load_run(path: str | Path, overrides: list[str] | None = None) -> Run[Any]:
    """The run of a YAML file.

    path: the run file; its `model` is a mapping, the name of a file in configs/models, or a path to one.
    overrides: `section.key=value` strings, applied after the file; values are YAML.
    Raises ConfigError with every problem found.
    """
    settings = read_run_file(Path(path), overrides or [])
    return validate(settings, str(path))


def validate(settings: dict[str, Any], origin: str) -> Run[Any]:
    """The typed run of a plain mapping; `origin` names where it came from in the error."""
    model = settings.get("model")
    if not isinstance(model, dict):
        raise ConfigError(origin, ["model is missing: name a file of configs/models (model: tiny) or write a mapping"])
    model = dict(model)
    try:
        config = family(model.pop("family", "llama")).Config
    except ValueError as error:
        raise ConfigError(origin, [f"model.family: {error}"]) from None
    run_type = Run[config]  # type: ignore[valid-type]
    try:
        return run_type.model_validate({**settings, "model": model})
    except ValidationError as error:
        raise ConfigError(origin, explain(error, run_type)) from None


def check_world(run: Run[Any], world_size: int) -> None:
    """Raises ConfigError where the run cannot be cut over `world_size` ranks."""
    train = run.train
    if train.global_batch_size % (train.micro_batch_size * world_size):
        share = train.micro_batch_size * world_size
        lower, upper = train.global_batch_size // share * share, (train.global_batch_size // share + 1) * share
        near = f"{upper}" if lower == 0 else f"{lower} or {upper}"
        raise ConfigError(
            f"world size {world_size}",
            [
                f"train.global_batch_size = {train.global_batch_size} is not a multiple of train.micro_batch_size x "
                f"data-parallel ranks = {train.micro_batch_size} x {world_size}; use train.global_batch_size = {near}, "
                "or another number of processes"
            ],
        )
