"""The plain-torch engine: the whole optimizer on every rank, gradients summed over ranks. `engine.zero_stage: 0`.

Every layout is tested against this one, so it is written to be read.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from megaxf.config import Run
from megaxf.engine.batch import TorchBatch
from megaxf.engine.gradient import Gradients, Norm
from megaxf.engine.objective import Objective, Sums, evaluation_mode, idle_rows, several_sources
from megaxf.engine.optimizer import CountsUpdates, build_adamw, fresh_state, set_learning_rate
from megaxf.engine.protocol import GRADIENT, MOMENTS, SeeGradient, StepResult
from megaxf.engine.state import pieces_of
from megaxf.engine.update import CompiledUpdate, FusedUpdate, refresh
from megaxf.parallel.apply import Placed, is_counted, materialise
from megaxf.parallel.boxes import Piece
from megaxf.parallel.clock import BACKWARD, OPTIMIZER


class ReferenceEngine(CountsUpdates):
    """See megaxf.engine.protocol.Engine."""

    def __init__(self, run: Run[Any], placed: Placed, device: torch.device) -> None:
        materialise(placed, run.seed, device)
        self._placed, self._axis, self._device = placed, placed.mesh.replicas, device
        self._sources = several_sources(run)
        self._objective = Objective(placed, run.train.z_loss)
        self._weights = placed.weights
        self._masters = _masters(self._weights, run.train.precision)
        self._gradients = Gradients(self._weights)
        self._optimizer = build_adamw(self._masters, run.optimizer)
        norm = Norm(is_counted(placed, self._weights), placed.mesh.parts)
        update = CompiledUpdate if run.train.compile else FusedUpdate
        self._update = update(self._optimizer, self._masters, self._weights, norm, run.train.gradient_clip)

    def train_step(
        self,
        micro_batches: Sequence[TorchBatch],
        learning_rate: float,
        loss_limit: float | None = None,
        see_gradient: SeeGradient | None = None,
    ) -> StepResult:
        """One update; see the protocol."""
        batches = [self._placed.columns(batch) for batch in micro_batches]
        idle = idle_rows(self._placed, micro_batches)
        sums = Sums(batches, idle, self._axis, self._device, loss_limit, self._sources)
        clock = self._placed.mesh.clock
        self._gradients.clear()
        for batch in batches:
            loss = sums.add(batch, *self._objective(batch)) * sums.scale
            with clock.part(BACKWARD, self._device):
                loss.backward()
        self._gradients.sum_over(self._axis)
        if see_gradient:
            see_gradient(self._gradient_pieces())
        set_learning_rate(self._optimizer, learning_rate)
        with clock.part(OPTIMIZER, self._device):
            norm = self._update(self._gradients.sums)
        self._optimizer_step += math.isfinite(norm)
        return sums.result(norm)

    def evaluate(self, batch: TorchBatch) -> tuple[float, int]:
        """Local sum and count; see the protocol."""
        batch = self._placed.columns(batch)
        with evaluation_mode(self._objective):
            return float(self._objective(batch)[1].sum()), batch.counted()

    def state_shapes(self) -> dict[str, torch.Size]:
        """See the protocol."""
        return self._placed.shapes

    def pieces(self) -> Iterator[Piece]:
        """See the protocol."""
        for name, master in self._masters.items():
            state = self._optimizer.state[master] = self._optimizer.state[master] or fresh_state(master)
            tensors = {"master": master.detach(), **{key: state[key] for key in MOMENTS}}
            flat = {part: tensor.view(-1) for part, tensor in tensors.items()}
            yield from pieces_of(self._placed, name, 0, flat, self._axis)

    def _gradient_pieces(self) -> Iterator[Piece]:
        for name, gradient in self._gradients.sums.items():
            yield from pieces_of(self._placed, name, 0, {GRADIENT: gradient.reshape(-1)}, self._axis)

    def _refresh(self) -> None:
        for name, weight in self._weights.items():
            refresh(weight, self._masters[name])

    def replicated(self) -> dict[str, torch.Tensor]:
        """See the protocol; masters and optimizer state are replicated, too."""
        tensors: dict[str, torch.Tensor] = dict(self._weights)
        for name, master in self._masters.items():
            state = self._optimizer.state[master]
            own = {} if master is self._weights[name] else {"master": master}
            own |= {key: state[key] for key in MOMENTS if key in state}
            tensors |= {f"{name}/{key}": tensor for key, tensor in own.items()}
        return tensors

    @contextmanager
    def model_for_inference(self) -> Iterator[torch.nn.Module]:
        """See the protocol."""
        with evaluation_mode(self._objective):
            yield self._objective.model


def _masters(weights: Mapping[str, torch.nn.Parameter], precision: str) -> dict[str, torch.nn.Parameter]:
    """The fp32 parameters that are optimised: in fp32 the weights themselves, in bf16 copies beside them.

    The copies start at the rounded weights, as DeepSpeed's do.
    """
    if precision == "fp32":
        return dict(weights)
    masters = {}
    for name, weight in weights.items():
        weight.data = weight.data.to(torch.bfloat16)
        masters[name] = torch.nn.Parameter(weight.detach().float())
    return masters
