"""The gradient of all parameters as one flat fp32 buffer: summed over micro-batches and ranks, measured, clipped."""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch

from megaxf.parallel.collectives import sum_tensor
from megaxf.parallel.mesh import Axis

ALIGNMENT = 16
"""Elements: each parameter's gradient starts at a multiple of 64 bytes, as vector instructions like it."""
BUCKET = 2**25
"""Elements in one all-reduce, 128 MiB."""


class FlatGradient:
    """Makes `.grad` of fp32 parameters views into one buffer, which backward passes add to."""

    def __init__(self, parameters: Iterable[torch.nn.Parameter]) -> None:
        parameters = list(parameters)
        starts, end = [], 0
        for parameter in parameters:
            starts.append(end)
            end += -(-parameter.numel() // ALIGNMENT) * ALIGNMENT
        self._flat = torch.zeros(end, dtype=torch.float32, device=parameters[0].device)
        self._views = []
        for parameter, start in zip(parameters, starts, strict=True):
            parameter.grad = self._flat[start : start + parameter.numel()].view_as(parameter)
            self._views.append(parameter.grad)

    def zero(self) -> None:
        """Start a new sum."""
        self._flat.zero_()

    def sum_over(self, axis: Axis) -> None:
        """Sum over the ranks of the axis; collective."""
        for bucket in self._flat.split(BUCKET):
            sum_tensor(bucket, axis)

    def clip(self, largest: float) -> float:
        """The norm, infinite where it is not a number; the gradient is then scaled down to at most `largest`, unless
        that is 0.

        The 1e-6 is what DeepSpeed adds to the norm, so that both engines clip alike.
        """
        norm = float(torch.nn.utils.get_total_norm(self._views))
        if not math.isfinite(norm):
            return math.inf
        ratio = (norm + 1e-6) / largest if largest else 0.0
        if ratio > 1:
            self._flat.mul_(1 / ratio)
        return norm


def accumulate_into(master: torch.nn.Parameter, weight: torch.nn.Parameter) -> None:
    """After each backward pass, add the low-precision gradient of `weight` to the fp32 one of `master` and free it."""

    def move(parameter: torch.Tensor) -> None:
        assert master.grad is not None and parameter.grad is not None
        master.grad.add_(parameter.grad)
        parameter.grad = None

    weight.register_post_accumulate_grad_hook(move)
