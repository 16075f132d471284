"""One AdamW step on gradients at hand, in two forms with one result: torch's kernels, or compiled into one pass.

Both keep their state in a torch.optim.AdamW, so that it is read, written and continued alike.
"""

from __future__ import annotations

import ctypes
import math
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
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
    optimizer is limited by memory, and each pass that is left out is time. The parameters of a layer share a call,
    which takes as long as a pass over a small one; layers that are alike share what is compiled.
    """

    def __init__(self, *settings: Any) -> None:
        super().__init__(*settings)
        self._square_sums: Callable[..., list[torch.Tensor]] = torch.compile(_square_sums, dynamic=True)
        self._adamw: Callable[..., None] = torch.compile(_adamw, dynamic=True)
        self._layers = _by_layer(self._masters)
        self._compiled = False

    def __call__(self, gradients: Tensors) -> float:
        """See Update."""
        if self._compiled:
            return self._step(gradients)
        return_freed_memory()  # of the layers and the loss, before the moments are made
        length = self._step(gradients)
        return_freed_memory()
        self._compiled = True
        return length

    @torch.no_grad()
    def _step(self, gradients: Tensors) -> float:
        flat = {name: gradient.reshape(-1) for name, gradient in gradients.items()}
        squares: dict[str, torch.Tensor] = {}
        for names in self._layers:
            squares |= zip(names, self._square_sums([flat[name] for name in names]), strict=True)
        length = self._norm.of(squares)
        if math.isfinite(length):
            numbers = self._count_and_numbers(clip_factor(length, self._clip))
            for names in self._layers:
                self._adamw([self._parts(name, flat[name], numbers) for name in names])
        return length

    def _count_and_numbers(self, factor: float) -> dict[int, torch.Tensor]:
        """Count the step; what it needs to know of each master, by its id."""
        numbers: dict[int, torch.Tensor] = {}
        for group in self._optimizer.param_groups:
            for master in group["params"]:
                self._optimizer.state[master] = self._optimizer.state[master] or fresh_state(master)
            steps = [self._optimizer.state[master]["step"] for master in group["params"]]
            torch._foreach_add_(steps, 1)
            of_all = _numbers(group, int(steps[0]), factor, group["params"][0].device)
            numbers |= {id(master): of_all for master in group["params"]}
        return numbers

    def _parts(self, name: str, gradient: torch.Tensor, numbers: Mapping[int, torch.Tensor]) -> tuple[Any, ...]:
        """What `_adamw` takes of a parameter."""
        master, weight = self._masters[name], self._weights[name]
        moments = [self._optimizer.state[master][key].view(-1) for key in MOMENTS]
        return (
            master.view(-1), *moments, gradient, None if weight is master else weight.view(-1), numbers[id(master)]
        )  # fmt: skip


def return_freed_memory() -> None:
    """To the system: compilation leaves some 100 MB of it in the heap of glibc, which keeps it unless it is asked."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim:
        trim(0)


def _by_layer(names: Iterable[str]) -> list[list[str]]:
    """The names of each layer, which begin alike up to a number, and those of no layer."""
    layers: dict[str, list[str]] = {}
    for name in names:
        layer = re.match(r".*?\.\d+\.", name)
        layers.setdefault(layer[0] if layer else "", []).append(name)
    return list(layers.values())


def _square_sums(gradients: list[torch.Tensor]) -> list[torch.Tensor]:
    return [gradient.float().square().sum() for gradient in gradients]


def _numbers(group: Mapping[str, Any], step: int, factor: float, device: torch.device) -> torch.Tensor:
    """What changes from step to step, as a tensor: as Python numbers each change would compile anew."""
    rate, (beta1, beta2), decay = group["lr"], group["betas"], group["weight_decay"]
    step_size, root = rate / (1 - beta1**step), math.sqrt(1 - beta2**step)
    return torch.tensor(
        [factor, 1 - rate * decay, 1 - beta1, beta2, 1 - beta2, step_size, root, group["eps"]], device=device
    )


def _adamw(parameters: list[tuple[torch.Tensor, ...]]) -> None:
    """AdamW (arXiv 1711.05101) on flat tensors, in torch's order of operations.

    parameters: of each its master, moments, gradient, low-precision weight if there is one, and `_numbers`.
    """
    for master, exp_avg, exp_avg_sq, gradient, weight, numbers in parameters:
        factor, shrink, one_minus_beta1, beta2, one_minus_beta2, step_size, root, eps = numbers.unbind()
        gradient = gradient.float() * factor
        exp_avg.add_((gradient - exp_avg) * one_minus_beta1)
        exp_avg_sq.mul_(beta2).add_(gradient * gradient * one_minus_beta2)
        master.mul_(shrink).sub_(step_size * exp_avg / (exp_avg_sq.sqrt() / root + eps))
        if weight is not None:
            weight.copy_(master)
