"""The batch of a step as a pure function of (seed, position): no state, no workers, nothing to save but a number.

Sample p of a run comes from a source by weight (`blend`), is that source's k-th sample, and is therefore row
permutation(seed, source, k // N)[k % N] of its N rows (`order`). Step s of global batch G uses samples [sG, sG + G);
rank r of R takes the r-th contiguous block of G/R. So resuming, changing ranks or splitting a batch never repeats or
loses a row, and a longer run is a continuation of the same order.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np

from data_pipeline.errors import DataError
from data_pipeline.format.dataset import Int64, open_dataset
from data_pipeline.order.blend import Blend
from data_pipeline.order.permutation import epoch_keys, permute
from data_pipeline.rows.batch import Batch, join
from data_pipeline.rows.concat import read_rows, row_count
from data_pipeline.rows.evaluation import EvaluationRows


class Samples(NamedTuple):
    """Where the samples of a stretch of the run come from; arrays [n]."""

    source: Int64
    """Number of the source in `Batches.names`."""
    epoch: Int64
    row: Int64


class SourceUse(NamedTuple):
    """What a run takes from one source. Weights are shares of the rows (sequences), all of which are equally long."""

    name: str
    rows: int
    tokens: int
    epochs: float


class Batches:
    """Rows of one split of one or several sources, mixed by weight and shuffled anew in each epoch of each source."""

    def __init__(
        self,
        sources: Mapping[str, tuple[str | Path, float]],
        split: str,
        sequence_length: int,
        seed: int,
        isolate_documents: bool = False,
    ):
        """`sources`: name -> (shard folder, weight). The names take part in the order; their sequence does not.

        Raises DataError when a folder is damaged, a training split has no whole row, or vocabularies differ.
        """
        self.names = sorted(sources)
        self.split, self.sequence_length, self.seed = split, sequence_length, seed
        self.isolate_documents = isolate_documents
        self.weights = [sources[name][1] for name in self.names]
        self.datasets = [open_dataset(sources[name][0], split) for name in self.names]
        self.row_counts = [row_count(dataset.tokens, sequence_length) for dataset in self.datasets]
        self._blend = Blend(self.weights)
        self._check_tokenizers()
        if split == "train":
            self._check_rows()

    @property
    def eod_id(self) -> int:
        """The token that ends every document."""
        return self.datasets[0].manifest.eod_id

    @property
    def vocab_size(self) -> int:
        """The full vocabulary of the tokenizer that made the tokens."""
        return max(dataset.manifest.vocab_size for dataset in self.datasets)

    @property
    def fingerprint(self) -> str:
        """Changes when anything that decides about the content of a batch changes: data, weights, seed, length."""
        parts = [self.split, self.sequence_length, self.seed, self.isolate_documents]
        for name, weight, dataset in zip(self.names, self.weights, self.datasets, strict=True):
            parts += [name, float(weight).hex(), dataset.manifest.digest]
        return hashlib.sha256("\0".join(map(str, parts)).encode()).hexdigest()

    def samples(self, first_sample: int, count: int) -> Samples:
        """The source, epoch and row of samples first_sample, first_sample + 1, ... of the run."""
        self._check_rows()
        source, index = self._blend.locate(np.arange(first_sample, first_sample + count, dtype=np.int64))
        epoch, row = np.divmod(index, np.asarray(self.row_counts, dtype=np.int64)[source])
        for number, turn in sorted(set(zip(source.tolist(), epoch.tolist(), strict=True))):
            chosen = (source == number) & (epoch == turn)
            keys = epoch_keys(self.seed, self.names[number], turn)
            row[chosen] = permute(row[chosen], self.row_counts[number], keys)
        return Samples(source, epoch, row)

    def rows(self, first_sample: int, count: int) -> Batch:
        """The batch of samples first_sample, first_sample + 1, ...: arrays [count, sequence_length]."""
        source, _, row = self.samples(first_sample, count)
        groups = [np.flatnonzero(source == number) for number in range(len(self.names))]
        parts = [
            read_rows(self.datasets[number], row[chosen], self.sequence_length, self.isolate_documents)
            for number, chosen in enumerate(groups)
            if len(chosen)
        ]
        if len(parts) == 1:
            return parts[0]
        # Rows were read source by source: put them back into the order of the samples.
        return join(parts, np.argsort(np.concatenate(groups)))

    def evaluation_rows(self, source: str) -> EvaluationRows:
        """The rows of one source in fixed order, the last partial one included."""
        return EvaluationRows(self.datasets[self.names.index(source)], self.sequence_length, self.isolate_documents)

    def use(self, samples: int) -> list[SourceUse]:
        """What the first `samples` samples of the run take from each source."""
        counts = self._blend.counts(samples)
        return [
            SourceUse(name, count, count * self.sequence_length, count / rows if rows else 0.0)
            for name, count, rows in zip(self.names, counts, self.row_counts, strict=True)
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
        for dataset, rows in zip(self.datasets, self.row_counts, strict=True):
            if rows == 0:
                raise DataError(
                    f"the {self.split} split has {dataset.tokens} tokens, and one row of sequence_length "
                    f"{self.sequence_length} needs {self.sequence_length + 1}; use more text or shorter sequences",
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
