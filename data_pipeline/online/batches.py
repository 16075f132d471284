"""Text to batches while training: for a quick trial, without preparing anything first.

    batches = OnlineBatches(["HuggingFaceFW/fineweb"], "tokenizer", 2048, seed=1, options=ReadOptions(streaming=True))
    batch = batches.rows(first_sample=0, count=8)

Row k is the tokens [kS, kS + S + 1) of one endless stream of documents, which is the same for all ranks: each reads and
tokenises all of it and takes the rows of its samples. So a batch is a function of its position here, too, and neither
stops nor changes of ranks lose or repeat a row. Its price is that all ranks do all the work.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections import deque
from collections.abc import Sequence
from dataclasses import asdict
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np

from data_pipeline.errors import DataError
from data_pipeline.loader.settings import OrderOptions
from data_pipeline.loader.state import State, fingerprint
from data_pipeline.online.documents import Block, DocumentStream, Place
from data_pipeline.order.mixture import SourceUse
from data_pipeline.order.phases import Phase, Phases
from data_pipeline.order.skips import Skips
from data_pipeline.rows.batch import Batch, Buffer
from data_pipeline.sources.base import ReadOptions
from data_pipeline.sources.find import find_units
from data_pipeline.tokenizer.base import Backend, load_tokenizer

_UNIT_BYTES = 8 << 20
"""Of input that is shuffled together, where its file is not compressed."""

_PLACES = 4096
"""Blocks whose places are remembered: those of a billion tokens, far more than are read ahead of training."""


class OnlineBatches:
    """As `data_pipeline.loader.batches.Batches`, of the one source that all inputs are, with its documents in a row.

    Going forward costs what the tokens between cost; a position that was not passed before, or that no state tells, is
    reached from the beginning.
    """

    def __init__(
        self,
        inputs: Sequence[str],
        tokenizer: str | Path,
        sequence_length: int,
        seed: int,
        isolate_documents: bool = False,
        shuffle: bool = True,
        options: ReadOptions | None = None,
        backend: Backend = "auto",
    ):
        """inputs: whatever `megaxf prepare` takes. Raises DataError where there is none, or no tokenizer."""
        self.options = options or ReadOptions()
        self.names, self.order = ["+".join(inputs)], OrderOptions()
        self.sequence_length, self.seed, self.isolate_documents = sequence_length, seed, isolate_documents
        self.shuffle, self.longest = shuffle, sequence_length
        self.row_counts = [0]
        """Rows of an epoch: nobody knows."""
        self.tokenizer = load_tokenizer(tokenizer, backend=backend)
        self._units = [unit for found in find_units(inputs, self.options, _UNIT_BYTES) for unit in found]
        self._documents = DocumentStream(self._units, self.tokenizer, seed, shuffle)
        self.phases = Phases([Phase(0, 1, sequence_length, (1.0,))], sequence_length, [1], Skips([]))
        """One, which lasts."""
        self._places = deque([Place()], maxlen=_PLACES)
        self._window: deque[Block] = deque()
        self._end = 0

    def limits(self) -> list[str]:
        """What a run should know about this way to read, to be said at its start."""
        found = [
            f"{self.names[0]} is tokenised while training, by {self.tokenizer.backend} on every rank; for more than a "
            "trial use megaxf prepare, which does it once, shuffles all documents and can keep some for validation"
        ]
        if self.options.streaming:
            found.append(
                f"{self.names[0]} is read from the hub: a resumed run reads the file in which it stopped from its "
                "beginning, and goes on exactly as long as the hub holds the same files"
            )
        return found

    @cached_property
    def digest(self) -> str:
        """Of what is read, how, and the tokenizer."""
        how = json.dumps([self.tokenizer.eod_id, asdict(self.options)], sort_keys=True)
        keys = [unit.key for unit in self._units]
        return hashlib.sha256(os.fsencode("\n".join([self.tokenizer.digest, how, *keys]))).hexdigest()

    @property
    def fingerprint(self) -> str:
        """Changes when anything that decides about the content of a batch changes."""
        return fingerprint(self.state(0) | {"online": None})

    def state(self, samples: int) -> State:
        """What a checkpoint keeps after so many samples, a few hundred bytes, the same on every rank."""
        how = f"online, {'shuffled' if self.shuffle else 'in order'}"
        return {
            "samples": samples,
            "split": "train",
            "seed": self.seed,
            "longest": self.sequence_length,
            "isolate_documents": self.isolate_documents,
            "lanes": None,
            "phases": [[0, 0, 1, self.sequence_length, [1.0]]],
            "skips": [],
            "sources": {self.names[0]: [self.digest[:16], how]},
            "online": list(self._place_before(samples * self.sequence_length)),
        }

    def go_on(self, state: State) -> None:
        """Takes from a state how to get to its samples fast; from one of other data it takes nothing."""
        mine = self.state(state["samples"])
        if all(state.get(name) == mine[name] for name in ("sources", "seed", "longest")):
            self._places.append(Place(*state["online"]))

    def rows(self, first_sample: int, count: int, out: Buffer | None = None) -> Batch:
        """The batch of samples first_sample, first_sample + 1, ...: arrays [count, sequence_length]."""
        length = self.sequence_length
        start, stop = first_sample * length, (first_sample + count) * length + 1
        self._reach(start, stop)
        ids = np.concatenate([block.ids for block in self._window])[start - self._window[0].place.token :]
        out = out or Buffer(count, length, self.isolate_documents)
        out.block[:] = np.lib.stride_tricks.sliding_window_view(ids, length + 1)[: count * length : length]
        if self.isolate_documents:
            ends = np.concatenate([block.ends for block in self._window])
            rows, columns = np.divmod(ends[(ends > start) & (ends < stop)] - start - 1, length)
            # Where a row begins with a document, that is what the last label of the row before must not be.
            out.begin_documents(rows * (length + 1) + columns + 1)
        return out.finish()

    def use(self, samples: int) -> list[SourceUse]:
        """What the first samples take. How many epochs that is, nobody knows before the text is tokenised."""
        return [SourceUse(self.names[0], samples, samples * self.sequence_length, math.nan)]

    def tokenizer_folder(self) -> Path:
        """The files of the tokenizer, in a folder that lasts as long as this object."""
        return self._saved_tokenizer

    @cached_property
    def _saved_tokenizer(self) -> Path:
        self._folder = TemporaryDirectory()
        self.tokenizer.save(self._folder.name)
        return Path(self._folder.name)

    def _place_before(self, token: int) -> Place:
        known = [place for place in list(self._places) if place.token <= token]
        return max(known, key=lambda place: place.token, default=Place())

    def _reach(self, start: int, stop: int) -> None:
        """Makes the window hold the tokens [start, stop) of the run."""
        place = self._place_before(start)
        if not self._window or start < self._window[0].place.token or place.token > self._end:
            self._window.clear()
            self._end = place.token
            self._stream = self._documents.blocks(place)
        while self._end < stop:
            block = next(self._stream)
            self._window.append(block)
            self._places.append(block.place)
            self._end = block.end
            self._drop(start)
        self._drop(start)

    def _drop(self, start: int) -> None:
        while self._window and self._window[0].end <= start:
            self._window.popleft()


def check_online_vocabulary(batches: OnlineBatches, vocab_size: int) -> None:
    """Raises DataError unless every id fits into a model of this vocabulary."""
    if batches.tokenizer.vocab_size > vocab_size:
        raise DataError(
            f"has a vocabulary of {batches.tokenizer.vocab_size}, but model.vocab_size = {vocab_size}; set it to "
            f"{batches.tokenizer.vocab_size} or more",
            batches.names[0],
        )
