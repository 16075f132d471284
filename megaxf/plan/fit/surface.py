"""Approach 3: the surface L = E + A / N^alpha + B / D^beta through all results (arXiv 2203.15556, 2404.10102).

Minimises the sum over runs of Huber(ln L^ - ln L) with delta 1e-3, ln L^ by logsumexp of (a - alpha x, b - beta y, e).
Three things make it behave: x and y are ln N and ln D less their means, so that the five variables are of order one
and almost every start finds the optimum; the minimiser's stop is relative, so that sum or mean is the same; and many
starts are compared, so that a bad one shows.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np

from megaxf.plan.fit.minimise import Objective, minimise
from megaxf.plan.fit.runs import Points
from megaxf.plan.fit.variable_projection import project
from megaxf.plan.laws.files import Bootstraps
from megaxf.plan.laws.spread import surface_at
from megaxf.plan.laws.surface import Surface

DELTA = 1e-3
"""Of the Huber loss: residuals beyond a thousandth of the loss count linearly."""
EXPONENTS = (0.1, 0.3, 0.5, 0.8, 1.2)
IRREDUCIBLE = (0.1, 0.4, 0.7, 0.9)
"""Of the least loss, the part that E is at a start."""
OF_SIZE = (0.2, 0.5, 0.8)
"""Of the rest, the part that the term of N is at the mean."""
AGREE = 1e-6
"""Relative distance from the best objective at which another start counts as having found it."""
EXACT = 1e-8
"""Residuals of this size are none: on data without noise all starts below them agree."""
BLOCK = 2_000_000
"""Runs times problems at a time, to bound memory."""


@dataclass(frozen=True)
class SurfaceFit:
    """The best surface, how it was found, and how it varies."""

    form: Surface
    objective: float
    """The sum of the Huber losses."""
    start: str
    """The start that won, in words."""
    starts: int
    agreeing: int
    """Starts that ended at the same objective."""
    terms: Any
    """[5] at the means, as `spread.surface_at` takes them."""
    centre: tuple[float, float]
    """(N, D) at the means of their logarithms."""
    residuals: Any
    """[runs] ln L - ln L^: above 0 where a run is worse than the law."""


def fit(points: Points, weights: Any = 1.0) -> SurfaceFit:
    """The surface of least objective from all starts. weights: a factor of each run's loss, one for all or [runs]."""
    centre = _centre(points)
    weight = np.broadcast_to(np.asarray(weights, float), points.loss.shape)
    objective = _objective(points, centre, weight[None])
    starts, labels = _starts(points, centre)
    minima, values = minimise(objective, starts)
    # The first of those that agree, for the order within rounding errors is chance.
    agree = values <= values.min() * (1 + AGREE) + EXACT**2 * weight.sum()
    best = int(np.argmax(agree))
    # A fresh inverse Hessian takes the last digits.
    terms, value = (found[0] for found in minimise(objective, minima[best : best + 1]))
    form = Surface(*(float(constant) for constant in vars(surface_at(terms, *centre)).values()))
    residuals = np.log(points.loss) - np.log(form.loss(points.parameters, points.tokens))
    return SurfaceFit(form, float(value), labels[best], len(starts), int(agree.sum()), terms, centre, residuals)


def bootstrap(points: Points, found: SurfaceFit, count: int, seed: int) -> Bootstraps:
    """Fits to so many resamples of the runs with replacement, each started from the optimum."""
    size = len(points.loss)
    drawn = np.random.default_rng(seed).multinomial(size, np.full(size, 1 / size), size=count).astype(float)
    at_once = max(1, BLOCK // size)
    parts = []
    for first in range(0, count, at_once):
        weights = drawn[first : first + at_once]
        starts = np.tile(found.terms, (len(weights), 1))
        parts.append(minimise(_objective(points, found.centre, weights), starts)[0])
    return Bootstraps(*found.centre, np.concatenate(parts))


def huber(form: Surface, points: Points) -> float:
    """The objective of a given surface."""
    residual = np.log(form.loss(points.parameters, points.tokens)) - np.log(points.loss)
    inner = np.clip(residual, -DELTA, DELTA)
    return float(np.sum(inner * (residual - 0.5 * inner)))


def _centre(points: Points) -> tuple[float, float]:
    return float(np.exp(np.mean(np.log(points.parameters)))), float(np.exp(np.mean(np.log(points.tokens))))


def _objective(points: Points, centre: tuple[float, float], weights: Any) -> Objective:
    """For [problems or 1, runs] weights."""
    x, y = np.log(points.parameters / centre[0]), np.log(points.tokens / centre[1])
    target = np.log(points.loss)

    def value_and_gradient(terms: Any, problems: Any) -> tuple[Any, Any]:
        weight = weights if len(weights) == 1 else weights[problems]
        a, b, e, alpha, beta = terms.T[:, :, None]
        parts = np.stack([a - alpha * x, b - beta * y, np.broadcast_to(e, (len(terms), len(x)))])
        top = parts.max(axis=0)
        shares = np.exp(parts - top)
        total = shares.sum(axis=0)
        shares /= total
        residual = top + np.log(total) - target
        inner = np.clip(residual, -DELTA, DELTA)
        slope = weight * inner
        of_size, of_data, rest = (np.sum(slope * share, axis=1) for share in shares)
        along = [-(slope * shares[0]) @ x, -(slope * shares[1]) @ y]
        value = np.sum(slope * (residual - 0.5 * inner), axis=1)
        return value, np.stack([of_size, of_data, rest, *along], axis=1)

    return value_and_gradient


def _starts(points: Points, centre: tuple[float, float]) -> tuple[Any, list[str]]:
    """([starts, 5], a label of each): a grid, and what variable projection finds."""
    projected = project(points).form
    logs = np.log(
        [projected.A * centre[0] ** -projected.alpha, projected.B * centre[1] ** -projected.beta, projected.E]
    )
    rows, labels = [[*logs, projected.alpha, projected.beta]], ["variable projection"]
    least = float(points.loss.min())
    for alpha, beta, floor, size in product(EXPONENTS, EXPONENTS, IRREDUCIBLE, OF_SIZE):
        rest = least * (1 - floor)
        rows.append([*np.log([rest * size, rest * (1 - size), least * floor]), alpha, beta])
        labels.append(f"alpha {alpha}, beta {beta}, E {floor} of the least loss, N-term {size} of the rest")
    return np.array(rows), labels
