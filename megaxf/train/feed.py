"""Reads this rank's share of the next batch while the current one is trained on."""

from __future__ import annotations

import time
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import torch

from data_pipeline.loader.batches import Batches, check_vocabulary
from data_pipeline.rows.batch import Batch
from megaxf.config import Run
from megaxf.engine import TorchBatch, micro_batches, to_torch
from megaxf.parallel.mesh import Mesh


def open_batches(run: Run, split: str, names: list[str] | None = None) -> Batches:
    """The loader of a run's sources, or of some of them; raises DataError where they do not fit the model."""
    sources = {name: source for name, source in run.data.sources.items() if names is None or name in names}
    batches = Batches(
        folders(sources), split, run.data.sequence_length, run.seed, isolate_documents=run.data.isolate_documents
    )
    check_vocabulary(batches, run.model.vocab_size)
    for dataset in batches.datasets:
        dataset.check_sizes()
    return batches


def folders(sources: Mapping) -> dict[str, tuple[str | Path, float]]:
    """name -> (shard folder, weight), as the loader wants them."""
    return {name: (source.folder, source.weight) for name, source in sources.items()}


class Feed:
    """Micro-batches of one step after the other, from a position in samples.

    The position decides about everything: rank r of R along the data axis takes the r-th of R equal blocks of the
    step's samples. Ranks that differ along other axes only take the same rows.
    """

    def __init__(self, batches: Batches, run: Run, mesh: Mesh, device: torch.device, position: int) -> None:
        self.position = position
        """The first sample of the batch that `next` gives."""
        self.waited = 0.0
        """Seconds that the last `next` took."""
        self.batches, self._device = batches, device
        self._global, self._micro = run.train.global_batch_size, run.train.micro_batch_size
        self._share = self._global // mesh.data_size
        self._offset = mesh.data_rank * self._share
        self._reader = ThreadPoolExecutor(1, thread_name_prefix="feed")
        self._coming = self._read(position)

    def next(self) -> list[TorchBatch]:
        """The micro-batches of the step at `position`, which moves on. Raises DataError."""
        started = time.perf_counter()
        rows = self._coming.result()
        first = self.position + self._offset
        self.position += self._global
        self._coming = self._read(self.position)
        samples = torch.arange(first, first + self._share, device=self._device)
        moved = micro_batches(to_torch(rows, self._device)._replace(samples=samples), self._micro)
        self.waited = time.perf_counter() - started
        return moved

    def close(self) -> None:
        """End the reading thread."""
        self._reader.shutdown(wait=True, cancel_futures=True)

    def _read(self, position: int) -> Future[Batch]:
        return self._reader.submit(self.batches.rows, position + self._offset, self._share)
