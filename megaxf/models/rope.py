"""Rotary position embedding (arXiv 2104.09864) in the half-split layout: dimension i turns with dimension i + d/2.

Angles are made in fp32 for every forward pass from Python numbers. Nothing is kept in a buffer, so casting the model to
bf16, whose 8 bits cannot tell position 256 from 257, does not reach them.
"""

from __future__ import annotations

import torch

from megaxf.models.rope_scaling import RopeScaling, plain_frequencies


class Rope:
    """The rotation of a model: how fast each pair of dimensions turns."""

    def __init__(self, head_dim: int, theta: float, scaling: RopeScaling | None) -> None:
        self.head_dim, self.theta, self.scaling = head_dim, theta, scaling

    def frequencies(self, device: torch.device | str = "cpu") -> tuple[torch.Tensor, float]:
        """Radians per position [head_dim / 2] in fp32, and the factor on cosine and sine (1 except for YaRN)."""
        plain = plain_frequencies(self.head_dim, self.theta, device)
        return (plain, 1.0) if self.scaling is None else self.scaling.apply(plain, self.head_dim, self.theta)

    def tables(self, positions: torch.Tensor, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
        """Cosine and sine for positions [batch, seq], as `rotate` takes them: two tensors [batch, seq, 1, ...].

        [..., head_dim / 2] in training. Without gradients [..., head_dim], cosine twice and sine with both signs, with
        which a rotation is fewer calls; they are short there, while training keeps those of several micro-batches.
        """
        frequencies, factor = self.frequencies(positions.device)
        angles = positions.float()[..., None, None] * frequencies
        cos, sin = (angles.cos() * factor).to(dtype), (angles.sin() * factor).to(dtype)
        if torch.is_grad_enabled():
            return cos, sin
        return torch.cat((cos, cos), dim=-1), torch.cat((-sin, sin), dim=-1)


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    """Turn x [batch, seq, heads, head_dim] by the tables of its positions; the same bits with either kind."""
    first, second = x.chunk(2, dim=-1)
    if cos.shape[-1] == x.shape[-1]:
        return x * cos + torch.cat((second, first), dim=-1) * sin
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)
