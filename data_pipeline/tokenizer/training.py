"""Trains a sentencepiece tokenizer on sample documents."""

from __future__ import annotations

import io
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Literal

import sentencepiece

from data_pipeline.errors import DataError
from data_pipeline.tokenizer.base import write_settings
from data_pipeline.tokenizer.sentencepiece import parse_model

EOD_TOKEN = "<|endoftext|>"
_FIXED = 2 + 256
"""Unknown, end of document, and a token for each byte."""


def train_sentencepiece(
    documents: Iterable[str], folder: str | Path, *, vocab_size: int, model_type: Literal["bpe", "unigram"] = "bpe"
) -> None:
    """Trains on the documents and writes a tokenizer folder; the same documents give the same bytes.

    Nothing of the text is lost: no normalisation, no space put before it, spaces and line ends kept and merged into
    runs, and any character that has no token of its own is spelled in bytes. Raises DataError when the text is too
    small for the vocabulary, naming the largest possible one.
    """
    model = io.BytesIO()
    try:
        sentencepiece.SentencePieceTrainer.train(
            # A document is a "sentence", not a line: else line ends would never be seen, and never become tokens.
            sentence_iterator=(text.replace("\0", "") for text in documents),
            model_writer=model,
            model_type=model_type,
            vocab_size=vocab_size,
            unk_id=0,
            eos_id=1,
            bos_id=-1,
            pad_id=-1,
            eos_piece=EOD_TOKEN,
            byte_fallback=True,
            normalization_rule_name="identity",
            add_dummy_prefix=False,
            remove_extra_whitespaces=False,
            allow_whitespace_only_pieces=True,
            split_digits=True,
            max_sentence_length=1 << 30,
            character_coverage=0.9999,
            # Unigram starts from this many candidates; the default of a million takes minutes to prune.
            seed_sentencepiece_size=max(50_000, 10 * vocab_size),
            minloglevel=2,
        )
    except (RuntimeError, OSError) as error:
        raise DataError(_explain(str(error), vocab_size)) from None
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    trained = model.getvalue() if model_type == "bpe" else _with_exact_sums(model.getvalue())
    (folder / "tokenizer.model").write_bytes(trained)
    write_settings(folder, EOD_TOKEN)


def _with_exact_sums(model: bytes) -> bytes:
    """A unigram model with scores in steps of 1/64 nat, whose sums are exact in fp32 up to 2^18 nats.

    Sentencepiece adds scores in fp32, Hugging Face's tokenizers in fp64. Where two cuts of a text tie (a run of spaces
    as 8 + 16 or 16 + 8), rounding would decide, and the two would give other ids for one text.
    """
    proto = parse_model(model)
    for piece in proto.pieces:
        piece.score = round(piece.score * 64) / 64
    result: bytes = proto.SerializeToString(deterministic=True)
    return result


def _explain(message: str, vocab_size: int) -> str:
    """Sentencepiece's complaint in terms of the options of `prepare`."""
    if largest := re.search(r"value <= (\d+)", message):
        return f"--vocab-size {vocab_size} is more than this text can fill; use {largest[1]} or less, or more text"
    if least := re.search(r"required_chars[^\d]*\d+ vs (\d+)", message):
        return f"--vocab-size {vocab_size} cannot hold {_FIXED} fixed tokens and all characters; use {least[1]} or more"
    return f"the tokenizer could not be trained with --vocab-size {vocab_size}: {message}"
