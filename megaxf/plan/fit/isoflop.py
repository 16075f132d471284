"""Approach 2: at each budget a parabola in ln N through the losses, and a power law through their minima.

The valley of a surface is a parabola only where alpha = beta: else the minima are off, by more the wider the sizes
(arXiv 2603.22339). `bias` says by how much on the surface that approach 3 found.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from megaxf.plan.errors import PlanError
from megaxf.plan.fit.runs import Points
from megaxf.plan.laws.surface import FLOPS_PER_WEIGHT, Surface

SIZES = 5
"""Sizes that a budget needs."""
BUDGET_WIDTH = 1.25
"""Largest over least compute of runs that count as one budget."""


@dataclass(frozen=True)
class Budget:
    """The runs of one budget and their parabola."""

    points: Points
    flops: float
    """The geometric mean."""
    parabola: Any
    """[3] of loss = p0 + p1 u + p2 u^2, u = ln N - ln of the mean N."""
    optimum: float | None
    """N of the least loss; None where the parabola has none within the sizes."""

    @property
    def middle(self) -> float:
        """The geometric mean of the sizes."""
        return float(np.exp(np.mean(np.log(self.points.parameters))))


@dataclass(frozen=True)
class PowerFit:
    """N* = coefficient C^exponent."""

    exponent: float
    coefficient: float

    def parameters(self, flops: Any) -> Any:
        """N* for C."""
        return self.coefficient * flops**self.exponent


def budgets(points: Points) -> list[Budget]:
    """The budgets that have at least five sizes, by rising compute: the fullest windows of compute first."""
    left, found = np.argsort(points.flops, kind="stable"), []
    while len(left) >= SIZES:
        logs = np.log(points.flops[left])
        ends = np.searchsorted(logs, logs + np.log(BUDGET_WIDTH))
        first = int(np.argmax(ends - np.arange(len(left))))
        chosen = left[first : ends[first]]
        if len(chosen) < SIZES:
            break
        left = np.delete(left, slice(first, ends[first]))
        group = points.take(chosen)
        if len(np.unique(group.parameters)) >= SIZES:
            found.append(_budget(group))
    return sorted(found, key=lambda budget: budget.flops)


def fit(groups: list[Budget]) -> PowerFit:
    """The power law through the minima. Raises PlanError where fewer than two budgets have one."""
    usable = [budget for budget in groups if budget.optimum]
    if len(usable) < 2:
        raise PlanError(
            f"{len(usable)} of {len(groups)} budgets have {SIZES} sizes on both sides of a minimum; at least two are "
            "needed: train smaller and larger models at the same compute"
        )
    return power_fit([budget.flops for budget in usable], [budget.optimum for budget in usable])


def power_fit(flops: Any, sizes: Any) -> PowerFit:
    """Least squares in logarithms."""
    exponent, constant = np.polyfit(np.log(flops), np.log(np.asarray(sizes, float)), 1)
    return PowerFit(float(exponent), float(np.exp(constant)))


def bootstrap(groups: list[Budget], count: int, seed: int) -> list[PowerFit]:
    """The power laws of resamples of each budget's runs; without those that leave fewer than two minima."""
    generator = np.random.default_rng(seed)
    usable = [budget for budget in groups if budget.optimum]
    minima = np.stack([_minima(budget, generator, count) for budget in usable], axis=1)
    flops, fits = np.array([budget.flops for budget in usable]), []
    for row in minima:
        seen = np.isfinite(row)
        if seen.sum() >= 2:
            fits.append(power_fit(flops[seen], row[seen]))
    return fits


def bias(groups: list[Budget], form: Surface) -> tuple[list[float], float]:
    """(N of the parabola over the true optimum at each budget with one, error of the exponent) on a known surface.

    The runs are those at hand, with the losses that the surface gives them.
    """
    usable = [budget for budget in groups if budget.optimum]
    ratios = []
    for budget in usable:
        sizes = budget.points.parameters
        losses = form.loss(sizes, budget.flops / FLOPS_PER_WEIGHT / sizes)
        parabola = _parabola(np.log(sizes / budget.middle), losses, np.ones((1, len(sizes))))[0]
        vertex = budget.middle * np.exp(-parabola[1] / (2 * parabola[2]))
        ratios.append(float(vertex / form.parameters(budget.flops)))
    flops = [budget.flops for budget in usable]
    return ratios, power_fit(flops, ratios).exponent


def _budget(group: Points) -> Budget:
    flops = float(np.exp(np.mean(np.log(group.flops))))
    place = np.log(group.parameters)
    middle = place.mean()
    parabola = _parabola(place - middle, group.loss, np.ones((1, len(place))))[0]
    vertex = _vertex(parabola[None], place - middle)[0]
    return Budget(group, flops, parabola, float(np.exp(middle + vertex)) if np.isfinite(vertex) else None)


def _parabola(place: Any, loss: Any, weights: Any) -> Any:
    """[problems, 3] coefficients of weighted least squares for [problems, runs] weights."""
    powers = np.stack([np.ones_like(place), place, place**2])
    normal = np.einsum("pn,in,jn->pij", weights, powers, powers)
    right = np.einsum("pn,in,n->pi", weights, powers, loss)
    return np.einsum("pij,pj->pi", np.linalg.pinv(normal, hermitian=True), right)


def _vertex(parabolas: Any, place: Any) -> Any:
    """[problems] places of the minima, NaN where there is none or it lies beyond the sizes."""
    bend = parabolas[:, 2]
    vertex = np.where(bend > 0, -parabolas[:, 1] / (2 * np.where(bend > 0, bend, 1)), np.nan)
    return np.where((vertex > place.min()) & (vertex < place.max()), vertex, np.nan)


def _minima(budget: Budget, generator: np.random.Generator, count: int) -> Any:
    """[count] optimal N of resamples of one budget."""
    size = len(budget.points.loss)
    weights = generator.multinomial(size, np.full(size, 1 / size), size=count).astype(float)
    place = np.log(budget.points.parameters / budget.middle)
    return budget.middle * np.exp(_vertex(_parabola(place, budget.points.loss, weights), place))
