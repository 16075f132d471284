"""What repeated data is worth, and the best model where unique data is short (arXiv 2305.16264).

D' = U_D + U_D R_D* (1 - exp(-R_D / R_D*)) with R_D repetitions beyond the first epoch, and likewise for parameters in
excess of what the unique tokens call for; the loss is the surface at (N', D').
"""

from __future__ import annotations

from math import exp, log
from typing import Any, NamedTuple

import numpy as np

from megaxf.plan.errors import PlanError
from megaxf.plan.laws.optimum import Allocation, for_flops
from megaxf.plan.laws.surface import FLOPS_PER_WEIGHT, Surface

TOKEN_DECAY = 15.387756
"""R_D*: repeats after which a token is worth 1/e of a new one."""
PARAMETER_DECAY = 5.309743
"""R_N*: the same for parameters."""


class Repeated(NamedTuple):
    """The best training on a limited set of tokens, beside the one with unlimited data."""

    best: Allocation
    unlimited: Allocation
    unique_tokens: float

    @property
    def epochs(self) -> float:
        """Times that the data is seen; below 1 where it is not all needed."""
        return self.best.tokens / self.unique_tokens


def worth(amount: Any, unique: Any, decay: float) -> Any:
    """What an amount is worth of which only a part is unique, in units of unique ones."""
    excess = np.maximum(amount / unique - 1, 0)
    return np.minimum(amount, unique) * (1 + decay * -np.expm1(-excess / decay))


def loss(form: Surface, parameters: Any, tokens: Any, unique_tokens: float) -> Any:
    """L(N', D') of N parameters on D tokens, of which U are unique."""
    unique = np.minimum(unique_tokens, tokens)
    called_for = form.parameters(form.flops_for_tokens(unique))
    useful = worth(parameters, np.minimum(called_for, parameters), PARAMETER_DECAY)
    return form.loss(useful, worth(tokens, unique, TOKEN_DECAY))


def for_unique_tokens(form: Surface, flops: float, unique_tokens: float) -> Repeated:
    """The model of least loss for C where only so many tokens are unique. Raises PlanError for numbers not > 0."""
    from scipy.optimize import minimize_scalar

    unlimited = for_flops(form, flops)
    if not 0 < unique_tokens < float("inf"):
        raise PlanError(f"unique tokens = {unique_tokens:g} is not a number above 0")

    def at(log_parameters: Any) -> Any:
        parameters = np.exp(log_parameters)
        return loss(form, parameters, flops / FLOPS_PER_WEIGHT / parameters, unique_tokens)

    grid = log(unlimited.parameters) + np.linspace(-12, 12, 481)
    place = grid[np.argmin(at(grid))]
    step = grid[1] - grid[0]
    found = minimize_scalar(at, bounds=(place - step, place + step), method="bounded", options={"xatol": 1e-10})
    parameters = exp(found.x)
    best = Allocation(parameters, flops / FLOPS_PER_WEIGHT / parameters, float(found.fun))
    return Repeated(best, unlimited, unique_tokens)
