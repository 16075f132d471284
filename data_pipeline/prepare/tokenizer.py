"""The tokenizer of a build: given or trained, and compared before it is trusted."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from data_pipeline.errors import DataError
from data_pipeline.prepare.options import PrepareOptions
from data_pipeline.prepare.progress import PrepareProgress
from data_pipeline.sources.base import Unit
from data_pipeline.tokenizer.base import Tokenizer, load_tokenizer
from data_pipeline.tokenizer.sample import sample_documents

_CHECKED_BYTES = 200_000
"""Of text, on which the fast path is compared before the run."""


def given_digest(options: PrepareOptions) -> str:
    """The digest of the tokenizer that was given, empty where one is to be trained. Raises DataError."""
    if not options.tokenizer:
        return ""
    tokenizer = load_tokenizer(options.tokenizer, options.eod_token)
    if options.add_bos and tokenizer.bos_id is None:
        raise DataError("has no beginning-of-sequence token, so --add-bos cannot be followed", options.tokenizer)
    return tokenizer.digest


def make_tokenizer(options: PrepareOptions, units: Sequence[Unit], folder: Path, progress: PrepareProgress) -> None:
    """Writes the tokenizer that was given, or one trained on a sample of the training documents."""
    if options.tokenizer:
        load_tokenizer(options.tokenizer, options.eod_token).save(folder)
        return
    from data_pipeline.tokenizer.training import train_tokenizer

    assert options.train_tokenizer and options.vocab_size
    kind, limit = options.train_tokenizer, options.tokenizer_sample_bytes
    progress.stage(f"training a tokenizer: {kind}, {options.vocab_size} tokens, up to {limit / 1e6:g} MB of text")
    sample = sample_documents(units, limit, options.validation_fraction)
    if not sample:
        raise DataError(f"nothing to train on: no document in {', '.join(options.inputs)} has any text")
    folder.mkdir(exist_ok=True)
    train_tokenizer(kind, sample, folder, options.vocab_size)


def open_tokenizer(
    options: PrepareOptions, units: Sequence[Unit], folder: Path, note: Callable[[str], None]
) -> Tokenizer:
    """The tokenizer of the build, with the fast path where it is wanted and gives equal ids for some documents."""
    backend = options.tokenizer_backend
    if backend == "reference":
        return load_tokenizer(folder)
    sample = sample_documents(units, _CHECKED_BYTES, options.validation_fraction)
    return load_tokenizer(folder, None, backend, sample, note)
