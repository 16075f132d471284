"""Gives the trainer this rank's share of each step's batch, which is read while the steps before are trained on."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from data_pipeline.loader.ring import Request, Ring
from data_pipeline.loader.share import DataShare
from data_pipeline.loader.torch import pinned
from data_pipeline.rows.batch import allocate
from megaxf.config import Run
from megaxf.config_data import portion_at
from megaxf.engine import TorchBatch, micro_batches, to_torch
from megaxf.parallel.mesh import Mesh
from megaxf.train.sources import AnyBatches


class Feed:
    """Micro-batches of one step after the other, from a position in samples to the last step of the run.

    The position decides about everything (see `data_pipeline.loader.share`); how many samples a step has, its phase
    says.
    """

    def __init__(
        self, batches: AnyBatches, run: Run, mesh: Mesh, device: torch.device, position: int, steps_made: int
    ) -> None:
        self.position = position
        """The first sample of the batch that `next` gives."""
        self.batches, self._run, self._device = batches, run, device
        self._share = DataShare(mesh.data_rank, mesh.data_size)
        memory = pinned if device.type == "cuda" else allocate
        self._ring = Ring(batches, self._requests(position, steps_made), allocate=memory)
        self._copied: torch.cuda.Event | None = None
        """Recorded behind the copies to the GPU from the buffer that is lent."""

    def next(self) -> list[TorchBatch]:
        """The micro-batches of the next step; the position moves on. Raises DataError."""
        self._give_back()
        request, rows = next(self._ring)
        samples = torch.arange(request.first_sample, request.first_sample + request.rows, device=self._device)
        batch = to_torch(rows, self._device)._replace(samples=samples)
        if self._device.type == "cuda":
            self._copied = torch.cuda.Event()
            self._copied.record(torch.cuda.current_stream(self._device))
        else:
            self._ring.release()
        self.position += request.rows * self._share.ranks
        return micro_batches(batch, self._run.train.micro_batch_size)

    def close(self) -> None:
        """End the reading thread."""
        self._ring.close()

    def _give_back(self) -> None:
        """The buffer of the step before: its copies ended before the first product of that step."""
        if self._copied is not None:
            self._copied.synchronize()
            self._copied = None
            self._ring.release()

    def _requests(self, position: int, steps_made: int) -> Iterator[Request]:
        for step in range(steps_made + 1, self._run.train.steps + 1):
            portion = portion_at(self._run, step)
            yield Request(*self._share.block(position, portion.global_batch_size), portion.sequence_length)
            position += portion.global_batch_size
