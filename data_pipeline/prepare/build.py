"""Raw documents to a shard folder: what `megaxf prepare` does.

    inputs -> parts -> blocks -> (processes: read, hash, split, encode) -> in order -> shards, then the manifest

Blocks are numbered by their order in the input and written in that order, so the result depends on the input and the
settings alone, not on the number of processes.
"""

from __future__ import annotations

import tempfile
from collections import Counter, deque
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Literal

import xxhash

from data_pipeline.errors import DataError
from data_pipeline.format.folder import check_output
from data_pipeline.format.manifest import Manifest, Source
from data_pipeline.format.writer import DEFAULT_SHARD_TOKENS, DatasetWriter
from data_pipeline.prepare.encode import EncodedBlock, Encoding, encode_block
from data_pipeline.prepare.progress import PrepareProgress
from data_pipeline.prepare.workers import ordered_map
from data_pipeline.sources.base import Block, Part, ReadOptions
from data_pipeline.sources.find import find_parts
from data_pipeline.tokenizer.base import Tokenizer, load_tokenizer
from data_pipeline.tokenizer.sample import sample_documents
from data_pipeline.tokenizer.training import train_sentencepiece

DEFAULT_SAMPLE_BYTES = 10_000_000
_NOTES_A_REASON = 5


@dataclass(frozen=True)
class PrepareOptions:
    """Everything the user may choose. Either `tokenizer` or `train_tokenizer` with `vocab_size` is needed."""

    inputs: tuple[str, ...]
    output: str
    tokenizer: str | None = None
    eod_token: str | None = None
    train_tokenizer: Literal["bpe", "unigram"] | None = None
    vocab_size: int | None = None
    tokenizer_sample_bytes: int = DEFAULT_SAMPLE_BYTES
    read: ReadOptions = field(default_factory=ReadOptions)
    validation_fraction: float = 0.01
    add_bos: bool = False
    on_error: Literal["stop", "skip"] = "stop"
    name: str = ""
    shard_tokens: int = DEFAULT_SHARD_TOKENS
    processes: int = 1
    overwrite: bool = False


@dataclass
class _Count:
    """What has come from one input so far."""

    name: str
    parts: list[Part]
    documents: Counter[str] = field(default_factory=Counter)
    tokens: Counter[str] = field(default_factory=Counter)
    errors: Counter[str] = field(default_factory=Counter)
    text_bytes: int = 0
    empties: int = 0
    digest: xxhash.xxh3_128 = field(default_factory=xxhash.xxh3_128)

    @property
    def size(self) -> int:
        return sum(part.size for part in self.parts)

    def add(self, block: EncodedBlock) -> None:
        for split, documents in block.splits.items():
            self.documents[split] += len(documents.lengths)
            self.tokens[split] += len(documents.ids)
            self.text_bytes += documents.text_bytes
        self.errors.update(fault.fault for fault in block.faults)
        self.empties += block.empties
        self.digest.update(block.hashes)

    def source(self) -> Source:
        return Source(
            name=self.name,
            digest=self.digest.hexdigest(),
            input_bytes=self.size,
            text_bytes=self.text_bytes,
            documents=dict(sorted(self.documents.items())),
            tokens=dict(sorted(self.tokens.items())),
            empties=self.empties,
            errors=dict(sorted(self.errors.items())),
        )


def prepare(options: PrepareOptions, progress: PrepareProgress) -> Manifest:
    """Builds the shard folder and returns its manifest.

    Raises DataError on a bad request, on a bad record (unless these are to be skipped), and when a split would be
    empty; then nothing is left at the output.
    """
    _check(options)
    check_output(Path(options.output), options.overwrite)
    counts = [_Count(Path(name).name or name, find_parts(name, options.read)) for name in options.inputs]
    with progress, tempfile.TemporaryDirectory(prefix="megaxf-tokenizer-") as scratch:
        tokenizer = _tokenizer(options, counts, Path(scratch), progress)
        with DatasetWriter(
            options.output,
            vocab_size=tokenizer.vocab_size,
            eod_id=tokenizer.eod_id,
            bos_id=tokenizer.bos_id,
            shard_tokens=options.shard_tokens,
            overwrite=options.overwrite,
        ) as writer:
            folder = writer.building / "tokenizer"
            tokenizer.save(folder)
            encoding = Encoding(folder, tokenizer.digest, options.validation_fraction, options.add_bos)
            _encode(options, counts, encoding, writer, progress)
            _check_splits(options, counts)
            return writer.finish(
                name=options.name,
                tokenizer={"kind": tokenizer.kind, "digest": tokenizer.digest, "eod_token": tokenizer.eod_token},
                sources=[count.source() for count in counts],
                settings=_settings(options, tokenizer),
            )


