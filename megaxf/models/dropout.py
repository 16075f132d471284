"""Dropout (arXiv 1207.0580) whose mask is a function of where an element stands, not of a generator's state.

An element is known by (key of the token, site, channel). The key of a token is a function of (seed, sample, place), so
the same elements fall out on whichever rank the token is computed, in whichever order, and again when the backward
pass repeats the forward pass: there is no random state that could be kept or lost.
"""

from __future__ import annotations

import torch
from torch import nn


class Dropout(nn.Module):
    """In training, sets elements to 0 with probability `rate` and divides the others by 1 - rate."""

    def __init__(self, rate: float, site: int) -> None:
        """site: a number that no other dropout of the model has."""
        super().__init__()
        self.rate = rate
        # A tensor: a number would be a constant to torch.compile, and each layer compiled by itself. On the CPU, since
        # a model may be built without storage.
        self.site = torch.tensor(site << 32, device="cpu")

    def forward(self, x: torch.Tensor, keys: torch.Tensor | None) -> torch.Tensor:
        """x: [batch, seq, hidden]; keys: int64 [batch, seq] from `token_keys`, needed in training where rate > 0."""
        if not self.training or self.rate == 0:
            return x
        if keys is None:
            raise ValueError("dropout in training needs the samples of the rows: Model.forward(tokens, samples=...)")
        channels = torch.arange(x.shape[-1], device=x.device)
        bits = mix(keys[..., None] + mix(channels + self.site))
        kept = (bits >> 32 & (2**31 - 1)) >= int(self.rate * 2**31)
        return torch.where(kept, x / (1 - self.rate), 0.0)


def token_keys(seed: int, samples: torch.Tensor, places: torch.Tensor) -> torch.Tensor:
    """The keys [batch, seq] of tokens.

    samples: [batch], the places of the rows in the order of the data; places: [seq], those of the tokens in their row.
    """
    return mix(mix(samples + mix(torch.full_like(samples, seed)))[:, None] + places)


def mix(x: torch.Tensor) -> torch.Tensor:
    """int64 -> int64 in which every bit depends on every bit of x (splitmix64's finaliser, by S. Vigna)."""
    x = (x ^ (x >> 30 & (2**34 - 1))) * -4658895280553007687  # 0xBF58476D1CE4E5B9
    x = (x ^ (x >> 27 & (2**37 - 1))) * -7723592293110705685  # 0x94D049BB133111EB
    return x ^ (x >> 31 & (2**33 - 1))
