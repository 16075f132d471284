"""What the model reads: the section `data` of a run."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, Literal, NamedTuple, get_args

from pydantic import Field, field_validator, model_validator

from megaxf.config_section import NonNegativeFloat, Positive, PositiveFloat, Section

Share = Annotated[float, Field(ge=0, le=1)]
Unit = Literal["weight", "tokens", "epochs"]
UNITS: tuple[Unit, ...] = get_args(Unit)


class FillInTheMiddle(Section):
    """For code: pieces of documents are rearranged so that the model learns to write what lies between two texts
    (arXiv 2207.14255)."""

    rate: Share
    """Share of the documents' pieces that are rearranged."""
    spm_rate: Share = 0.5
    """Share of these in which the suffix comes first."""
    tokens: tuple[str, str, str] | None = Field(None, strict=False)
    """The tokenizer's tokens for prefix, suffix and middle; by default the names that published tokenizers have."""


class Source(Section):
    """One shard folder made by `megaxf prepare`, on a disk or in a store; or, for a trial, text as it is."""

    folder: str = ""
    """Or a URL such as s3://bucket/folder, which is read through `data.cache`."""
    dataset: str | None = None
    """In the place of a folder: text that is tokenised while training, which is whatever `megaxf prepare` takes."""
    tokenizer: str | None = None
    """With dataset: the folder of the tokenizer."""
    text_field: str | None = None
    """With dataset: the field or column of the text; `text` unless said otherwise."""
    dataset_split: str | None = None
    """With dataset: the split of a Hugging Face data set; `train` unless said otherwise."""
    streaming: bool = False
    """With dataset: it is a name on the Hugging Face hub, and is read without downloading it first."""
    weight: PositiveFloat | None = None
    """Share of the rows drawn from this source, relative to the sum of all weights; 1 unless said otherwise."""
    tokens: PositiveFloat | None = None
    """In the place of a weight: tokens of this source that the run should read, relative to those of the others."""
    epochs: PositiveFloat | None = None
    """In the place of a weight: how often this source should be read, relative to the others."""
    max_epochs: PositiveFloat | None = None
    """The most often that it may be read; see `data.over_max_epochs`."""
    train_on: str = "all"
    """Which targets count: all, none, or after:<id>, those behind this token in their document."""
    fill_in_the_middle: FillInTheMiddle | None = None

    @model_validator(mode="after")
    def _one_share(self) -> Source:
        given = [unit for unit in UNITS if getattr(self, unit) is not None]
        if len(given) > 1:
            raise ValueError(f"{' and '.join(given)} are given; the share of a source is one of {', '.join(UNITS)}")
        return self

    @model_validator(mode="after")
    def _one_origin(self) -> Source:
        if bool(self.folder) == bool(self.dataset):
            raise ValueError("give a folder made by megaxf prepare, or a dataset with a tokenizer")
        if self.dataset and not self.tokenizer:
            raise ValueError(f"dataset = {self.dataset} is tokenised while training; give its tokenizer, a folder")
        online = {name: getattr(self, name) for name in ("tokenizer", "text_field", "dataset_split", "streaming")}
        idle = [name for name, value in online.items() if value]
        if self.folder and idle:
            raise ValueError(f"{' and '.join(idle)}: no effect on a folder, whose text is tokenised; remove it")
        return self

    @field_validator("train_on")
    @classmethod
    def _known(cls, value: str) -> str:
        if value not in ("all", "none") and not (value.startswith("after:") and value[6:].isdecimal()):
            raise ValueError(f"{value!r} is not known; use all, none or after:<token id>, e.g. after:32001")
        return value

    @property
    def share(self) -> tuple[float, Unit]:
        """(amount, unit): the unit is weight, tokens or epochs."""
        amounts = {unit: getattr(self, unit) for unit in UNITS}
        return next(((amount, unit) for unit, amount in amounts.items() if amount is not None), (1.0, "weight"))


class Lanes(Section):
    """An order for object stores: few shards are open at a time, and each node reads few of them."""

    lanes: Positive
    """About as many as there are nodes, or a multiple."""
    window: Positive
    """Shards that are open in each lane, among whose rows the order is random."""


class Cache(Section):
    """Where a node keeps shards of a store, on a disk of its own that all its ranks share."""

    folder: str
    limit_gib: PositiveFloat = 256
    ahead_gib: PositiveFloat = 4
    """How much of what is needed next is fetched ahead, for each source."""
    attempts: Positive = 8
    """How often a read is tried."""
    on_damage: Literal["stop", "skip"] = "stop"
    """What to do about a shard whose bytes in the store are wrong: end the run, or go on without its tokens."""
    storage_options: dict[str, Any] = Field({})
    """Passed on to the store, such as endpoint_url of s3."""


