"""The whole run as one strict, typed object, read from YAML and overridden by `section.key=value`.

    run = load_run("configs/runs/demo.yaml", ["train.steps=100"], world_size=64)

All errors of a file are found at once and raised as one `ConfigError`, before a process group or a GPU is touched.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import prod
from pathlib import Path
from typing import Annotated, Any, Generic, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError, field_validator, model_validator

from megaxf.config_checks import disagreements
from megaxf.config_data import Data
from megaxf.config_errors import ConfigError, explain
from megaxf.config_files import dump_yaml, read_model_file, read_run_file
from megaxf.config_guards import Guards
from megaxf.config_metrics import Metrics, Profile
from megaxf.config_section import Decay, NonNegative, NonNegativeFloat, Positive, PositiveFloat, Section
from megaxf.models.registry import config_type


class Init(Section):
    """What the weights of a new run start from; one that goes on from its own checkpoint takes no notice."""

    model_config = ConfigDict(serialize_by_alias=True)

    from_: str | None = Field(None, alias="from", min_length=1)
    """A trained model, whatever `megaxf convert` reads; by default weights are drawn by the seed."""
    vocabulary_extension: Literal["mean", "zeros", "random"] | None = None
    """What the rows of tokens that the trained model does not have start as, where model.vocab_size is larger."""

    @model_validator(mode="after")
    def _an_extension_has_a_model(self) -> Init:
        if self.vocabulary_extension and self.from_ is None:
            raise ValueError(
                f"init.vocabulary_extension = {self.vocabulary_extension} has no effect without init.from; remove it, "
                "or name the model to start from"
            )
        return self


class Train(Section):
    """How long, in which portions and in which precision."""

    steps: Positive
    global_batch_size: Positive
    """Sequences in one optimizer step, over all ranks and accumulation."""
    micro_batch_size: Positive
    """Sequences in one forward pass on one rank."""
    precision: Literal["bf16", "fp16", "fp32"] = "bf16"
    """bf16 and fp16 keep fp32 master weights and accumulate gradients in fp32; fp16 scales the loss."""
    recompute: Literal["none", "selective", "full"] = "none"
    recompute_every: Positive = 1
    """Recompute in every so manieth layer only, the first among them."""
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Rate at which elements of what attention and MLP add to the residual stream fall out."""
    attention_backend: Literal["sdpa", "reference"] = "sdpa"
    gradient_clip: NonNegativeFloat = 1.0
    """Largest global gradient norm; 0 turns clipping off."""
    z_loss: NonNegativeFloat = 0.0
    """Coefficient of the squared log-partition penalty (PaLM, arXiv 2204.02311)."""
    compile: bool = False
    """torch.compile each layer, the passes over the logits, and in the reference engine the optimizer."""
    exit_after_minutes: PositiveFloat | None = None
    """Save and stop such that all is over so many minutes after the start: the time of a slot."""

    @field_validator("precision", mode="before")
    @classmethod
    def _fp8_is_not_offered(cls, value: Any) -> Any:
        if value == "fp8":
            raise ValueError(
                "train.precision = fp8 is not offered: it needs GPUs with float8 matrix products (H100 or later) and "
                "linear layers that scale for them (torch._scaled_mm, or Transformer Engine's); use bf16"
            )
        return value


class Optimizer(Section):
    """AdamW (arXiv 1711.05101); no weight decay on norms and biases."""

    learning_rate: PositiveFloat
    betas: tuple[Decay, Decay] = Field((0.9, 0.95), strict=False)
    """Decay of the running mean of the gradient and of its square."""
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
        idle = []
        if self.kind != "warmup_stable_decay":
            idle += ["decay_steps"] * (self.decay_steps is not None) + ["decay_shape"] * (self.decay_shape != "linear")
        if self.kind in ("constant", "inverse_sqrt") and self.min_learning_rate:
            idle.append("min_learning_rate")
        if idle:
            names = " and ".join(f"schedule.{name}" for name in idle)
            raise ValueError(f"{names}: no effect with schedule.kind = {self.kind}; remove it or choose another kind")
        return self


