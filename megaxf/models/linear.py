"""Linear maps and tables whose weights start unset: others fill them, and to draw them twice is slow."""

from __future__ import annotations

import torch
from torch import nn


class Linear(nn.Linear):
    """A linear map, weight [out, in]."""

    def reset_parameters(self) -> None:
        """Nothing."""

    def beside(self, x: torch.Tensor, *others: Linear) -> list[torch.Tensor]:
        """This map and others of the same input, in one go: what they share is done once."""
        return [linear(x) for linear in (self, *others)]


class Embedding(nn.Embedding):
    """A table [entries, hidden]."""

    def reset_parameters(self) -> None:
        """Nothing."""
