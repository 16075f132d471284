"""Trains a tokenizer on sample documents: sentencepiece, or byte-level BPE with Hugging Face's tokenizers."""

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
Kind = Literal["bpe", "unigram", "byte-bpe"]
"""Sentencepiece BPE and unigram, and byte-level BPE."""

WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)
"""What byte-level BPE never merges across: words, groups of digits, punctuation, space. The pattern of Llama 3
(arXiv 2407.21783), which every library of tokenizers knows, fast ones too."""

_FIXED = 2 + 256
"""Unknown, end of document, and a token for each byte."""


def train_tokenizer(kind: Kind, documents: Iterable[str], folder: str | Path, vocab_size: int) -> None:
    """Trains a tokenizer of a kind and writes its folder; the same documents give the same bytes. Raises DataError."""
    if kind == "byte-bpe":
        train_byte_bpe(documents, folder, vocab_size=vocab_size)
    else:
        train_sentencepiece(documents, folder, vocab_size=vocab_size, model_type=kind)


def train_byte_bpe(documents: Iterable[str], folder: str | Path, *, vocab_size: int) -> None:
    """Trains byte-level BPE on the documents and writes tokenizer.json; the same documents give the same bytes.

    Any text is spelled in bytes, so nothing of it is lost. It is first cut at `WORDS`. Raises DataError when the text
    is too small for the vocabulary, naming the largest possible one.
    """
    import tokenizers
    from tokenizers import Regex, decoders, models, pre_tokenizers, trainers

    least = 1 + len(pre_tokenizers.ByteLevel.alphabet())
    if vocab_size < least:
        raise DataError(f"--vocab-size {vocab_size} cannot hold {EOD_TOKEN} and all bytes; use {least} or more")
    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(WORDS), "isolated"), pre_tokenizers.ByteLevel(False, use_regex=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[EOD_TOKEN],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(documents, trainer)
    if (largest := tokenizer.get_vocab_size()) < vocab_size:
        raise DataError(_too_large(vocab_size, largest))
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    write_settings(folder, EOD_TOKEN)


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


def _too_large(vocab_size: int, largest: int) -> str:
    return f"--vocab-size {vocab_size} is more than this text can fill; use {largest} or less, or more text"


def _explain(message: str, vocab_size: int) -> str:
    """Sentencepiece's complaint in terms of the options of `prepare`."""
    if largest := re.search(r"value <= (\d+)", message):
        return _too_large(vocab_size, int(largest[1]))
    if least := re.search(r"required_chars[^\d]*\d+ vs (\d+)", message):
        return f"--vocab-size {vocab_size} cannot hold {_FIXED} fixed tokens and all characters; use {least[1]} or more"
    return f"the tokenizer could not be trained with --vocab-size {vocab_size}: {message}"
