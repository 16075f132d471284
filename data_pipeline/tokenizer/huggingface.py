"""Hugging Face tokenizers: anything that is one tokenizer.json."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
from numpy.typing import NDArray

from data_pipeline.errors import DataError
from data_pipeline.tokenizer.base import joined, read_file, write_settings

# In this order; the names that common model families end documents with.
EOD_NAMES = (
    "<|endoftext|>",
    "<|end_of_text|>",
    "</s>",
    "<eos>",
    "<|eot_id|>",
    "<｜end▁of▁sentence｜>",
    "[EOS]",
    "[SEP]",
)
BOS_NAMES = ("<|begin_of_text|>", "<s>", "<bos>", "<｜begin▁of▁sentence｜>", "[BOS]", "[CLS]")


class HuggingFaceTokenizer:
    """A tokenizer.json. See `data_pipeline.tokenizer.base.Tokenizer` for the meaning of the members."""

    kind = "huggingface"

    def __init__(self, path: str | Path, eod_token: str | None = None):
        self._path = Path(path)
        data = read_file(self._path)
        try:
            self.json = data.decode()
            self._tokenizer = tokenizers.Tokenizer.from_str(self.json)
        except Exception as error:  # the library raises plain Exception
            raise DataError(f"is not a Hugging Face tokenizer.json ({error})", path) from None
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        self.eod_token, self.eod_id = self._find_eod(eod_token)
        # Special tokens are the ones that text is never taken for; the end-of-document token must be one of them.
        self._tokenizer.add_special_tokens([tokenizers.AddedToken(self.eod_token, special=True, normalized=False)])
        self._tokenizer.encode_special_tokens = True
        known = (self._tokenizer.token_to_id(name) for name in BOS_NAMES)
        self.bos_id = next((found for found in known if found is not None), None)
        # Ids need not be dense: the largest one decides.
        self.vocab_size = max(self._tokenizer.get_vocab(with_added_tokens=True).values()) + 1
        self.digest = hashlib.sha256(self.json.encode()).hexdigest()
        self.version = self.backend = f"tokenizers {tokenizers.__version__}"

    def encode(self, text: str) -> list[int]:
        """The ids of a text, with no marks at its edges."""
        return list(self._tokenizer.encode(text, add_special_tokens=False).ids)

    def encode_documents(self, texts: Sequence[str]) -> tuple[NDArray[Any], NDArray[np.int64]]:
        """The ids of all texts and the length of each."""
        found = self._tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)
        return joined([one.ids for one in found], self.vocab_size)

    def decode(self, ids: Sequence[int]) -> str:
        """The text of ids; special tokens give nothing."""
        return str(self._tokenizer.decode(list(ids), skip_special_tokens=True))

    def token_id(self, token: str) -> int | None:
        """The id of a token by its name, None where there is none."""
        found: int | None = self._tokenizer.token_to_id(token)
        return found

    def save(self, folder: str | Path) -> None:
        """Writes tokenizer.json as it was read, our settings, and what transformers has beside it."""
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "tokenizer.json").write_text(self.json, encoding="utf-8")
        config = self._path.with_name("tokenizer_config.json")
        if config.is_file():
            content = config.read_bytes()
        else:
            settings = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": self.eod_token}
            content = json.dumps(settings, indent=1).encode()
        (folder / "tokenizer_config.json").write_bytes(content)
        template = self._path.with_name("chat_template.jinja")
        if template.is_file():
            (folder / template.name).write_bytes(template.read_bytes())
        write_settings(folder, self.eod_token)

    def _find_eod(self, eod_token: str | None) -> tuple[str, int]:
        for name in (eod_token,) if eod_token else EOD_NAMES:
            found = self._tokenizer.token_to_id(name)
            if found is not None:
                return name, found
        missing = f"no token {eod_token!r}" if eod_token else f"none of the usual end-of-document tokens {EOD_NAMES}"
        raise DataError(f"has {missing}; name one of its tokens with --eod-token", self._path)
