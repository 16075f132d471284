"""Linear maps and tables whose weights start unset: others fill them, and to draw them twice is slow."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

ONEDNN = torch.backends.mkldnn.is_available()
MANY_ROWS = 64
"""From so many on, a product takes the same time in whichever order."""
FEW_ROWS = {torch.float32: 16, torch.bfloat16: 1}
"""By dtype: from so many on, a CPU is faster in the other order."""
ONEDNN_ROWS, ONEDNN_NUMBERS = 4, 1 << 20
"""From so many rows, and numbers of a weight in fp32, oneDNN is faster than the library that torch takes (MKL)."""


def product(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """x weight^T + bias, [..., in] -> [..., out].

    Generation on a CPU has few rows, for which its libraries take up to half as long again with the weight, stored
    [out, in], as the second factor; so it is made the first one there. Large weights in fp32 are oneDNN's, which is
    up to twice as fast: the output matrix, above all.
    """
    rows = x.numel() // x.shape[-1]
    if x.device.type != "cpu" or torch.is_grad_enabled() or rows >= MANY_ROWS:
        return F.linear(x, weight, bias)
    if x.dtype == torch.float32 and rows >= ONEDNN_ROWS and weight.numel() >= ONEDNN_NUMBERS and ONEDNN:
        return torch.ops.mkldnn._linear_pointwise(x, weight, bias, "none", [], "")
    if rows < FEW_ROWS.get(x.dtype, MANY_ROWS):
        return F.linear(x, weight, bias)
    flat = x.reshape(rows, -1)
    y = torch.mv(weight, flat[0]) if rows == 1 else torch.mm(weight, flat.t()).t().contiguous()
    y = y.view(*x.shape[:-1], -1)
    return y if bias is None else y + bias


def columns(weight: torch.Tensor) -> torch.Tensor:
    """The same weight [out, in], laid out in memory as [in, out].

    A CPU reads it up to a quarter faster so where an fp32 product has one row, and slower where it has a few.
    """
    return weight.t().contiguous().t()


class Linear(nn.Linear):
    """A linear map, weight [out, in]."""

    def reset_parameters(self) -> None:
        """Nothing."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[..., in] -> [..., out]"""
        return product(x, self.weight, self.bias)

    joined: tuple[torch.Tensor, torch.Tensor | None] | None = None
    """Weight and bias of this map and of others in one, see `join`."""

    def beside(self, x: torch.Tensor, *others: Linear) -> list[torch.Tensor]:
        """This map and others of the same input, in one go: what they share is done once."""
        maps = (self, *others)
        if self.joined is None:
            return [linear(x) for linear in maps]
        return list(product(x, *self.joined).split([linear.out_features for linear in maps], dim=-1))


def join(*maps: Linear) -> None:
    """Hold the weights of maps of the same input in one tensor, of which each keeps its rows; for inference only.

    `beside` of the first, with the others, is one product then: with few rows, to start one takes long. The layout in
    memory stays that of the weights.
    """
    weights = [linear.weight.detach() for linear in maps]
    weight = torch.cat(weights) if weights[0].is_contiguous() else torch.cat([w.t() for w in weights], dim=1).t()
    biases = [linear.bias.detach() for linear in maps if linear.bias is not None]
    for linear, rows in zip(maps, weight.split([linear.out_features for linear in maps]), strict=True):
        linear.weight = nn.Parameter(rows, requires_grad=False)
    maps[0].joined = weight, torch.cat(biases) if biases else None


class Embedding(nn.Embedding):
    """A table [entries, hidden]."""

    def reset_parameters(self) -> None:
        """Nothing."""