class Parallel(Section):
    """How the model is cut over ranks; the ranks that these degrees leave are data-parallel."""

    tensor_parallel_size: Positive = 1
    """Ranks that hold a share of each matrix."""
    sequence_parallel: bool = False
    """Between the matrices, the tensor-parallel ranks hold a share of the sequence each (arXiv 2205.05198)."""
    context_parallel_size: Positive = 1
    """Ranks that hold a share of each sequence throughout."""
    pipeline_parallel_size: Positive = 1
    """Ranks, or stages, that hold a share of the layers."""
    pipeline_schedule: Literal["1f1b", "interleaved", "dualpipev"] = "1f1b"
    pipeline_layers: list[Positive] | None = None
    """Decoder layers of each part, first to last; by default balanced by their cost."""
    order: list[Literal["pipeline", "data", "context", "tensor"]] = Field(["pipeline", "data", "context", "tensor"])
    """The axes, outermost first: ranks along the last one are neighbours and share a node."""

    def degrees(self) -> dict[str, int]:
        """The size of each axis of the mesh but the data axis."""
        return {
            "pipeline": self.pipeline_parallel_size,
            "context": self.context_parallel_size,
            "tensor": self.tensor_parallel_size,
        }

    def data_parallel_size(self, world_size: int) -> int:
        """Ranks along the data axis, each with its share of the global batch; 0 where one model needs more ranks."""
        return world_size // prod(self.degrees().values())

    def pipeline_parts(self) -> int:
        """Parts that the layers are cut into: one a stage with 1f1b, else two (see megaxf.plan.stages)."""
        return self.pipeline_parallel_size * (1 if self.pipeline_schedule == "1f1b" else 2)


class EngineSection(Section):
    """Who holds what: 0 is the plain-torch reference engine, 1 to 3 are DeepSpeed's ZeRO stages."""

    zero_stage: Annotated[int, Field(ge=0, le=3)] = 1
    """What is cut over the data-parallel ranks: 1 optimizer state, 2 gradients too, 3 weights too."""
    offload_optimizer: Literal["none", "cpu", "nvme"] = "none"
    """Where the optimizer state lies; other than none, the step is made on the CPU."""
    offload_parameters: Literal["none", "cpu", "nvme"] = "none"
    """Where the weights lie that are not in use; zero_stage 3 only."""
    nvme_folder: str | None = None
    """A folder on a fast local disk, for what is offloaded to nvme."""


class Evaluate(Section):
    """Loss on the validation split."""

    every: NonNegative = 0
    """Steps between evaluations, 0 for the first and the last step only."""
    sequences: Positive | None = None
    """Sequences of each source to use; all of them by default."""


class Checkpoint(Section):
    """When to save, where, and what to keep."""

    folder: str | None = Field(default=None, min_length=1)
    """A folder or a URL of fsspec; by default `checkpoints` in the run folder."""
    every: NonNegative = 0
    """Steps between checkpoints; the last step is always saved, 0 saves only that."""
    keep_last: Positive = 2
    keep_every: Positive | None = None
    """Checkpoints of steps that are multiples of it are kept for ever."""
    export: Literal["none", "huggingface"] = "none"
    """What checkpoints contain for use without conversion."""
    export_every: Positive | None = None
    """Only checkpoints of steps that are multiples of it contain the export, and that of the last step."""
    asynchronous: bool = True
    """Write beside training, from a copy of the state in the host's memory: 12 bytes for each parameter of a rank."""
    when_busy: Literal["wait", "skip"] = "wait"
    """What becomes of a checkpoint that is due while another is being written."""


ModelConfig = TypeVar("ModelConfig", bound=BaseModel)


