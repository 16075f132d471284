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
from data_pipeline.tokenizer.verified import with_backend

_CHECKED_BYTES = 200_000
"""Of text, on which the fast path is compared before the run."""


def open_given(options: PrepareOptions) -> Tokenizer | None:
    """The tokenizer that was given, None where one is to be trained. Raises DataError."""
    if not options.tokenizer:
        return None
    tokenizer = load_tokenizer(options.tokenizer, options.eod_token)
    if options.add_bos and tokenizer.bos_id is None:
        raise DataError("has no beginning-of-sequence token, so --add-bos cannot be followed", options.tokenizer)
    return tokenizer


def train(options: PrepareOptions, units: Sequence[Unit], folder: Path, progress: PrepareProgress) -> None:
    """Writes a tokenizer trained on a sample of the training documents."""
    from data_pipeline.tokenizer.training import train_tokenizer

    assert options.train_tokenizer and options.vocab_size
    kind, limit = options.train_tokenizer, options.tokenizer_sample_bytes
    progress.stage(f"training a tokenizer: {kind}, {options.vocab_size} tokens, up to {limit / 1e6:g} MB of text")
    sample = sample_documents(units, limit, options.validation_fraction)
    if not sample:
        raise DataError(f"nothing to train on: no document in {', '.join(options.inputs)} has any text")
    folder.mkdir(exist_ok=True)
    train_tokenizer(kind, sample, folder, options.vocab_size)


def with_fast_path(
    tokenizer: Tokenizer, options: PrepareOptions, units: Sequence[Unit], note: Callable[[str], None]
) -> Tokenizer:
    """The tokenizer of the build, with the fast path where it is wanted and gives equal ids for some documents."""
    if options.tokenizer_backend == "reference":
        return tokenizer
    sample = sample_documents(units, _CHECKED_BYTES, options.validation_fraction)
    return with_backend(tokenizer, options.tokenizer_backend, sample, note)
