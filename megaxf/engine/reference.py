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
from megaxf.engine.gradient import Gradients
from megaxf.engine.objective import Objective, Sums, evaluation_mode
from megaxf.engine.optimizer import CountsUpdates, build_adamw, fresh_state, set_learning_rate
from megaxf.engine.protocol import MOMENTS, StepResult
from megaxf.engine.update import CompiledUpdate, Update, plain_update, refresh
from megaxf.parallel.mesh import Mesh


class ReferenceEngine(CountsUpdates):
    """See megaxf.engine.protocol.Engine."""

    def __init__(self, run: Run[Any], model: torch.nn.Module, mesh: Mesh, device: torch.device) -> None:
        self._axis, self._device = mesh.axis("data"), device
        self._clip = run.train.gradient_clip
        self._objective = Objective(model, run.train.z_loss)
        self._weights = dict(model.named_parameters())
        self._masters = _masters(self._weights, run.train.precision)
        self._gradients = Gradients(self._weights)
        self._optimizer = build_adamw(self._masters, run.optimizer)
        self._update: Update = CompiledUpdate() if run.train.compile else plain_update

    def train_step(self, micro_batches: Sequence[TorchBatch], learning_rate: float) -> StepResult:
        """One update; see the protocol."""
        sums = Sums(micro_batches, self._axis, self._device)
        self._gradients.clear()
        for batch in micro_batches:
            loss, nll = self._objective(batch)
            (loss * sums.scale).backward()
            sums.add(loss, nll)
        self._gradients.sum_over(self._axis)
        set_learning_rate(self._optimizer, learning_rate)
        norm = self._update(self._optimizer, self._masters, self._weights, self._gradients.sums, self._clip)
        self._optimizer_step += math.isfinite(norm)
        return sums.result(norm)

    def evaluate(self, batch: TorchBatch) -> tuple[float, int]:
        """Local sum and count; see the protocol."""
        with evaluation_mode(self._objective):
            return float(self._objective(batch)[1]), batch.counted()

    def state_names(self) -> list[str]:
        """See the protocol."""
        return list(self._weights)

    def state_shapes(self) -> dict[str, torch.Size]:
        """See the protocol."""
        return {name: weight.shape for name, weight in self._weights.items()}

    def read_state(self, name: str) -> dict[str, torch.Tensor]:
        """See the protocol."""
        master = self._masters[name]
        tensors: dict[str, torch.Tensor] = {"master": master}
        if self._optimizer_step:
            tensors |= {key: self._optimizer.state[master][key] for key in MOMENTS}
        return {key: tensor.detach().to("cpu", copy=True) for key, tensor in tensors.items()}

    def write_state(self, name: str, tensors: Mapping[str, torch.Tensor]) -> None:
        """See the protocol."""
        master = self._masters[name]
        with torch.no_grad():
            master.copy_(tensors["master"])
        refresh(self._weights[name], master)
        state = self._optimizer.state[master] = fresh_state(master, self._optimizer_step)
        for key in MOMENTS:
            if key in tensors:
                state[key].copy_(tensors[key])

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
