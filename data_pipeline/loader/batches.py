"""The batch of a step as a pure function of (seed, position): no state, no workers, nothing to save but a number.

Sample p of a run comes from a source by weight (`order.blend`), is that source's k-th sample, and is therefore row
permutation(seed, source, k // N)[k % N] of its N rows. Step s of global batch G uses samples [sG, sG + G); rank r of R
takes the r-th contiguous block of G/R. So resuming, changing ranks or splitting a batch never repeats or loses a row,
and a longer run is a continuation of the same order. Weights, batch size and sequence length may change at stated steps
(`order.phases`), and samples may be skipped (`order.skips`).
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from pathlib import Path

import numpy as np

from data_pipeline.errors import DataError
from data_pipeline.format.dataset import open_dataset
from data_pipeline.format.files import LocalFiles
from data_pipeline.loader.order import SampleOrder, Samples
from data_pipeline.loader.plan import Planner
from data_pipeline.loader.settings import OrderOptions, SourceOptions, as_source, describe_rows, row_options
from data_pipeline.loader.state import State, fingerprint
from data_pipeline.order.cuts import EpochOrder, WholeOrder
from data_pipeline.order.lanes import LaneOrder
from data_pipeline.order.mixture import SourceUse, as_share
from data_pipeline.order.phases import Phases
from data_pipeline.order.skips import Skips
from data_pipeline.rows.batch import Batch, Buffer
from data_pipeline.rows.evaluation import EvaluationRows
from data_pipeline.rows.reader import RowReader
from data_pipeline.stream.options import CacheOptions
from data_pipeline.stream.quarantine import Quarantine

_AHEAD = 192
"""Batches beyond the plan whose shards a store is asked for: minutes of training."""


class Batches:
    """Rows of one split of one or several sources, mixed by weight and shuffled anew in each epoch of each source."""

    def __init__(
        self,
        sources: Mapping[str, SourceOptions | tuple[str | Path, float]],
        split: str,
        sequence_length: int,
        seed: int,
        isolate_documents: bool = False,
        order: OrderOptions | None = None,
        cache: CacheOptions | None = None,
    ):
        """`sources`: name -> what it is, or (shard folder, weight). The names take part in the order; their sequence
        does not. `cache`: where shards of a store are kept.

        Raises DataError when a folder is damaged, a training split has no whole row, or vocabularies differ.
        """
        self.names = sorted(sources)
        self.split, self.sequence_length, self.seed = split, sequence_length, seed
        self.isolate_documents = isolate_documents
        self.order = order or OrderOptions()
        self.longest = self.order.longest(sequence_length)
        self._cache = cache
        self._sources = [as_source(sources[name]) for name in self.names]
        self.datasets = [open_dataset(source.folder, split, cache) for source in self._sources]
        self._in_store = any(not isinstance(dataset.files, LocalFiles) for dataset in self.datasets)
        self._check_tokenizers()
        self._readers = {self.longest: self._open_readers(self.longest)}
        units = [reader.rows() for reader in self._readers[self.longest]]
        self.row_counts = [count * (self.longest // sequence_length) for count in units]
        """Rows of `sequence_length` in an epoch of each source."""
        if split == "train":
            self._check_rows()
            for stretch in self.phases.stretches:
                self._readers[stretch.sequence_length] = self._open_readers(stretch.sequence_length)

    @property
    def eod_id(self) -> int:
        """The token that ends every document."""
        return self.datasets[0].manifest.eod_id

    @property
    def vocab_size(self) -> int:
        """The full vocabulary of the tokenizer that made the tokens."""
        return max(dataset.manifest.vocab_size for dataset in self.datasets)

    def tokenizer_folder(self) -> Path:
        """The files of the tokenizer that made the tokens."""
        return self.datasets[0].tokenizer_folder()

    def limits(self) -> list[str]:
        """None: see `OnlineBatches`."""
        return []

    @cached_property
    def phases(self) -> Phases:
        """Which samples are a step's; without phases in the settings, batches of one."""
        units = [reader.rows() for reader in self._readers[self.longest]]
        shares = {name: as_share(source.share) for name, source in zip(self.names, self._sources, strict=True)}
        rows = dict(zip(self.names, units, strict=True))
        phases = self.order.resolve(self.sequence_length, shares, rows)
        return Phases(phases, self.longest, units, Skips(self.order.skips))

    @property
    def fingerprint(self) -> str:
        """Changes when anything that decides about the content of a batch changes: data, weights, seed, length."""
        return fingerprint(self.state(0))

    def state(self, samples: int) -> State:
        """What a checkpoint keeps after so many samples; see `loader.state.describe_change`."""
        firsts = [self.phases.step(phase.first_step).first_sample for phase in self.phases.phases]
        phases = [
            [phase.first_step, first, phase.global_batch_size, phase.sequence_length, list(phase.weights)]
            for phase, first in zip(self.phases.phases, firsts, strict=True)
        ]
        readers = self._readers[self.longest]
        sources = {
            name: [dataset.manifest.digest[:16], describe_rows(reader.options)]
            for name, dataset, reader in zip(self.names, self.datasets, readers, strict=True)
        }
        return {
            "samples": samples,
            "split": self.split,
            "seed": self.seed,
            "longest": self.longest,
            "isolate_documents": self.isolate_documents,
            "lanes": self.order.lanes and list(self.order.lanes),
            "phases": phases,
            "skips": [list(one) for one in self.order.skips],
            "sources": sources,
            "quarantined": self._quarantined(),
        }

    def _quarantined(self) -> dict[str, list[str]]:
        """The shards of each source that any rank has found damaged so far, and that the run goes without."""
        folder = self._cache.quarantine if self._cache else None
        if folder is None:
            return {}
        found = {
            name: sorted(Quarantine(folder, dataset.manifest, self.split).reasons)
            for name, dataset in zip(self.names, self.datasets, strict=True)
        }
        return {name: shards for name, shards in found.items() if shards}

    def samples(self, first_sample: int, count: int) -> Samples:
        """The source, epoch and row of samples first_sample, first_sample + 1, ... of the run."""
        return self._planner.samples(first_sample, count)

    def rows(self, first_sample: int, count: int, out: Buffer | None = None) -> Batch:
        """The batch of samples first_sample, first_sample + 1, ...: arrays [count, sequence_length].

        With `out`, of the right shape, no memory is allocated for it.
        """
        block = self._planner.block(first_sample, count)
        if self._in_store:
            self._need(self._planner.coming(), count)
        out = out or Buffer(count, block.sequence_length, self.isolate_documents)
        readers = self._readers[block.sequence_length]
        for source, epoch, places, rows in block.parts:
            readers[source].fill(out, places, epoch, rows)
        return out.finish(block.source)

    def evaluation_rows(self, source: str) -> EvaluationRows:
        """The rows of one source in fixed order, the last partial one included."""
        return EvaluationRows(self.datasets[self.names.index(source)], self.sequence_length, self.isolate_documents)

    def use(self, samples: int) -> list[SourceUse]:
        """What the first `samples` samples of the run take from each source."""
        found = self.phases.use(samples)
        units = np.asarray([reader.rows() for reader in self._readers[self.longest]])
        rows = sum((given for _, given in found), np.zeros(len(units), np.int64))
        tokens = sum((given * stretch.sequence_length for stretch, given in found), np.zeros(len(units), np.int64))
        epochs = tokens / np.maximum(1, units * self.longest) * (units > 0)
        return [
            SourceUse(*one) for one in zip(self.names, rows.tolist(), tokens.tolist(), epochs.tolist(), strict=True)
        ]

    @cached_property
    def _planner(self) -> Planner:
        self._check_rows()
        weights = np.asarray([phase.weights for phase in self.phases.phases])
        # Of the first phase that uses the source: a phase that is added later must not change the order before it.
        first = (weights > 0).argmax(axis=0)
        shares = weights[first, np.arange(len(self.names))] / weights.sum(axis=1)[first]
        orders = [self._epoch_order(number, float(share)) for number, share in enumerate(shares)]
        order = SampleOrder(self.phases, orders, self.names, self.seed)
        return Planner(order, _AHEAD if self._in_store else 0)

    def _epoch_order(self, number: int, share: float) -> EpochOrder:
        reader, name = self._readers[self.longest][number], self.names[number]
        if self.order.lanes is None:
            return WholeOrder(reader.rows(), self.seed, name)
        return LaneOrder(reader.rows_per_shard, self.seed, name, self.order.lanes, share)

    def _need(self, coming: Samples, count: int) -> None:
        """Tells the stores which shards the next `count` samples lie in, and which those after them."""
        for number, reader in enumerate(self._readers[coming.sequence_length]):
            mine = np.flatnonzero(coming.source == number)
            ends, rows = np.cumsum(reader.rows_per_shard), coming.row[mine]
            # Concatenated rows may reach into the next shard, and in later epochs begin up to a longest row further on.
            reach = self.longest // coming.sequence_length + 1 if reader.options.packing == "concat" else 0
            both = np.stack([rows, np.minimum(rows + reach, ends[-1] - 1)], axis=1).ravel()
            shards, first = np.unique(np.searchsorted(ends, both, side="right"), return_index=True)
            now = int((first < 2 * np.searchsorted(mine, count)).sum())
            reader.dataset.need(shards[np.argsort(first)].tolist(), now)

    def _open_readers(self, sequence_length: int) -> list[RowReader]:
        run = (sequence_length, self.longest, self.isolate_documents, self.seed)
        return [
            RowReader(dataset, row_options(source, name, *run))
            for name, source, dataset in zip(self.names, self._sources, self.datasets, strict=True)
        ]

    def _check_tokenizers(self) -> None:
        first = self.datasets[0]
        for dataset in self.datasets[1:]:
            for what in ("tokenizer", "eod_id"):
                ours, theirs = getattr(first.manifest, what), getattr(dataset.manifest, what)
                if ours != theirs:
                    raise DataError(
                        f"has {what} {theirs}, but {first.folder} has {ours}; prepare both with one tokenizer",
                        dataset.folder,
                    )

    def _check_rows(self) -> None:
        for dataset, reader in zip(self.datasets, self._readers[self.longest], strict=True):
            if reader.rows() == 0:
                raise DataError(
                    f"the {self.split} split has {dataset.tokens} tokens, and one row of sequence_length "
                    f"{self.longest} needs {self.longest + 1}; use more text or shorter sequences",
                    dataset.folder,
                )


def check_vocabulary(batches: Batches, vocab_size: int) -> None:
    """Raises DataError unless every id fits into a model of this vocabulary; call it before the first step."""
    for dataset in batches.datasets:
        manifest = dataset.manifest
        if manifest.vocab_size > vocab_size:
            raise DataError(
                f"was tokenised with a vocabulary of {manifest.vocab_size} (largest id used: {manifest.largest_id}), "
                f"but model.vocab_size = {vocab_size}; set it to {manifest.vocab_size} or more",
                dataset.folder,
            )