class Phase(Section):
    """What changes at a step and stays so until the next phase."""

    from_step: Annotated[int, Field(gt=1)]
    """The first step of the phase, as the log numbers them."""
    sequence_length: Positive | None = None
    global_batch_size: Positive | None = None
    shares: dict[str, NonNegativeFloat] | None = None
    """The share of each source in the unit of the sources; 0 leaves one out."""

    @model_validator(mode="after")
    def _has_an_effect(self) -> Phase:
        if (self.sequence_length, self.global_batch_size, self.shares) == (None, None, None):
            raise ValueError("nothing changes; give sequence_length, global_batch_size or shares")
        return self


class Data(Section):
    """What the model reads."""

    sources: dict[str, Source] = Field(min_length=1)
    sequence_length: Positive
    isolate_documents: bool = False
    """True: a token attends within its own document only, positions restart in each document, and the first token of
    a document is never a target. False: documents are joined and attended across."""
    packing: Literal["concat", "best_fit", "bos_fit"] = "concat"
    """concat: documents one behind the other, cut every sequence_length tokens. best_fit: whole documents, packed with
    little padding. bos_fit: every row begins with a document."""
    lanes: Lanes | None = None
    """By default all rows of an epoch are permuted together, which suits local disks."""
    cache: Cache | None = None
    """Needed where a folder is a URL."""
    over_max_epochs: Literal["warn", "refuse"] = "warn"
    """What to do about a run that reads a source more often than its max_epochs."""
    phases: list[Phase] = Field([])
    """Changes at stated steps: a longer sequence, a larger batch, another mixture."""
    longest_sequence_length: Positive | None = None
    """The longest that the run may ever have, where later phases are not known yet; by default the longest of its
    phases. It decides about the order, so it cannot change later."""
    skip_steps: list[Annotated[tuple[Positive, Positive], Field(strict=False)]] = Field([])
    """First and last steps whose data is passed over, such as that of a loss spike; the order stays as it is. Each
    range is numbered by the log of a run with the ranges before it, and with those that guards have passed over."""

    @field_validator("skip_steps")
    @classmethod
    def _ranges(cls, value: list[tuple[int, int]]) -> list[tuple[int, int]]:
        for first, last in value:
            if first > last:
                raise ValueError(f"[{first}, {last}] ends before it begins; give the first and the last step")
        return value

    @field_validator("phases")
    @classmethod
    def _in_order(cls, value: list[Phase]) -> list[Phase]:
        steps = [phase.from_step for phase in value]
        if steps != sorted(set(steps)):
            raise ValueError(f"begin at steps {steps}; give each a from_step above that of the one before it")
        return value


class Portion(NamedTuple):
    """What the steps of a phase take."""

    from_step: int
    """The first step, as the log numbers them; 1 for the start of the run."""
    sequence_length: int
    global_batch_size: int

    @property
    def tokens(self) -> int:
        """Tokens of one global batch."""
        return self.sequence_length * self.global_batch_size


def portions(data: Data, global_batch_size: int) -> list[Portion]:
    """The phases with everything said; the first one is the run's own settings."""
    found = [Portion(1, data.sequence_length, global_batch_size)]
    for phase in data.phases:
        last = found[-1]
        found.append(
            Portion(
                phase.from_step,
                phase.sequence_length or last.sequence_length,
                phase.global_batch_size or last.global_batch_size,
            )
        )
    return found


def portion_at(run: Any, step: int) -> Portion:
    """What a step takes; step: as the log numbers them."""
    return max(_of(run, step), key=lambda portion: portion.from_step)


def samples_before(run: Any, step: int) -> int:
    """Sequences that the steps before this one take."""
    return sum(steps * portion.global_batch_size for portion, steps in _stretches(run, step))


def tokens_before(run: Any, step: int) -> int:
    """Tokens that the steps before this one take."""
    return sum(steps * portion.tokens for portion, steps in _stretches(run, step))


def _of(run: Any, step: int) -> list[Portion]:
    """The phases that have begun by this step."""
    return [one for one in portions(run.data, run.train.global_batch_size) if one.from_step <= step]


def _stretches(run: Any, step: int) -> Iterator[tuple[Portion, int]]:
    """Each phase with its number of steps before this one."""
    begun = _of(run, step)
    ends = [portion.from_step for portion in begun[1:]] + [step]
    for portion, end in zip(begun, ends, strict=True):
        yield portion, end - portion.from_step
