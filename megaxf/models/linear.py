"""Linear maps and tables whose weights start unset: others fill them, and to draw them twice is slow."""

from __future__ import annotations

import torch
from torch import nn

from megaxf.models.matmul import linear


class Linear(nn.Linear):
    """A linear map, weight [out, in]."""

    def reset_parameters(self) -> None:
        """Nothing."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[..., in] -> [..., out]"""
        return linear(x, self.weight, self.bias)

    joined: tuple[torch.Tensor, torch.Tensor | None] | None = None
    """Weight and bias of this map and of others in one, see `join`."""

    def beside(self, x: torch.Tensor, *others: Linear) -> list[torch.Tensor]:
        """This map and others of the same input, in one go: what they share is done once."""
        maps = (self, *others)
        if self.joined is None:
            return [each(x) for each in maps]
        return list(linear(x, *self.joined).split([each.out_features for each in maps], dim=-1))


def join(*maps: Linear) -> None:
    """Hold the weights of maps of the same input in one tensor, of which each keeps its rows; for inference only.

    `beside` of the first, with the others, is one product then: with few rows, to start one takes long. The layout in
    memory stays that of the weights.
    """
    weights = [each.weight.detach() for each in maps]
    weight = torch.cat(weights) if weights[0].is_contiguous() else torch.cat([w.t() for w in weights], dim=1).t()
    biases = [each.bias.detach() for each in maps if each.bias is not None]
    for each, rows in zip(maps, weight.split([each.out_features for each in maps]), strict=True):
        each.weight = nn.Parameter(rows, requires_grad=False)
    maps[0].joined = weight, torch.cat(biases) if biases else None


class Embedding(nn.Embedding):
    """A table [entries, hidden]."""

    def reset_parameters(self) -> None:
        """Nothing."""
