"""A cross-check with no bad starts: least squares on the loss itself, in which only alpha and beta have to be searched.

For given exponents E, A and B follow by non-negative least squares. The loss is not approach 3's (a square, not a
logarithm's Huber), so the two answers differ by what the choice of loss is worth.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from megaxf.plan.fit.runs import Points
from megaxf.plan.laws.surface import Surface

GRID = np.exp(np.linspace(np.log(0.05), np.log(2.0), 16))
BOUNDS = (float(np.log(1e-3)), float(np.log(10)))
"""Of the logarithms of the exponents."""
LEAST_TERM = 1e-12
"""Relative size under which a term has vanished: keeps logarithms finite."""


class Projection(NamedTuple):
    """The surface, and the sum of the squared residuals."""

    form: Surface
    squares: float


def project(points: Points) -> Projection:
    """The surface of least squares: a grid of exponents, and Nelder-Mead from its best."""
    from scipy.optimize import minimize

    x, y = np.log(points.parameters), np.log(points.tokens)
    x0, y0 = x.mean(), y.mean()

    def solve(exponents: Any) -> tuple[Any, float]:
        """([E, A, B at the means], norm of the residual)."""
        from scipy.optimize import nnls

        columns = [np.ones_like(x), np.exp(-exponents[0] * (x - x0)), np.exp(-exponents[1] * (y - y0))]
        return nnls(np.stack(columns, axis=1), points.loss)

    start = min(((alpha, beta) for alpha in GRID for beta in GRID), key=lambda pair: solve(pair)[1])
    found = minimize(
        lambda logs: solve(np.exp(logs))[1],
        np.log(start),
        method="Nelder-Mead",
        bounds=2 * [BOUNDS],
        options={"xatol": 1e-10, "fatol": 1e-14, "maxiter": 2000},
    )
    alpha, beta = (float(exponent) for exponent in np.exp(found.x))
    (floor, size, data), norm = solve((alpha, beta))
    floor, size, data = (float(max(term, LEAST_TERM * points.loss.min())) for term in (floor, size, data))
    form = Surface(floor, size * float(np.exp(alpha * x0)), data * float(np.exp(beta * y0)), alpha, beta)
    return Projection(form, float(norm) ** 2)
