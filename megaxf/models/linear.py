"""Linear maps and tables whose weights start unset: others fill them, and to draw them twice is slow."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

MANY_ROWS = 64
"""From so many on, a product takes the same time in whichever order."""
FEW_ROWS = {torch.float32: 8, torch.bfloat16: 1}
"""By dtype: from so many on, a CPU is faster in the other order."""


def product(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """x weight^T + bias, [..., in] -> [..., out].

    Generation on a CPU has few rows, for which its libraries take up to half as long again with the weight, stored
    [out, in], as the second factor. So it is made the first one there.
    """
    rows = x.numel() // x.shape[-1]
    least = FEW_ROWS.get(x.dtype, MANY_ROWS) if x.device.type == "cpu" and not torch.is_grad_enabled() else MANY_ROWS
    if not least <= rows < MANY_ROWS:
        return F.linear(x, weight, bias)
    flat = x.reshape(rows, -1)
    y = torch.mv(weight, flat[0]) if rows == 1 else torch.mm(weight, flat.t()).t().contiguous()
    y = y.view(*x.shape[:-1], -1)
    return y if bias is None else y + bias


class Linear(nn.Linear):
    """A linear map, weight [out, in]."""

    def reset_parameters(self) -> None:
        """Nothing."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[..., in] -> [..., out]"""
        return product(x, self.weight, self.bias)

    def beside(self, x: torch.Tensor, *others: Linear) -> list[torch.Tensor]:
        """This map and others of the same input, in one go: what they share is done once."""
        return [linear(x) for linear in (self, *others)]


class Embedding(nn.Embedding):
    """A table [entries, hidden]."""

    def reset_parameters(self) -> None:
        """Nothing."""
