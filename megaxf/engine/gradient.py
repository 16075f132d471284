"""The gradient of every parameter: summed over micro-batches and ranks, then measured for clipping."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping

import torch

from megaxf.parallel.collectives import sum_tensor
from megaxf.parallel.mesh import Axis

BUCKET = 2**25
"""Elements in one all-reduce, 128 MiB."""


class Gradients:
    """Takes each parameter's gradient as soon as a backward pass has made it.

    A sum is held in fp32; a gradient that has nothing to be added to stays in the precision that it was made in.
    """

    def __init__(self, weights: Mapping[str, torch.nn.Parameter]) -> None:
        self.sums: dict[str, torch.Tensor] = {}
        for name, weight in weights.items():
            weight.register_post_accumulate_grad_hook(lambda weight, name=name: self._take(name, weight))

    def _take(self, name: str, weight: torch.Tensor) -> None:
        gradient, weight.grad = weight.grad, None
        assert gradient is not None
        held = self.sums.get(name)
        self.sums[name] = gradient if held is None else held.float().add_(gradient)

    def clear(self) -> None:
        """Start a new sum."""
        self.sums.clear()

    def sum_over(self, axis: Axis) -> None:
        """Sum over the ranks of the axis, in fp32; collective."""
        if axis.size == 1:
            return
        for names in self._buckets():
            flat = torch.cat([self.sums[name].flatten().float() for name in names])
            parts = sum_tensor(flat, axis).split([self.sums[name].numel() for name in names])
            for name, part in zip(names, parts, strict=True):
                self.sums[name] = part.view_as(self.sums[name])

    def _buckets(self) -> Iterator[list[str]]:
        """The names in one order on all ranks, so many that a message has at most BUCKET elements where it can."""
        names: list[str] = []
        elements = 0
        for name in sorted(self.sums):
            size = self.sums[name].numel()
            if names and elements + size > BUCKET:
                yield names
                names, elements = [], 0
            names.append(name)
            elements += size
        yield names


class Norm:
    """The length of a gradient that is spread over ranks, each element counted once."""

    def __init__(self, counted: Collection[str], axis: Axis) -> None:
        """counted: the names that this rank counts. axis: the ranks that hold the gradient together."""
        self._counted, self._axis = counted, axis

    def of(self, square_sums: Mapping[str, torch.Tensor]) -> float:
        """From the sum of squares of each parameter's gradient on this rank; infinite where it is not finite."""
        own = torch.stack([value.double() for name, value in square_sums.items() if name in self._counted] or [_ZERO])
        total = math.sqrt(float(sum_tensor(own.sum(), self._axis)))
        return total if math.isfinite(total) else math.inf


_ZERO = torch.zeros((), dtype=torch.float64)


def clip_factor(norm: float, largest: float) -> float:
    """What a gradient of that norm is multiplied by to be no longer than `largest`; 0 means no limit.

    The 1e-6 is what DeepSpeed adds to the norm, so that both engines clip alike.
    """
    ratio = (norm + 1e-6) / largest if largest else 0.0
    return 1 / ratio if ratio > 1 and math.isfinite(ratio) else 1.0
