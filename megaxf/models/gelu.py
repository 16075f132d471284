"""The GELU (arXiv 1606.08415) and the MLP around it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
import torch.nn.functional as F
from torch import nn

from megaxf.models.decoder import keep_nothing
from megaxf.models.gpt_config import Activation

ACTIVATIONS: dict[Activation, Callable[[torch.Tensor], torch.Tensor]] = {
    "gelu": F.gelu,
    "gelu_new": partial(F.gelu, approximate="tanh"),
    "gelu_fast": partial(F.gelu, approximate="tanh"),
}


class GeluMLP(nn.Module):
    """down(gelu(up(x))); a family gives the two maps their names."""

    def __init__(self, activation: Activation, recompute: bool) -> None:
        """recompute: the output of the GELU is not kept for the backward pass."""
        super().__init__()
        self.activation, self.recompute = ACTIVATIONS[activation], recompute

    def through(self, x: torch.Tensor, up: nn.Module, down: nn.Module) -> torch.Tensor:
        """[batch, seq, hidden] -> [batch, seq, hidden]"""
        wide = up(x)
        return keep_nothing(self._close, wide, down) if self.recompute else self._close(wide, down)

    def _close(self, wide: torch.Tensor, down: nn.Module) -> torch.Tensor:
        narrow: torch.Tensor = down(self.activation(wide))
        return narrow
