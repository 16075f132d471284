"""Ways to stretch rotary embeddings over longer contexts, each with its settings and its formula.

`apply` takes the plain frequencies [head_dim / 2] in radians per position and gives the stretched ones, together with
the factor that cosine and sine are multiplied by.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

if TYPE_CHECKING:
    import torch

Stretch = Annotated[float, Field(ge=1, allow_inf_nan=False)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Length = Annotated[int, Field(gt=0, lt=2**31)]


def plain_frequencies(head_dim: int, theta: float, device: torch.device | str = "cpu") -> torch.Tensor:
    """theta^(-2i/d) for i = 0 .. d/2 - 1, fp32."""
    import torch

    return 1.0 / theta ** (torch.arange(0, head_dim, 2, dtype=torch.float32, device=device) / head_dim)


class Scaling(BaseModel):
    """What all kinds share."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    factor: Stretch
    """How many times longer the context becomes."""


class LinearScaling(Scaling):
    """Position interpolation (arXiv 2306.15595): positions divided by the factor."""

    type: Literal["linear"]

    def apply(self, plain: torch.Tensor, head_dim: int, theta: float) -> tuple[torch.Tensor, float]:
        """See the module."""
        return plain / self.factor, 1.0


class NtkScaling(Scaling):
    """NTK-aware base theta * factor^(d/(d-2)): the slowest pair is stretched by the factor, the fastest not at all."""

    type: Literal["ntk"]

    def apply(self, plain: torch.Tensor, head_dim: int, theta: float) -> tuple[torch.Tensor, float]:
        """See the module."""
        return plain_frequencies(head_dim, self.theta(head_dim, theta), plain.device), 1.0

    def theta(self, head_dim: int, plain: float) -> float:
        """The base that takes the place of the plain one."""
        return plain if head_dim == 2 else plain * self.factor ** (head_dim / (head_dim - 2))


class YarnScaling(Scaling):
    """YaRN (arXiv 2309.00071): pairs that turn often are kept, slow ones interpolated, a ramp between them."""

    type: Literal["yarn"]
    original_max_position_embeddings: Length
    beta_fast: Positive = 32.0
    """Turns over the original context from which on a pair is kept."""
    beta_slow: Positive = 1.0
    """Turns over the original context below which a pair is fully interpolated."""
    attention_factor: Positive | None = None
    """Factor on cosine and sine; by default 0.1 ln(factor) + 1, or the quotient that the two mscales give."""
    mscale: Positive | None = None
    mscale_all_dim: Positive | None = None
    truncate: bool = True
    """Round the ends of the ramp outwards to whole pairs."""

    @model_validator(mode="after")
    def _consistent(self) -> YarnScaling:
        key = "model.rope_scaling"
        if self.beta_fast <= self.beta_slow:
            raise ValueError(
                f"{key}.beta_fast = {self.beta_fast} must be above {key}.beta_slow = {self.beta_slow}: "
                "fast pairs turn more often"
            )
        if (self.mscale is None) != (self.mscale_all_dim is None):
            raise ValueError(f"{key}.mscale and {key}.mscale_all_dim work as a pair; give both or neither")
        if self.mscale is not None and self.attention_factor is not None:
            raise ValueError(f"{key}.mscale has no effect beside {key}.attention_factor; remove one")
        return self

    def apply(self, plain: torch.Tensor, head_dim: int, theta: float) -> tuple[torch.Tensor, float]:
        """See the module."""
        import torch

        low, high = self._pair(self.beta_fast, head_dim, theta), self._pair(self.beta_slow, head_dim, theta)
        if self.truncate:
            low, high = math.floor(low), math.ceil(high)
        low, high = max(low, 0), min(high, head_dim - 1)
        pairs = torch.arange(head_dim // 2, dtype=torch.float32, device=plain.device)
        interpolated = ((pairs - low) / (high - low or 0.001)).clamp(0, 1)
        return plain / self.factor * interpolated + plain * (1 - interpolated), self.temperature

    def _pair(self, turns: float, head_dim: int, theta: float) -> float:
        """Index of the pair that turns so many times over the original context."""
        length = self.original_max_position_embeddings
        return head_dim * math.log(length / (turns * 2 * math.pi)) / (2 * math.log(theta))

    @property
    def temperature(self) -> float:
        """What cosine and sine are multiplied by."""
        if self.attention_factor is not None:
            return self.attention_factor
        growth = 0.1 * math.log(self.factor)
        if self.mscale is not None and self.mscale_all_dim is not None:
            return (self.mscale * growth + 1) / (self.mscale_all_dim * growth + 1)
        return growth + 1


class Llama3Scaling(Scaling):
    """Llama 3.1 (arXiv 2407.21783): short waves kept, long waves divided by the factor, a blend between the two."""

    type: Literal["llama3"]
    original_max_position_embeddings: Length
    low_freq_factor: Positive
    """Waves longer than original / low_freq_factor are divided by the factor."""
    high_freq_factor: Positive
    """Waves shorter than original / high_freq_factor are kept."""

    @model_validator(mode="after")
    def _consistent(self) -> Llama3Scaling:
        if self.high_freq_factor <= self.low_freq_factor:
            raise ValueError(
                f"model.rope_scaling.high_freq_factor = {self.high_freq_factor} must be above "
                f"model.rope_scaling.low_freq_factor = {self.low_freq_factor}: the blend lies between them"
            )
        return self

    def apply(self, plain: torch.Tensor, head_dim: int, theta: float) -> tuple[torch.Tensor, float]:
        """See the module."""
        waves_in_context = self.original_max_position_embeddings * plain / (2 * math.pi)
        kept = (waves_in_context - self.low_freq_factor) / (self.high_freq_factor - self.low_freq_factor)
        kept = kept.clamp(0, 1)
        return (1 - kept) * plain / self.factor + kept * plain, 1.0


RopeScaling = Annotated[
    LinearScaling | NtkScaling | YarnScaling | Llama3Scaling,
    Field(discriminator="type"),
]
