"""The fast path under watch: its ids are compared with the reference's before the run and on every n-th document."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from data_pipeline.errors import DataError
from data_pipeline.tokenizer.base import Backend, Tokenizer
from data_pipeline.tokenizer.fast import open_gigatoken

CHECK_EVERY = 1000
"""At this rate the checks take some 3 % of the time: the reference is 50 times as slow."""

_LONGEST_CHECKED = 100_000
"""Characters. The reference would take seconds for a longer text, and much memory."""

_SHOWN = 200
"""Characters of a text that an error shows."""

HARD_TEXTS = (
    "",
    " ",
    " one space before, two after  ",
    "a" + " " * 300 + "b" + "\n" * 50 + "c" + "\t" * 20,
    "def f(x):\r\n\tif x:\r\n\t\treturn 1234567890 ** 2  # it's\r\n",
    "It's we'll THEY'RE don’t I'M",
    "<|endoftext|></s><s><unk><0x0A>[SEP]<|im_start|><pad>",
    "▁▁ ▁ a▁b",
    "".join(map(chr, range(1, 32))) + "\x7f\x80\x9f\u200b\u200e\u2028\u2029\ufeff\ufffd\xa0\xad\u3000",
    "nul \0 nul",
    "😀👩‍👩‍👧🏽🇨🇭 \U0001f9ff\U0010ffff\U000e0041",
    "中文没有空格。日本語のテキスト、カタカナ 한국어 ไทย हिन्दी العربية עברית",
    "e\u0301 é ﬁ Å Å ñ n\u0303 \u0301\u0302\u0303 ½ ① Ⅷ ٣ ² ǅ İ ß",
    "0 00 000 0000 1e-5 3.14 0xFFFF ١٢٣ 1,000,000",
    "--------====////....,,,,!!!!____((((]]]]",
)


class VerifiedTokenizer:
    """A reference tokenizer with a faster bulk path. See `data_pipeline.tokenizer.base.Tokenizer` for the members."""

    def __init__(self, reference: Tokenizer):
        self._reference = reference
        self._fast, self.backend = open_gigatoken(reference)
        self._seen = 0
        self.kind, self.vocab_size, self.digest = reference.kind, reference.vocab_size, reference.digest
        self.eod_id, self.eod_token, self.bos_id = reference.eod_id, reference.eod_token, reference.bos_id
        self.version = reference.version
        self.check(HARD_TEXTS)

    def encode(self, text: str) -> list[int]:
        """The ids of a text, by the reference."""
        return self._reference.encode(text)

    def decode(self, ids: Sequence[int]) -> str:
        """The text of ids."""
        return self._reference.decode(ids)

    def token_id(self, token: str) -> int | None:
        """The id of a token by its name, None where there is none."""
        return self._reference.token_id(token)

    def save(self, folder: str | Path) -> None:
        """Writes the reference's files."""
        self._reference.save(folder)

    def encode_documents(self, texts: Sequence[str]) -> tuple[NDArray[Any], NDArray[np.int64]]:
        """The ids of all texts and the length of each; every n-th is compared. Raises DataError on a difference."""
        ids, lengths = self._fast(texts)
        self._compare(texts, ids, lengths, range(-self._seen % CHECK_EVERY, len(texts), CHECK_EVERY))
        self._seen += len(texts)
        return ids, lengths

    def check(self, texts: Sequence[str]) -> None:
        """Compares the ids of some texts. Raises DataError on a difference."""
        self._compare(texts, *self._fast(texts), range(len(texts)))

    def _compare(self, texts: Sequence[str], ids: NDArray[Any], lengths: NDArray[np.int64], chosen: range) -> None:
        ends = np.cumsum(lengths)
        for index in chosen:
            text = texts[index]
            found = ids[ends[index] - lengths[index] : ends[index]].tolist()
            if len(text) <= _LONGEST_CHECKED and self._reference.encode(text) != found:
                shown = text if len(text) <= _SHOWN else text[:_SHOWN] + "..."
                raise DataError(
                    f"{self.backend} gives other ids than {self._reference.backend} for the text {shown!r}; "
                    "use --tokenizer-backend reference, and prepare again what was made so far"
                )


def with_backend(
    reference: Tokenizer, backend: Backend, sample: Sequence[str] = (), note: Callable[[str], None] | None = None
) -> Tokenizer:
    """The tokenizer with the bulk path that was asked for, compared on a sample of the documents.

    `auto` falls back to the reference where the fast path is not there or not equal, and says so through `note`.
    Raises DataError where `gigatoken` is to be used and cannot be.
    """
    if backend == "reference":
        return reference
    try:
        fast = VerifiedTokenizer(reference)
        fast.check([text[:_LONGEST_CHECKED] for text in sample])
    except DataError as error:
        if backend == "gigatoken":
            raise
        if note:
            note(f"tokenizing with {reference.backend}, for {error}")
        return reference
    return fast