class Run(Section, Generic[ModelConfig]):
    """A whole pretraining run; made by `load_run` or `validate`, which see to it that its sections agree."""

    run_folder: str = Field(min_length=1)
    """Where config, metrics and checkpoints go; a relative path starts at the current folder."""
    seed: NonNegative = 1234
    """Of the initial weights and of the order of the data."""
    model: ModelConfig
    init: Init = Init()
    data: Data
    train: Train
    optimizer: Optimizer
    schedule: Schedule = Schedule()
    parallel: Parallel = Parallel()
    engine: EngineSection = EngineSection()
    evaluate: Evaluate = Evaluate()
    checkpoint: Checkpoint = Checkpoint()
    metrics: Metrics = Metrics()
    guards: Guards = Guards()
    profile: Profile = Profile()

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickled as plain settings, since the type of a run with its model has no name to be found by."""
        return validate, (self.model_dump(mode="json"), "a pickled run")


def load_run(
    path: str | Path,
    overrides: list[str] | None = None,
    world_size: int | None = None,
    complete: Callable[[dict[str, Any]], dict[str, Any]] = dict,
) -> Run[Any]:
    """The run of a YAML file.

    path: the run file; its `model` is a mapping, the name of a file in configs/models, or a path to one.
    overrides: `section.key=value` strings, applied after the file; values are YAML.
    world_size: the number of ranks that it should run on, where that is known.
    complete: adds what settings leave to other files (`megaxf.train.initial.complete`: the model of `init.from`).
    Raises ConfigError with every problem found.
    """
    settings, problems = read_run_file(Path(path), overrides or [])
    settings = complete(settings)
    return validate(settings, str(path), problems, world_size)


def load_model(name: str) -> Any:
    """The Config of a model alone. name: of a file in configs/models, or a path. Raises ConfigError."""
    settings = read_model_file(name)
    try:
        config: Any = config_type(settings.get("family", "llama"))
        return config.model_validate(settings)
    except ValidationError as error:
        raise ConfigError(name, explain(error.errors(), config, settings)) from None
    except ValueError as error:
        raise ConfigError(name, [f"family: {error}"]) from None


def validate(
    settings: dict[str, Any], origin: str, problems: list[str] | None = None, world_size: int | None = None
) -> Run[Any]:
    """The typed run of a plain mapping.

    origin: where it came from, for the error. problems: what was wrong already when it was read.
    world_size: the number of ranks that it should run on, where that is known.
    """
    problems = list(problems or [])
    world = {} if world_size is None else {"world_size": world_size}
    run_type: type[Run[Any]] = Run[Section]
    if settings.get("model") is not None:
        try:
            run_type = _run_type(settings["model"])
        except ValueError as error:
            problems.append(str(error))
    try:
        run = run_type.model_validate(settings)
        sections = dict(run)
    except ValidationError as error:
        problems += explain(_faults(error, settings, run_type), run_type, settings)
        sections = _valid_sections(run_type, settings)
    if problems := problems + disagreements(sections | world):
        raise ConfigError(origin, list(dict.fromkeys(problems)))
    return run


def change(run: Run[Any], settings: Mapping[str, Any], world_size: int | None = None) -> Run[Any] | None:
    """The run with other values for some section.key; None where that is no valid run."""
    changed = run.model_dump(mode="json")
    for key, value in settings.items():
        section, name = key.split(".")
        changed[section][name] = value
    try:
        return validate(changed, "a changed run", None, world_size)
    except ConfigError:
        return None


def to_yaml(run: Run[Any]) -> str:
    """The resolved run, every default written out, as text that `load_run` reads back to an equal run."""
    return dump_yaml(run.model_dump(mode="json"))


def check_world(run: Run[Any], world_size: int) -> None:
    """Raises ConfigError where the run cannot be cut over `world_size` ranks."""
    if problems := disagreements(dict(run) | {"world_size": world_size}):
        raise ConfigError(f"world size {world_size}", problems)


def _run_type(model: Any) -> type[Run[Any]]:
    """The type of a run with this model; raises ValueError where its family is not known."""
    if not isinstance(model, dict):
        return Run[BaseModel]
    try:
        config: Any = config_type(model.get("family", "llama"))
    except ValueError as error:
        raise ValueError(f"model.family: {error}") from None
    return Run[config]


def _faults(error: ValidationError, settings: dict[str, Any], run_type: type[Run[Any]]) -> list[Any]:
    """What pydantic found, except about the model where its family is not known."""
    blind = run_type is Run[Section] and settings.get("model") is not None
    return [fault for fault in error.errors() if not (blind and fault["loc"][:1] == ("model",))]


def _valid_sections(run_type: type[Run[Any]], settings: dict[str, Any]) -> dict[str, Any]:
    """The sections that are right in themselves."""
    sections = {}
    for name, field in run_type.model_fields.items():
        annotation: Any = field.annotation
        value = settings.get(name, field.default)
        try:
            sections[name] = TypeAdapter[Any](annotation).validate_python(value)
        except ValidationError:
            continue
    return sections
