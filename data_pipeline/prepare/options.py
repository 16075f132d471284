"""What the user may choose when documents are prepared, and what is wrong with a choice."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Literal

from data_pipeline.errors import DataError, shown
from data_pipeline.format.writer import DEFAULT_SHARD_TOKENS
from data_pipeline.sources.base import ReadOptions
from data_pipeline.sources.find import without_effect
from data_pipeline.tokenizer.base import Backend

DEFAULT_SAMPLE_BYTES = 10_000_000


@dataclass(frozen=True)
class PrepareOptions:
    """Everything the user may choose. Either `tokenizer` or `train_tokenizer` with `vocab_size` is needed."""

    inputs: tuple[str, ...]
    output: str
    tokenizer: str | None = None
    tokenizer_backend: Backend = "auto"
    """What encodes. The ids do not depend on it, but who doubts them wants none of the old ones kept."""
    eod_token: str | None = None
    train_tokenizer: Literal["bpe", "unigram", "byte-bpe"] | None = None
    vocab_size: int | None = None
    tokenizer_sample_bytes: int = DEFAULT_SAMPLE_BYTES
    read: ReadOptions = field(default_factory=ReadOptions)
    validation_fraction: float = 0.01
    deduplicate: bool = False
    keep_order: bool = False
    """Leave documents in the order of the input; else they are shuffled, always in the same way."""
    add_bos: bool = False
    on_error: Literal["stop", "skip"] = "stop"
    name: str = ""
    shard_tokens: int = DEFAULT_SHARD_TOKENS
    unit_bytes: int | None = None
    """Input that is encoded in one go; by default it follows from the size of the whole input."""
    processes: int = 1
    overwrite: bool = False

    def check(self) -> None:
        """Raises DataError with everything that is wrong with the request itself, before anything is read."""
        problems = []
        if bool(self.tokenizer) == bool(self.train_tokenizer):
            problems.append("give one of --tokenizer PATH and --train-tokenizer bpe|unigram|byte-bpe")
        if bool(self.train_tokenizer) != bool(self.vocab_size):
            problems.append("--train-tokenizer and --vocab-size go together")
        if self.train_tokenizer and (self.add_bos or self.eod_token):
            problems.append("--add-bos and --eod-token have no effect on a tokenizer trained here; remove them")
        if not 0 <= self.validation_fraction < 1:
            problems.append(f"--validation-fraction {self.validation_fraction} is not in [0, 1)")
        if self.tokenizer and self.tokenizer_sample_bytes != DEFAULT_SAMPLE_BYTES:
            problems.append("--tokenizer-sample-bytes has an effect with --train-tokenizer only; remove it")
        low, high = self.read.min_characters, self.read.max_characters
        if low < 0:
            problems.append(f"--min-characters {low} is not at least 0")
        if high is not None and high < max(low, 1):
            problems.append(f"--max-characters {high} is not at least {max(low, 1)}: no document is left")
        problems += without_effect(self.inputs, self.read)
        for name in ("processes", "shard_tokens", "tokenizer_sample_bytes", "unit_bytes"):
            value = getattr(self, name)
            if value is not None and value < 1:
                problems.append(f"--{name.replace('_', '-')} {value} is not at least 1")
        if problems:
            raise DataError("\n".join(problems))

    @property
    def splits(self) -> tuple[str, ...]:
        """The splits that must not be empty, by name."""
        return ("train", "validation") if self.validation_fraction else ("train",)

    def for_ids(self) -> dict[str, object]:
        """What decides about the ids of a document, besides the input and the tokenizer's own files."""
        names: tuple[str, ...] = ("eod_token", "add_bos", "tokenizer_backend")
        chosen: dict[str, object] = {"read": asdict(self.read)}
        if self.train_tokenizer:
            names += ("train_tokenizer", "vocab_size", "tokenizer_sample_bytes", "validation_fraction")
        return chosen | {name: getattr(self, name) for name in names}

    def for_shards(self) -> dict[str, object]:
        """What decides about the place of a document, once it is encoded."""
        names = ("validation_fraction", "deduplicate", "keep_order", "shard_tokens")
        return {name: getattr(self, name) for name in names}

    def settings(self) -> dict[str, object]:
        """What decides about the content, for the manifest; nothing that depends on the machine."""
        read = asdict(self.read)
        read |= {name: [shown(pattern) for pattern in read[name]] for name in ("include", "exclude")}
        chosen = {"text_field": self.read.text_field, "add_bos": self.add_bos, "on_error": self.on_error}
        chosen |= {name: value for name, value in read.items() if value and name not in chosen}
        if self.train_tokenizer:
            chosen |= {name: getattr(self, name) for name in ("train_tokenizer", "tokenizer_sample_bytes")}
        return chosen | self.for_shards()
