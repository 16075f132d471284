"""Reads this rank's share of the next batch while the current one is trained on."""

from __future__ import annotations

import time
from concurrent.futures import Future, ThreadPoolExecutor

import torch

from data_pipeline.loader.batches import Batches
from data_pipeline.rows.batch import Batch
from megaxf.config import Run
from megaxf.config_data import portion_at
from megaxf.engine import TorchBatch, micro_batches, to_torch
from megaxf.parallel.mesh import Mesh


class Feed:
    """Micro-batches of one step after the other, from a position in samples.

    The position decides about everything: rank r of R along the data axis takes the r-th of R equal blocks of the
    step's samples, of which there are as many as its phase says. Ranks that differ along other axes only take the same
    rows.
    """

    def __init__(
        self, batches: Batches, run: Run, mesh: Mesh, device: torch.device, position: int, steps_made: int
    ) -> None:
        self.position = position
        """The first sample of the batch that `next` gives."""
        self.waited = 0.0
        """Seconds that the last `next` took."""
        self.batches, self._run, self._mesh, self._device = batches, run, mesh, device
        self._steps_made = steps_made
        self._reader = ThreadPoolExecutor(1, thread_name_prefix="feed")
        self._coming = self._read()

    def next(self) -> list[TorchBatch]:
        """The micro-batches of the next step; the position moves on. Raises DataError."""
        started = time.perf_counter()
        rows = self._coming.result()
        first, count = self._block()
        self.position += count * self._mesh.data_size
        self._steps_made += 1
        self._coming = self._read()
        samples = torch.arange(first, first + count, device=self._device)
        batch = to_torch(rows, self._device)._replace(samples=samples)
        moved = micro_batches(batch, self._run.train.micro_batch_size)
        self.waited = time.perf_counter() - started
        return moved

    def close(self) -> None:
        """End the reading thread."""
        self._reader.shutdown(wait=True, cancel_futures=True)

    def _block(self) -> tuple[int, int]:
        """This rank's first sample of the next step, and how many it has."""
        count = portion_at(self._run, self._steps_made + 1).global_batch_size // self._mesh.data_size
        return self.position + self._mesh.data_rank * count, count

    def _read(self) -> Future[Batch]:
        return self._reader.submit(self.batches.rows, *self._block())
