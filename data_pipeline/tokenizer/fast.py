"""gigatoken (MIT), which gives the ids of the reference libraries some ten to fifty times as fast.

Never used without the checks of `data_pipeline.tokenizer.verified`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from data_pipeline.errors import DataError
from data_pipeline.format.manifest import token_dtype
from data_pipeline.tokenizer.base import Tokenizer
from data_pipeline.tokenizer.export import tokenizer_json
from data_pipeline.tokenizer.huggingface import HuggingFaceTokenizer
from data_pipeline.tokenizer.sentencepiece import SentencePieceTokenizer

Encode = Callable[[Sequence[str]], tuple[NDArray[Any], NDArray[np.int64]]]
"""As `Tokenizer.encode_documents`."""


def open_gigatoken(tokenizer: Tokenizer) -> tuple[Encode, str]:
    """The fast path of a reference tokenizer, and the name and version of its library.

    Raises DataError where gigatoken is not installed or does not know this kind of tokenizer.
    """
    try:
        import gigatoken
    except ImportError:
        raise DataError("gigatoken is not installed; pip install 'megaxf[fast]' makes this step much faster") from None
    from importlib.metadata import version

    try:
        fast = gigatoken.Tokenizer.from_json(_without_special_tokens(tokenizer))
    except (ValueError, RuntimeError) as error:
        reason = str(error).partition("\n")[0]
        raise DataError(f"gigatoken does not know this kind of tokenizer ({reason})") from None
    dtype = token_dtype(tokenizer.vocab_size)

    def encode(texts: Sequence[str]) -> tuple[NDArray[Any], NDArray[np.int64]]:
        # One thread: processes are what the work is spread over.
        rows = fast.encode_batch(list(texts), parallel=False).layout
        offsets = np.asarray(rows.offsets.data, np.int64)
        return np.asarray(rows.content.data)[offsets[0] : offsets[-1]].astype(dtype), np.diff(offsets)

    return encode, f"gigatoken {version('gigatoken')}"


def _tokenizer_json(tokenizer: Tokenizer) -> str:
    if isinstance(tokenizer, SentencePieceTokenizer):
        return str(tokenizer_json(tokenizer.model_bytes, tokenizer.keeps_space_mark).to_str())
    assert isinstance(tokenizer, HuggingFaceTokenizer)
    return tokenizer.json


def _without_special_tokens(tokenizer: Tokenizer) -> str:
    """The tokenizer.json, less what would find special tokens in a text or add them to it."""
    settings = json.loads(_tokenizer_json(tokenizer))
    settings["added_tokens"] = [
        token
        for token in settings.get("added_tokens", ())
        if not token["special"] and token["content"] != tokenizer.eod_token
    ]
    settings |= {"post_processor": None, "truncation": None, "padding": None}
    return json.dumps(settings)
