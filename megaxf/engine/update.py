"""One AdamW step on gradients at hand, in two forms with one result: torch's kernels, or compiled into one pass.

Both keep their state in a torch.optim.AdamW, so that it is read, written and continued alike.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import Any

import torch

from megaxf.engine.gradient import Norm, clip_factor
from megaxf.engine.optimizer import fresh_state
from megaxf.engine.protocol import MOMENTS

Tensors = Mapping[str, torch.Tensor]
Parameters = Mapping[str, torch.nn.Parameter]


class Update(ABC):
    """A step on fp32 masters, brought over to the weights that the model computes with."""

    def __init__(
        self, optimizer: torch.optim.AdamW, masters: Parameters, weights: Parameters, norm: Norm, clip: float
    ) -> None:
        """clip: the largest norm of the gradient, 0 for none."""
        self._optimizer, self._masters, self._weights = optimizer, masters, weights
        self._norm, self._clip = norm, clip

    @abstractmethod
    def __call__(self, gradients: Tensors) -> float:
        """One step. gradients: by parameter name, in fp32 or the weights' precision.

        Returns the norm before clipping, infinite where a gradient is not finite: then nothing is changed.
        """


class FusedUpdate(Update):
    """The step in torch's fused kernel."""

    def __call__(self, gradients: Tensors) -> float:
        """See Update."""
        wide = {name: gradients[name].float() for name in self._masters}
        length = self._norm.of(
            {name: torch.linalg.vector_norm(gradient, dtype=torch.float64).square() for name, gradient in wide.items()}
        )
        if math.isfinite(length):
            factor = clip_factor(length, self._clip)
            for name, master in self._masters.items():
                master.grad = wide[name].mul_(factor) if factor < 1 else wide[name]
            self._optimizer.step()
            for name, weight in self._weights.items():
                refresh(weight, self._masters[name])
        for master in self._masters.values():
            master.grad = None
        return length


def refresh(weight: torch.nn.Parameter, master: torch.nn.Parameter) -> None:
    """Bring the weight that the model computes with up to its master."""
    if weight is not master:
        with torch.no_grad():
            weight.copy_(master)


class CompiledUpdate(Update):
    """The step as one compiled loop over each parameter.

    It reads the gradient in the precision that it has and writes the low-precision weight in the same pass: an
    optimizer is limited by memory, and each pass that is left out is time.
    """

    _square_sum: Callable[..., torch.Tensor]
    _adamw: Callable[..., None]

    def __init__(self, *settings: Any) -> None:
        super().__init__(*settings)
        self._square_sum = torch.compile(_square_sum, dynamic=True)
        self._adamw = torch.compile(_adamw, dynamic=True)

    @torch.no_grad()
    def __call__(self, gradients: Tensors) -> float:
        """See Update."""
        flat = {name: gradient.reshape(-1) for name, gradient in gradients.items()}
        length = self._norm.of({name: self._square_sum(gradient) for name, gradient in flat.items()})
        if not math.isfinite(length):
            return length
        names = {id(master): name for name, master in self._masters.items()}
        for group in self._optimizer.param_groups:
            for master in group["params"]:
                name = names[id(master)]
                state = self._optimizer.state[master] = self._optimizer.state[master] or fresh_state(master)
                state["step"] += 1
                numbers = _numbers(group, int(state["step"]), clip_factor(length, self._clip), master.device)
                weight = None if self._weights[name] is master else self._weights[name].view(-1)
                moments = [state[key].view(-1) for key in MOMENTS]
                self._adamw(master.view(-1), *moments, flat[name], weight, numbers)
        return length


def _square_sum(gradient: torch.Tensor) -> torch.Tensor:
    return gradient.float().square().sum()


def _numbers(group: Mapping[str, Any], step: int, factor: float, device: torch.device) -> torch.Tensor:
    """What changes from step to step, as a tensor: as Python numbers each change would compile anew."""
    rate, (beta1, beta2), decay = group["lr"], group["betas"], group["weight_decay"]
    step_size, root = rate / (1 - beta1**step), math.sqrt(1 - beta2**step)
    return torch.tensor(
        [factor, 1 - rate * decay, 1 - beta1, beta2, 1 - beta2, step_size, root, group["eps"]], device=device
    )


def _adamw(
    master: torch.Tensor,
    exp_avg: torch.Tensor,
    exp_avg_sq: torch.Tensor,
    gradient: torch.Tensor,
    weight: torch.Tensor | None,
    numbers: torch.Tensor,
) -> None:
    """AdamW (arXiv 1711.05101) on flat tensors, in torch's order of operations."""
    factor, shrink, one_minus_beta1, beta2, one_minus_beta2, step_size, root, eps = numbers.unbind()
    gradient = gradient.float() * factor
    exp_avg.add_((gradient - exp_avg) * one_minus_beta1)
    exp_avg_sq.mul_(beta2).add_(gradient * gradient * one_minus_beta2)
    master.mul_(shrink).sub_(step_size * exp_avg / (exp_avg_sq.sqrt() / root + eps))
    if weight is not None:
        weight.copy_(master)
