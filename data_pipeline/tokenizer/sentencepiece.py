"""Sentencepiece models (arXiv 1808.06226), as trained by `megaxf prepare` or brought from elsewhere."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import sentencepiece
from numpy.typing import NDArray
from sentencepiece import sentencepiece_model_pb2

from data_pipeline.errors import DataError
from data_pipeline.tokenizer.base import joined, read_file, write_settings

SPACE_MARK = "▁"
"""U+2581, which sentencepiece uses for a space inside its pieces."""


def parse_model(model: bytes) -> Any:
    """The protocol buffer of a `.model` file: pieces, scores and settings."""
    return sentencepiece_model_pb2.ModelProto.FromString(model)  # type: ignore[attr-defined]


class SentencePieceTokenizer:
    """A `.model` file. See `data_pipeline.tokenizer.base.Tokenizer` for the meaning of the members."""

    kind = "sentencepiece"

    def __init__(self, path: str | Path, eod_token: str | None = None):
        self.model_bytes = read_file(Path(path))
        self._processor = sentencepiece.SentencePieceProcessor()
        try:
            self._processor.load_from_serialized_proto(self.model_bytes)
        except (RuntimeError, OSError) as error:
            raise DataError(f"is not a sentencepiece model ({error})", path) from None
        self.vocab_size: int = self._processor.vocab_size()
        self.eod_id = self._find_eod(path, eod_token)
        self.eod_token: str = self._processor.id_to_piece(self.eod_id)
        self.bos_id = self._processor.bos_id() if self._processor.bos_id() >= 0 else None
        self.digest = hashlib.sha256(self.model_bytes).hexdigest()
        self.version = self.backend = f"sentencepiece {sentencepiece.__version__}"
        self._mark = self._mark_ids()

    @property
    def keeps_space_mark(self) -> bool:
        """Whether U+2581 in a text is told from a space."""
        return bool(self._mark)

    def encode(self, text: str) -> list[int]:
        """The ids of a text, with no marks at its edges."""
        if self._mark and SPACE_MARK in text:
            return self._encode_marked(text)
        ids: list[int] = self._processor.encode(text)
        return ids

    def encode_documents(self, texts: Sequence[str]) -> tuple[NDArray[Any], NDArray[np.int64]]:
        """The ids of all texts and the length of each."""
        # One thread: processes are what the work is spread over.
        found = self._processor.encode(list(texts), num_threads=1)
        if self._mark:
            found = [self.encode(text) if SPACE_MARK in text else ids for text, ids in zip(texts, found, strict=True)]
        return joined(found, self.vocab_size)

    def decode(self, ids: Sequence[int]) -> str:
        """The text of ids; control tokens give nothing, nor do ids without a piece, as filled-up tables have."""
        text: str = self._processor.decode([token for token in ids if token < self.vocab_size])
        return text

    def token_id(self, token: str) -> int | None:
        """The id of a piece by its name, None where there is none."""
        found = int(self._processor.piece_to_id(token))
        # An unknown name gives the unknown piece.
        return found if self._processor.id_to_piece(found) == token else None

    def save(self, folder: str | Path) -> None:
        """Writes tokenizer.model and the settings file."""
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "tokenizer.model").write_bytes(self.model_bytes)
        write_settings(folder, self.eod_token)

    def _find_eod(self, path: str | Path, eod_token: str | None) -> int:
        if eod_token is not None:
            found = self._processor.piece_to_id(eod_token)
            if self._processor.is_control(found):
                return int(found)
            raise DataError(f"has no control token {eod_token!r} to end documents with", path)
        if self._processor.eos_id() < 0:
            raise DataError("has no end-of-sequence token; name one of its control tokens with --eod-token", path)
        return int(self._processor.eos_id())

    def _mark_ids(self) -> list[int]:
        """The byte tokens of U+2581, where text can be cut at it without changing the ids around it.

        Sentencepiece takes the character for a space, so that it would read back as one. A model that puts a space
        before each text (Llama 2) cannot be fed in parts, and keeps its own way.
        """
        ids = [self._processor.piece_to_id(f"<0x{byte:02X}>") for byte in SPACE_MARK.encode()]
        starts_plain = not self._processor.id_to_piece(self._processor.encode("a"))[0].startswith(SPACE_MARK)
        return ids if starts_plain and all(self._processor.is_byte(i) for i in ids) else []

    def _encode_marked(self, text: str) -> list[int]:
        ids: list[int] = []
        for index, part in enumerate(text.split(SPACE_MARK)):
            ids += (self._mark if index else []) + self._processor.encode(part)
        return ids
