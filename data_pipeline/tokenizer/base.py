"""One face for every tokenizer: text to ids and back, with the end-of-document token known.

    tokenizer = load_tokenizer("data/code/tokenizer")
    ids = tokenizer.encode("def f(x):")

Text is always only text: a document that contains the words `<|endoftext|>` gets the ids of those characters, never
the end-of-document id, and no tokenizer adds its own marks. What marks a document is added by megaxf alone.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from itertools import chain
from pathlib import Path
from typing import Any, Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from data_pipeline.errors import DataError
from data_pipeline.format.manifest import token_dtype

Backend = Literal["auto", "reference", "gigatoken"]
"""What encodes in bulk: the library that defines the tokenizer, or gigatoken where it is there and gives equal ids."""

SETTINGS = "megaxf.json"
"""Beside the tokenizer's own files: which of its tokens ends a document."""


class Tokenizer(Protocol):
    """What the rest of megaxf may ask of a tokenizer."""

    kind: str
    """sentencepiece or huggingface."""
    vocab_size: int
    """Number of ids, added tokens counted."""
    eod_id: int
    """Ends every document."""
    eod_token: str
    bos_id: int | None
    digest: str
    """sha256 of the file that defines the ids."""
    version: str
    """Name and version of the library behind it."""
    backend: str
    """Name and version of the library behind `encode_documents`, which may be a faster one with the same ids."""

    def encode(self, text: str) -> list[int]:
        """The ids of a text, with no marks at its edges."""

    def encode_documents(self, texts: Sequence[str]) -> tuple[NDArray[Any], NDArray[np.int64]]:
        """The ids of texts one after another (u16 or u32 by `vocab_size`), and each text's number of ids [texts].

        The bulk path: equal to `encode` of each.
        """

    def decode(self, ids: Sequence[int]) -> str:
        """The text of ids; special tokens give nothing, nor do ids that stand for none."""

    def token_id(self, token: str) -> int | None:
        """The id of a token by its name, None where there is none."""

    def save(self, folder: str | Path) -> None:
        """Writes the tokenizer's files into a folder that `load_tokenizer` reads."""


def load_tokenizer(
    path: str | Path,
    eod_token: str | None = None,
    backend: Backend = "reference",
    sample: Sequence[str] = (),
    note: Callable[[str], None] | None = None,
) -> Tokenizer:
    """Opens a sentencepiece model, a Hugging Face tokenizer.json, or a folder that holds one of them.

    eod_token: names the end-of-document token where it cannot be told from the files.
    backend: what encodes in bulk; `sample` and `note` as in `verified.with_backend`. Raises DataError.
    """
    reference = _load(path, eod_token)
    if backend == "reference":
        return reference
    from data_pipeline.tokenizer.verified import with_backend

    return with_backend(reference, backend, sample, note)


def _load(path: str | Path, eod_token: str | None) -> Tokenizer:
    path = Path(path)
    file = _find(path)
    eod_token = eod_token or _recorded_eod(file.parent)
    if file.suffix == ".json":
        from data_pipeline.tokenizer.huggingface import HuggingFaceTokenizer

        return HuggingFaceTokenizer(file, eod_token)
    from data_pipeline.tokenizer.sentencepiece import SentencePieceTokenizer

    return SentencePieceTokenizer(file, eod_token)


def read_file(path: Path) -> bytes:
    """A file of a tokenizer. Raises DataError where it cannot be read, which says nothing about what it holds."""
    try:
        return path.read_bytes()
    except OSError as error:
        raise DataError(f"cannot be read: {error.strerror}", path) from None


def joined(documents: Sequence[Sequence[int]], vocab_size: int) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """Lists of ids as `Tokenizer.encode_documents` gives them."""
    lengths = np.fromiter(map(len, documents), np.int64, len(documents))
    ids = np.fromiter(chain.from_iterable(documents), token_dtype(vocab_size), int(lengths.sum()))
    return ids, lengths


def write_settings(folder: Path, eod_token: str) -> None:
    """Records the end-of-document token beside the files of a tokenizer."""
    (folder / SETTINGS).write_text(json.dumps({"eod_token": eod_token}) + "\n", encoding="utf-8")


def _find(path: Path) -> Path:
    """The one file that defines the ids. tokenizer.json comes first: it is complete where both lie side by side."""
    if path.is_file():
        return path
    if not path.is_dir():
        raise DataError("does not exist; give a sentencepiece .model file, a tokenizer.json, or their folder", path)
    found = [path / "tokenizer.json"] if (path / "tokenizer.json").is_file() else sorted(path.glob("*.model"))
    if len(found) != 1:
        names = ", ".join(file.name for file in found) or "neither tokenizer.json nor *.model"
        raise DataError(f"is not a folder with one tokenizer: found {names}; name the file itself", path)
    return found[0]


def _recorded_eod(folder: Path) -> str | None:
    """From our own settings, else from the tokenizer_config.json of a Hugging Face folder."""
    for name, key in ((SETTINGS, "eod_token"), ("tokenizer_config.json", "eos_token")):
        try:
            value = json.loads((folder / name).read_text(encoding="utf-8")).get(key)
        except (OSError, ValueError, AttributeError):
            continue
        value = value.get("content") if isinstance(value, dict) else value
        if isinstance(value, str):
            return value
    return None
