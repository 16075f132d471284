"""The model that is cheapest over its life: training plus the tokens that it will serve (arXiv 2401.00448).

A smaller model on more data reaches the same loss for more training FLOPs and saves 2 N for each token served.
"""

from __future__ import annotations

from math import exp, log
from typing import NamedTuple

from megaxf.plan.errors import PlanError
from megaxf.plan.laws.optimum import Allocation, allocation, for_loss
from megaxf.plan.laws.surface import Surface

FLOPS_PER_WEIGHT_SERVED = 2
"""A forward pass."""


class Lifetime(NamedTuple):
    """The best model for a loss and a demand, beside the one that is cheapest to train."""

    best: Allocation
    training_optimum: Allocation
    inference_tokens: float

    def flops(self, chosen: Allocation) -> float:
        """Training and inference FLOPs of a model."""
        return chosen.flops + FLOPS_PER_WEIGHT_SERVED * chosen.parameters * self.inference_tokens

    @property
    def saving(self) -> float:
        """Share of all FLOPs that the best model saves."""
        return 1 - self.flops(self.best) / self.flops(self.training_optimum)


def with_inference(form: Surface, loss: float, inference_tokens: float) -> Lifetime:
    """min over N of 6 N D + 2 N D_inf with L(N, D) = loss.

    Raises PlanError for a loss out of reach or a negative number of tokens.
    """
    from scipy.optimize import minimize_scalar

    if not 0 <= inference_tokens < float("inf"):
        raise PlanError(f"inference tokens = {inference_tokens:g} is not a number from 0 up")
    start = for_loss(form, loss)

    def at(log_parameters: float) -> Allocation:
        parameters = exp(log_parameters)
        return allocation(form, parameters, form.tokens_for_loss(parameters, loss))

    life = Lifetime(start, start, inference_tokens)
    floor, optimum = log(form.least_parameters(loss)), log(start.parameters)
    found = minimize_scalar(
        lambda place: life.flops(at(place)) / life.flops(start),
        bounds=(floor + 1e-9 * (optimum - floor), optimum),
        method="bounded",
        options={"xatol": 1e-10},
    )
    return life._replace(best=at(found.x))
