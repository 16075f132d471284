"""Two forms of a law: a loss surface over parameters and tokens, and a power law of compute.

N is parameters, D training tokens, C = 6 N D training FLOPs, L nats per token. Every method takes and gives numbers or
NumPy arrays; constants that are arrays make a whole sample of laws, of which each gives its own answer.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

FLOPS_PER_WEIGHT = 6
"""Training FLOPs of a parameter and token: two forward, four backward."""


@dataclass(frozen=True)
class Surface:
    """L(N, D) = E + A / N^alpha + B / D^beta (approach 3 of arXiv 2203.15556)."""

    E: Any
    A: Any
    B: Any
    alpha: Any
    beta: Any

    def loss(self, parameters: Any, tokens: Any) -> Any:
        """L(N, D)."""
        return self.E + self.A / parameters**self.alpha + self.B / tokens**self.beta

    @property
    def exponent(self) -> Any:
        """a of N* ~ C^a. Also the share of the reducible loss that the N-term has at the optimum."""
        return self.beta / (self.alpha + self.beta)

    @property
    def scale(self) -> Any:
        """G of N* = G (C/6)^a."""
        return (self.alpha * self.A / (self.beta * self.B)) ** (1 / (self.alpha + self.beta))

    def parameters(self, flops: Any) -> Any:
        """N* of the least loss for C."""
        return self.scale * (flops / FLOPS_PER_WEIGHT) ** self.exponent

    def flops_for_parameters(self, parameters: Any) -> Any:
        """The C at which N is optimal."""
        return FLOPS_PER_WEIGHT * (parameters / self.scale) ** (1 / self.exponent)

    def flops_for_tokens(self, tokens: Any) -> Any:
        """The C at which D is optimal."""
        return FLOPS_PER_WEIGHT * (tokens * self.scale) ** (1 / (1 - self.exponent))

    def flops_for_loss(self, loss: Any) -> Any:
        """The least C that reaches a loss above E: both terms fall as C^-(alpha beta / (alpha + beta))."""
        reducible = self.A * self.scale**-self.alpha + self.B * self.scale**self.beta
        return FLOPS_PER_WEIGHT * (reducible / (loss - self.E)) ** (1 / self.alpha + 1 / self.beta)

    def tokens_for_loss(self, parameters: Any, loss: Any) -> Any:
        """The D with which a model of N reaches a loss; N is above `least_parameters`."""
        return (self.B / (loss - self.E - self.A / parameters**self.alpha)) ** (1 / self.beta)

    def least_parameters(self, loss: Any) -> Any:
        """The N that would reach a loss with unlimited data."""
        return (self.A / (loss - self.E)) ** (1 / self.alpha)

    def data_factor(self, size_factor: Any) -> Any:
        """k_D: with k times the optimal N, the same loss takes k_D times the optimal D, at every C.

        Infinite where k is at or below `least_size_factor`.
        """
        left = 1 - self.exponent * np.asarray(size_factor) ** -self.alpha
        with np.errstate(divide="ignore"):
            factor = (np.maximum(left, 0) / (1 - self.exponent)) ** (-1 / self.beta)
        return factor[()]

    @property
    def least_size_factor(self) -> Any:
        """The k below which no amount of data reaches the loss."""
        return self.exponent ** (1 / self.alpha)


@dataclass(frozen=True)
class PowerLaw:
    """N* = coefficient * C^exponent; D* is C / (6 N*), so that the budget is met. No loss."""

    coefficient: float
    exponent: float

    @classmethod
    def of_tokens(cls, coefficient: float, exponent: float) -> PowerLaw:
        """From a law D* = coefficient * C^exponent."""
        return cls(1 / (FLOPS_PER_WEIGHT * coefficient), 1 - exponent)

    @classmethod
    def of_ratio(cls, tokens_per_parameter: float) -> PowerLaw:
        """From a fixed D / N."""
        return cls((FLOPS_PER_WEIGHT * tokens_per_parameter) ** -0.5, 0.5)

    def parameters(self, flops: Any) -> Any:
        """N* for C."""
        return self.coefficient * flops**self.exponent

    def flops_for_parameters(self, parameters: Any) -> Any:
        """The C at which N is optimal."""
        return (parameters / self.coefficient) ** (1 / self.exponent)

    def flops_for_tokens(self, tokens: Any) -> Any:
        """The C at which D is optimal."""
        return (FLOPS_PER_WEIGHT * self.coefficient * tokens) ** (1 / (1 - self.exponent))
