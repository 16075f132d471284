"""The documents of units of input as tokens, epoch after epoch, from any place on that was passed before."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import count
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from data_pipeline.errors import DataError
from data_pipeline.order.permutation import Int64, epoch_keys, permute
from data_pipeline.sources.base import Texts, Unit
from data_pipeline.tokenizer.base import Tokenizer

_CHARACTERS = 1 << 20
"""Tokenised at a time: what the first batch waits for, and what is done again after a resume."""


class Place(NamedTuple):
    """Where a block begins."""

    epoch: int = 0
    unit: int = 0
    """By number in the order of the epoch."""
    block: int = 0
    """In the unit."""
    token: int = 0
    """Tokens of the run before it."""


class Block(NamedTuple):
    """Some documents one behind the other."""

    place: Place
    ids: NDArray[Any]
    """Each document ends with EOD."""
    ends: Int64
    """[documents] in tokens of the run."""

    @property
    def end(self) -> int:
        """Tokens of the run up to its end."""
        return self.place.token + len(self.ids)


class DocumentStream:
    """All documents of the units, again and again.

    Shuffled, the units and the documents that a unit reads at a time come in another order in each epoch. What comes
    does not depend on who reads, so it is one stream for all ranks.
    """

    def __init__(self, units: Sequence[Unit], tokenizer: Tokenizer, seed: int, shuffle: bool):
        self._units, self._tokenizer, self._seed, self._shuffle = units, tokenizer, seed, shuffle

    def blocks(self, place: Place) -> Iterator[Block]:
        """Without end. Raises DataError at a text that cannot be used, and where there is none at all."""
        epoch, unit, skipped, token = place
        for turn in count(epoch):
            began = token
            order = self._permuted(len(self._units), f"{turn}")
            for number in range(unit, len(order)):
                for block, texts in enumerate(self._pieces(turn, int(order[number]))):
                    if block < skipped:
                        continue
                    made = self._encode(texts, Place(turn, number, block, token))
                    token = made.end
                    yield made
                skipped = 0
            if unit == 0 and token == began:
                raise DataError("holds no text", self._units[0].file if self._units else None)
            unit = 0

    def _pieces(self, epoch: int, number: int) -> Iterator[list[str]]:
        """The texts of a unit in portions; blank ones are left out, as when data are prepared."""
        unit = self._units[number]
        for part, texts in enumerate(unit.read()):
            _check(unit, texts)
            found = [text for text in texts.texts if text and not text.isspace()]
            shuffled = [found[index] for index in self._permuted(len(found), f"{epoch}\0{number}\0{part}")]
            ends = np.cumsum(np.fromiter(map(len, shuffled), np.int64, len(shuffled)))
            edges = np.flatnonzero(np.diff(ends // _CHARACTERS, prepend=0)).tolist()
            for start, stop in zip([0, *edges], [*edges, len(shuffled)], strict=True):
                if start < stop:
                    yield shuffled[start:stop]

    def _encode(self, texts: list[str], place: Place) -> Block:
        tokenizer = self._tokenizer
        ids, lengths = tokenizer.encode_documents(texts)
        if (ids == tokenizer.eod_id).any():
            raise DataError(f"a text encodes to {tokenizer.eod_token}, the end-of-document token", self._units[0].file)
        ends = np.cumsum(lengths)
        marked = np.insert(ids, ends, tokenizer.eod_id)
        return Block(place, marked, ends + np.arange(1, len(ends) + 1) + place.token)

    def _permuted(self, size: int, key: str) -> Int64:
        numbers = np.arange(size, dtype=np.int64)
        if not self._shuffle or size == 0:
            return numbers
        # The source's name is the key of all that is drawn of an epoch of it.
        return permute(numbers, size, epoch_keys(self._seed, f"online\0{key}", 0))


def _check(unit: Unit, texts: Texts) -> None:
    """Raises DataError for the first record that gives no text."""
    if texts.faults:
        record, reason, detail = min(texts.faults)
        detail = f" ({detail})" if detail else ""
        file = unit.files[record] if unit.files else unit.file
        raise DataError(f"{reason}{detail}; prepare the data with --on-error skip, which counts such records", file)
