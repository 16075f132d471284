"""What is minimised, and how its sums over ranks become one step's numbers."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from megaxf.config import Run
from megaxf.engine.batch import IGNORED, TorchBatch
from megaxf.engine.protocol import StepResult
from megaxf.parallel.apply import Placed
from megaxf.parallel.clock import FORWARD
from megaxf.parallel.collectives import sum_numbers, sum_tensor
from megaxf.parallel.mesh import Axis


class Objective(torch.nn.Module):
    """A language model together with its loss, so that an engine sees one forward pass from tokens to a number."""

    model: Any

    def __init__(self, placed: Placed, z_loss: float) -> None:
        super().__init__()
        self.model, self._loss, self._z_loss = placed.model, placed.loss, z_loss
        self._clock = placed.mesh.clock

    def forward(self, batch: TorchBatch) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """See `taken_apart`."""
        with self._clock.part(FORWARD, batch.tokens.device):
            hidden = self.model(
                batch.tokens, document_ids=batch.document_ids, positions=batch.positions, samples=batch.samples
            )
            return taken_apart(*self._loss(hidden, self.model.head_weight(), batch.labels, z_loss=self._z_loss))


def taken_apart(loss: torch.Tensor, nll: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """(the loss summed over the counted targets; detached the negative log-likelihood of each row, and what the loss
    has beyond their sum), in fp32. nll: of each target [rows, seq], not to be held through the update."""
    return loss, nll.sum(1), loss.detach() - nll.sum()


class Sums:
    """The sums of one step, over its micro-batches and the ranks that see other tokens.

    One message before the forward passes, the number of targets, which every gradient is divided by, and of rows
    without any; one after them.

    idle_rows: those that this rank has to count, see `idle_rows`.
    sources: how many the rows come from, where losses are wanted for each of them.
    """

    def __init__(
        self,
        batches: Sequence[TorchBatch],
        idle_rows: int,
        axis: Axis,
        device: torch.device,
        loss_limit: float | None = None,
        sources: int = 0,
    ) -> None:
        self._axis, self._device, self._limit, self._left = axis, device, loss_limit, len(batches)
        counted = [sum(batch.counted() for batch in batches), idle_rows]
        self.tokens, self.idle_rows = map(int, sum_numbers(counted, axis, device))
        self.scale = 1 / max(self.tokens, 1)
        """What a summed loss is multiplied by; a batch without a target gives a gradient of zero."""
        self._sums = torch.zeros(3 + 2 * sources, dtype=torch.float64, device=device)
        """Negative log-likelihood, penalty on the log-partition, how many ranks have refused the step; and for each
        source its negative log-likelihood, then for each its counted targets."""
        self._by_source = self._sums[3:].view(2, sources)

    def add(self, batch: TorchBatch, loss: torch.Tensor, nll: torch.Tensor, z_loss: torch.Tensor) -> torch.Tensor:
        """Count one micro-batch in, without waiting for the device; gives the loss to go backward from.

        loss, nll, z_loss: see `taken_apart`.
        That of the last micro-batch is NaN where the step's loss is not below the limit: no engine makes an update from
        a gradient that is not finite, so that each refuses the step in the way it has anyway.
        """
        self._sums[:2] += torch.stack([nll.sum(), z_loss])
        if batch.sources is not None and self._by_source.numel():
            rows = torch.stack([nll.double(), (batch.labels != IGNORED).sum(1)])
            self._by_source.index_add_(1, batch.sources, rows)
        self._left -= 1
        if self._limit is None or self._left:
            return loss
        total = sum_tensor(self._sums[:2].clone(), self._axis) * self.scale
        refused = ~(total.isfinite().all() & (total[0] < self._limit))
        self._sums[2] = refused
        return loss * torch.where(refused, math.nan, 1.0)

    def share(self, axis: Axis) -> None:
        """Give to all ranks of an axis what those among them have counted that compute the loss; collective."""
        sum_tensor(self._sums, axis)

    def result(self, grad_norm: float) -> StepResult:
        """The numbers of the step; collective."""
        nll, z_loss, refused, *by_source = sum_numbers(list(self._sums), self._axis, self._device)
        half = len(by_source) // 2
        return StepResult(
            loss=nll * self.scale,
            z_loss=z_loss * self.scale,
            grad_norm=grad_norm,
            tokens=self.tokens,
            idle_rows=self.idle_rows,
            refused=refused > 0,
            by_source=tuple(zip(by_source[:half], map(round, by_source[half:]), strict=True)),
        )


def idle_rows(placed: Placed, rows: Sequence[TorchBatch]) -> int:
    """The whole rows without a target; 0 on all ranks that share them but the first, so that each row counts once."""
    return 0 if placed.mesh.axis("context").rank else sum(batch.idle_rows() for batch in rows)


def several_sources(run: Run[Any]) -> int:
    """How many sources there are to tell apart; 0 where there is one, whose loss is the loss."""
    return len(run.data.sources) if len(run.data.sources) > 1 else 0


@contextmanager
def evaluation_mode(module: torch.nn.Module) -> Iterator[None]:
    """No gradients and no training behaviour inside; as it was afterwards."""
    was_training = module.training
    module.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        module.train(was_training)
