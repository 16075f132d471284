"""gigatoken (MIT), which gives the ids of the reference libraries some ten to fifty times as fast.

Never used without the checks of `data_pipeline.tokenizer.verified`.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable, Sequence
from importlib.metadata import version
from typing import Any

import numpy as np
from numpy.typing import NDArray

from data_pipeline.errors import DataError
from data_pipeline.format.manifest import token_dtype
from data_pipeline.tokenizer.base import Tokenizer
from data_pipeline.tokenizer.export import CONTROL, UNUSED
from data_pipeline.tokenizer.huggingface import HuggingFaceTokenizer
from data_pipeline.tokenizer.sentencepiece import SPACE_MARK, SentencePieceTokenizer, parse_model

Encode = Callable[[Sequence[str]], tuple[NDArray[Any], NDArray[np.int64]]]
"""As `Tokenizer.encode_documents`."""


def open_gigatoken(tokenizer: Tokenizer) -> tuple[Encode, str]:
    """The fast path of a reference tokenizer, and the name and version of its library.

    Raises DataError where gigatoken is not installed or does not know this kind of tokenizer.
    """
    try:
        importlib.import_module("gigatoken")
    except ImportError:
        raise DataError("gigatoken is not installed; pip install 'megaxf[fast]' makes this step much faster") from None
    try:
        fast = _open(tokenizer)
    except (ValueError, RuntimeError) as error:
        reason = str(error).partition("\n")[0]
        raise DataError(f"gigatoken does not know this kind of tokenizer ({reason})") from None
    dtype = token_dtype(tokenizer.vocab_size)
    tells_marks = isinstance(tokenizer, SentencePieceTokenizer) and tokenizer.keeps_space_mark

    def encode(texts: Sequence[str]) -> tuple[NDArray[Any], NDArray[np.int64]]:
        # One thread: processes are what the work is spread over.
        rows = fast.encode_batch(list(texts), parallel=False).layout
        offsets = np.asarray(rows.offsets.data, np.int64)
        ids = np.asarray(rows.content.data)[offsets[0] : offsets[-1]].astype(dtype)
        marked = [index for index, text in enumerate(texts) if SPACE_MARK in text] if tells_marks else []
        if not marked:
            return ids, np.diff(offsets)
        documents = np.split(ids, offsets[1:-1])
        for index in marked:
            documents[index] = np.asarray(tokenizer.encode(texts[index]), dtype)
        return np.concatenate(documents), np.fromiter(map(len, documents), np.int64)

    return encode, f"gigatoken {version('gigatoken')}"


def _open(tokenizer: Tokenizer) -> Any:
    """gigatoken's tokenizer, less what would find special tokens in a text or add them to it."""
    import gigatoken

    if isinstance(tokenizer, SentencePieceTokenizer):
        model = parse_model(tokenizer.model_bytes)
        for piece in model.pieces:
            piece.type = UNUSED if piece.type == CONTROL else piece.type
        return gigatoken.Tokenizer.from_sentencepiece(model.SerializeToString())
    assert isinstance(tokenizer, HuggingFaceTokenizer)
    settings = json.loads(tokenizer.json)
    settings["added_tokens"] = [
        token
        for token in settings.get("added_tokens", ())
        if not token["special"] and token["content"] != tokenizer.eod_token
    ]
    settings |= {"post_processor": None, "truncation": None, "padding": None}
    return gigatoken.Tokenizer.from_json(json.dumps(settings))
