"""Fill-in-the-middle for code (arXiv 2207.14255): a model that also learns to write what lies between two texts.

With a probability of `rate`, the piece of a document that lies in a row is cut at two places drawn evenly from all,
and becomes, between its ends that stay where they are,

    PSM   <prefix> the prefix <suffix> the suffix <middle> the middle
    SPM   <prefix> <suffix> the suffix <middle> the prefix, then the middle

The length of a row does not change: the last three tokens of the piece (before its end-of-document token) are left out
to make room for the three marks. What is drawn depends on the seed, the source, the epoch, the row and the number of
the piece in it, and on nothing else.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np

from data_pipeline.errors import DataError
from data_pipeline.format.dataset import Int64
from data_pipeline.tokenizer.base import Tokenizer

MARKS = 3
SHORTEST = 2 * MARKS
"""A piece with fewer tokens stays as it is."""

NAMES = (
    ("<fim_prefix>", "<fim_suffix>", "<fim_middle>"),
    ("<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>"),
    ("▁<PRE>", "▁<SUF>", "▁<MID>"),
    ("<PRE>", "<SUF>", "<MID>"),
)
"""What published tokenizers call the marks: StarCoder, Qwen, Code Llama, the paper."""

_WHOLE = 1 << 64


@dataclass(frozen=True)
class FillInTheMiddle:
    """Which share of the pieces is rearranged, and the ids of the three marks (see `find_marks`)."""

    rate: float
    marks: tuple[int, int, int]
    """prefix, suffix, middle."""
    spm_rate: float = 0.5
    """The share of those rearranged that become SPM."""

    def check(self, vocab_size: int, path: str | Path) -> None:
        """Raises DataError where a rate is no share, or a mark is no token."""
        for name in ("rate", "spm_rate"):
            if not 0 <= getattr(self, name) <= 1:
                raise DataError(f"fill_in_the_middle.{name} = {getattr(self, name)} is no share; use 0 to 1")
        if len(set(self.marks)) < MARKS or not 0 <= min(self.marks) <= max(self.marks) < vocab_size:
            raise DataError(
                f"has {vocab_size} tokens, and fill_in_the_middle.marks = {self.marks} are not three of them", path
            )

    def apply(self, block: Int64, rows: Sequence[int], starts: Int64, eod_id: int, keys: list[str]) -> None:
        """Rearranges the pieces of documents in these rows of a block [all rows, sequence_length + 1], in place.

        starts: places of the flattened block at which documents or padding begin; keys: of each row.
        """
        width = block.shape[1]
        edges = np.unique(np.concatenate([starts, *([row * width, (row + 1) * width] for row in rows)]))
        for row, key in zip(rows, keys, strict=True):
            low, high = np.searchsorted(edges, (row * width, (row + 1) * width)).tolist()
            self._rearrange_row(block[row], (edges[low : high + 1] - row * width).tolist(), eod_id, key)

    def _rearrange_row(self, row: Int64, edges: list[int], eod_id: int, key: str) -> None:
        digest = hashlib.blake2b(key.encode(), digest_size=16).digest()
        draws = np.random.Philox(key=int.from_bytes(digest, "little")).random_raw(4 * len(edges)).tolist()
        for number, (start, stop) in enumerate(pairwise(edges)):
            stop -= int(row[stop - 1] == eod_id)
            # Padding is EOD alone.
            if stop - start >= SHORTEST and row[start] != eod_id and draws[4 * number] < self.rate * _WHOLE:
                row[start:stop] = self._rearranged(row[start : stop - MARKS], *draws[4 * number + 1 : 4 * number + 4])

    def _rearranged(self, tokens: Int64, first: int, second: int, kind: int) -> Int64:
        low, high = sorted((first % (len(tokens) + 1), second % (len(tokens) + 1)))
        prefix, middle, suffix = tokens[:low], tokens[low:high], tokens[high:]
        before, after, between = ([mark] for mark in self.marks)
        if kind < self.spm_rate * _WHOLE:
            return np.concatenate([before, after, suffix, between, prefix, middle])
        return np.concatenate([before, prefix, after, suffix, between, middle])


def find_marks(tokenizer: Tokenizer, names: tuple[str, str, str] | None = None) -> tuple[int, int, int]:
    """The ids of the three marks, by the given names or by those that are usual. Raises DataError where it has none."""
    for prefix, suffix, middle in (names,) if names else NAMES:
        found = tokenizer.token_id(prefix), tokenizer.token_id(suffix), tokenizer.token_id(middle)
        if found[0] is not None and found[1] is not None and found[2] is not None:
            return found[0], found[1], found[2]
    tried = "; ".join(" ".join(one) for one in ((names,) if names else NAMES))
    raise DataError(
        f"the tokenizer has no tokens for fill-in-the-middle (looked for {tried}); name its own, or do without"
    )
