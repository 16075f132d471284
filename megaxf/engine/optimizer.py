"""AdamW (arXiv 1711.05101) with weight decay on matrices only.

Matrices decay, the embedding table and the head among them; norm weights and biases, which have one dimension, do not.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from megaxf.config import Optimizer
from megaxf.engine.loss_scale import LossScale
from megaxf.engine.protocol import MOMENTS
from megaxf.parallel.apply import Placed

Shapes = Mapping[str, torch.Size]


def parameter_groups(
    parameters: Mapping[str, torch.nn.Parameter], weight_decay: float, shapes: Shapes | None = None
) -> list[dict[str, Any]]:
    """The parameters in model order, those that decay first; no group is empty.

    shapes: of the whole parameters by their names, where what a rank holds of them is flat (ZeRO 3).
    """
    shapes = shapes or {name: parameter.shape for name, parameter in parameters.items()}
    decaying = [parameter for name, parameter in parameters.items() if len(shapes[name]) > 1]
    others = [parameter for name, parameter in parameters.items() if len(shapes[name]) <= 1]
    groups = [{"params": decaying, "weight_decay": weight_decay}, {"params": others, "weight_decay": 0.0}]
    return [group for group in groups if group["params"]]


def build_adamw(
    parameters: Mapping[str, torch.nn.Parameter], settings: Optimizer, shapes: Shapes | None = None
) -> torch.optim.AdamW:
    """torch's AdamW in its fused form, on `parameter_groups`; the learning rate is set before each step."""
    return torch.optim.AdamW(
        parameter_groups(parameters, settings.weight_decay, shapes),
        lr=settings.learning_rate,
        betas=settings.betas,
        eps=settings.eps,
        fused=True,
    )


def fresh_state(parameter: torch.Tensor, step: int = 0) -> dict[str, torch.Tensor]:
    """What AdamW keeps of a parameter, as it makes it itself in the first step: nothing seen yet."""
    counter = torch.tensor(float(step), device=parameter.device)
    return {"step": counter, **{key: torch.zeros_like(parameter, requires_grad=False) for key in MOMENTS}}


class CountsUpdates:
    """The part of an engine that knows how many updates its AdamW has made, and what else is counted."""

    _optimizer: torch.optim.AdamW
    _placed: Placed
    _optimizer_step = 0
    _loss_scale: LossScale | None = None

    @property
    def placed(self) -> Placed:
        """See the protocol."""
        return self._placed

    @property
    def optimizer_step(self) -> int:
        """Updates made so far."""
        return self._optimizer_step

    def counters(self) -> dict[str, float]:
        """See the protocol."""
        return {"optimizer_step": self._optimizer_step} | (self._loss_scale.counters() if self._loss_scale else {})

    def loaded(self, counters: Mapping[str, float]) -> None:
        """See the protocol."""
        self._optimizer_step = int(counters.get("optimizer_step", 0))
        for state in self._optimizer.state.values():
            state["step"].fill_(self._optimizer_step)
        if self._loss_scale:
            self._loss_scale.go_on(counters)
        self._refresh()

    def _refresh(self) -> None:
        """Bring the weights that the model computes with up to the masters; collective."""
        raise NotImplementedError


def set_learning_rate(optimizer: torch.optim.Optimizer, learning_rate: float) -> None:
    """The rate of every group from the next step on."""
    for group in optimizer.param_groups:
        group["lr"] = learning_rate