def _tokenizer(options: PrepareOptions, counts: list[_Count], scratch: Path, progress: PrepareProgress) -> Tokenizer:
    """The tokenizer that was given, or one trained on a sample of the training documents."""
    if options.tokenizer:
        tokenizer = load_tokenizer(options.tokenizer, options.eod_token)
        if options.add_bos and tokenizer.bos_id is None:
            raise DataError("has no beginning-of-sequence token, so --add-bos cannot be followed", options.tokenizer)
        return tokenizer
    assert options.train_tokenizer and options.vocab_size
    kind, limit = options.train_tokenizer, options.tokenizer_sample_bytes
    progress.stage(f"training a tokenizer: {kind}, {options.vocab_size} tokens, up to {limit / 1e6:g} MB of text")
    parts = [part for count in counts for part in count.parts]
    sample = sample_documents(parts, limit, options.validation_fraction)
    if not sample:
        raise DataError(f"nothing to train on: no document in {', '.join(options.inputs)} has any text")
    train_sentencepiece(sample, scratch, vocab_size=options.vocab_size, model_type=kind)
    return load_tokenizer(scratch)


def _encode(
    options: PrepareOptions,
    counts: list[_Count],
    encoding: Encoding,
    writer: DatasetWriter,
    progress: PrepareProgress,
) -> None:
    """Encodes every block of every input and writes the results in order."""
    progress.stage("tokenising", sum(count.size for count in counts))
    owners: deque[_Count] = deque()

    def blocks() -> Iterator[Block]:
        for count in counts:
            for part in count.parts:
                for block in part.blocks():
                    owners.append(count)
                    yield block

    text_bytes = tokens = 0
    with closing(ordered_map(partial(encode_block, encoding), blocks(), options.processes)) as results:
        for block in results:
            owner = owners.popleft()
            _report_faults(options, owner, block, progress)
            owner.add(block)
            for split, documents in block.splits.items():
                writer.add(split, documents.ids, documents.lengths, documents.text_bytes)
                text_bytes += documents.text_bytes
                tokens += len(documents.ids)
            progress.advance(block.size, text_bytes, tokens)


def _report_faults(options: PrepareOptions, count: _Count, block: EncodedBlock, progress: PrepareProgress) -> None:
    seen = count.errors.copy()
    for fault in block.faults:
        if options.on_error == "stop":
            raise DataError(f"{fault.fault}; correct it, or leave such records out with --on-error skip", fault.place)
        seen[fault.fault] += 1
        if seen[fault.fault] <= _NOTES_A_REASON:
            progress.note(f"skipped {fault.place}: {fault.fault}")
        elif seen[fault.fault] == _NOTES_A_REASON + 1:
            progress.note(f"skipped more of this kind without a line for each: {fault.fault}")


def _check(options: PrepareOptions) -> None:
    """The request itself, before anything is read."""
    problems = []
    if bool(options.tokenizer) == bool(options.train_tokenizer):
        problems.append("give one of --tokenizer PATH and --train-tokenizer bpe|unigram")
    if bool(options.train_tokenizer) != bool(options.vocab_size):
        problems.append("--train-tokenizer and --vocab-size go together")
    if options.train_tokenizer and (options.add_bos or options.eod_token):
        problems.append("--add-bos and --eod-token have no effect on a tokenizer trained here; remove them")
    if not 0 <= options.validation_fraction < 1:
        problems.append(f"--validation-fraction {options.validation_fraction} is not in [0, 1)")
    for name in ("processes", "shard_tokens", "tokenizer_sample_bytes"):
        if getattr(options, name) < 1:
            problems.append(f"--{name.replace('_', '-')} {getattr(options, name)} is not at least 1")
    if problems:
        raise DataError("\n".join(problems))


def _check_splits(options: PrepareOptions, counts: list[_Count]) -> None:
    documents = sum((count.documents for count in counts), Counter())
    if not documents.total():
        left_out = f"{sum(count.empties for count in counts)} empty, {sum(c.errors.total() for c in counts)} faulty"
        raise DataError(f"nothing to train on: no document in {', '.join(options.inputs)} has any text ({left_out})")
    wanted = ["train"] + (["validation"] if options.validation_fraction else [])
    for split in wanted:
        if not documents[split]:
            raise DataError(
                f"none of the {documents.total()} documents fell into the {split} split with --validation-fraction "
                f"{options.validation_fraction}; give more documents, another fraction, or 0 for no validation split"
            )


def _settings(options: PrepareOptions, tokenizer: Tokenizer) -> dict[str, object]:
    """What decides about the content, for the manifest; nothing that depends on the machine."""
    settings: dict[str, object] = {
        "validation_fraction": options.validation_fraction,
        "text_field": options.read.text_field,
        "include": list(options.read.include),
        "exclude": list(options.read.exclude),
        "on_error": options.on_error,
        "add_bos": options.add_bos,
        "shard_tokens": options.shard_tokens,
        "tokenizer_library": tokenizer.version,
    }
    if options.train_tokenizer:
        settings |= {
            "train_tokenizer": options.train_tokenizer,
            "tokenizer_sample_bytes": options.tokenizer_sample_bytes,
        }
    return settings
