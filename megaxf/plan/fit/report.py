"""All three approaches on one set of runs, their intervals, cross-checks and outliers; as values and as a page."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import numpy as np

from megaxf.plan.errors import PlanError
from megaxf.plan.fit import envelope, identify, isoflop, surface
from megaxf.plan.fit.envelope import Envelope
from megaxf.plan.fit.isoflop import Budget, PowerFit
from megaxf.plan.fit.runs import Curve, Points, once, results
from megaxf.plan.fit.surface import SurfaceFit
from megaxf.plan.fit.variable_projection import Projection, project
from megaxf.plan.laws.files import Bootstraps
from megaxf.plan.laws.spread import LEVEL, interval
from megaxf.plan.laws.surface import FLOPS_PER_WEIGHT
from megaxf.plan.laws.table import Law

OUTLIER = 5.0
"""Robust standard deviations (1.4826 times the median of |residual|) beyond which a run is named."""
LEAST_BOOTSTRAPS = 10
"""Of which one lies beyond either end of an interval."""
AHEAD = (1, 10, 100, 1000)
"""Times the largest compute at hand: where predictions are made by default."""


class Approach(NamedTuple):
    """A power law by approach 1 or 2, or the reason why there is none."""

    law: PowerFit | None
    sample: list[PowerFit]
    refused: str | None


@dataclass(frozen=True)
class Report:
    """What was found."""

    points: Points
    left_out: int
    """Rows that were marked as outliers."""
    repeated: int
    """Runs that stood there again, with the same loss."""
    surface: SurfaceFit
    sample: Bootstraps
    projection: Projection
    outliers: Any
    """Indices of points, the largest residual first."""
    without_outliers: SurfaceFit | None
    """The fit to the others, None where there is no outlier."""
    budgets: list[Budget]
    isoflop: Approach
    envelope: Envelope | None
    frontier: Approach
    flops: list[float]
    """Where predictions are made."""
    counts: str
    """What the parameters are."""

    def law(self, name: str) -> Law:
        """The surface with its spread, as a law to be asked."""
        form = self.surface.form
        low, _, high = interval(self.sample.sample().exponent)
        published = f"a {form.exponent:.4f} ({low:.4f}-{high:.4f}, {LEVEL:.0%} of {len(self.sample.terms)} bootstraps)"
        source = f"megaxf plan fit: approach 3 on {len(self.points.loss)} runs"
        return Law(name, form, source, self.counts, published, self.sample)


def fit(
    curves: Sequence[Curve],
    left_out: int = 0,
    bootstraps: int = 1000,
    seed: int = 42,
    flops: Sequence[float] = (),
    counts: str = "total",
) -> Report:
    """Fit all that the runs allow.

    flops: where to predict, by default from the largest compute of the runs to a thousand times it. counts: what the
    parameters of the runs are. Raises PlanError where approach 3 cannot identify the law; the other two may refuse.
    Likewise for numbers that are none.
    """
    _check(bootstraps, seed, flops)
    given, curves = len(curves), once(curves)
    points = results(curves)
    identify.check_runs(points)
    found = surface.fit(points)
    identify.check_fit(found)
    sample = surface.bootstrap(points, found, bootstraps, seed)
    identify.check_bootstraps(sample)
    outliers = _outliers(found.residuals)
    kept = np.delete(np.arange(len(points.loss)), outliers)
    groups = isoflop.budgets(points)
    return Report(
        points,
        left_out,
        given - len(curves),
        found,
        sample,
        project(points),
        outliers,
        surface.fit(points.take(kept)) if len(outliers) else None,
        groups,
        _approach(lambda: isoflop.fit(groups), lambda: isoflop.bootstrap(groups, bootstraps, seed)),
        *_frontier(curves, bootstraps, seed),
        [float(value) for value in flops] or [float(points.flops.max()) * times for times in AHEAD],
        counts,
    )


def _check(bootstraps: int, seed: int, flops: Sequence[float]) -> None:
    if bootstraps < LEAST_BOOTSTRAPS:
        raise PlanError(f"--bootstraps = {bootstraps} is too few for an interval; use {LEAST_BOOTSTRAPS} or more")
    if seed < 0:
        raise PlanError(f"--seed = {seed} is below 0; use 0 or more")
    for value in flops:
        if not 0 < value < float("inf"):
            raise PlanError(f"--flops = {value:g} is not a number above 0")


def _frontier(curves: Sequence[Curve], bootstraps: int, seed: int) -> tuple[Envelope | None, Approach]:
    try:
        found = envelope.envelope(list(curves))
    except PlanError as error:
        return None, Approach(None, [], str(error))
    return found, _approach(lambda: envelope.fit(found), lambda: envelope.bootstrap(found, bootstraps, seed))


def _approach(fitted: Callable[[], PowerFit], sample: Callable[[], list[PowerFit]]) -> Approach:
    try:
        return Approach(fitted(), sample(), None)
    except PlanError as error:
        return Approach(None, [], str(error))


def _outliers(residuals: Any) -> Any:
    """Indices of the runs that lie far off, by falling distance."""
    size = np.abs(residuals)
    # Below a relative error of 1e-6 a run is exact, however exact the others are.
    far = np.flatnonzero(size > max(OUTLIER * 1.4826 * float(np.median(size)), 1e-6))
    return far[np.argsort(-size[far])]


def values(report: Report) -> dict[str, Any]:
    """The report as plain values for JSON."""
    found, form, sample = report.surface, report.surface.form, report.sample.sample()
    spans = {name: _span(constants) for name, constants in vars(sample).items()}
    law = {
        "constants": asdict(form),
        "exponent": form.exponent,
        "interval": spans | {"exponent": _span(sample.exponent)},
    }
    start = {"won": found.start, "tried": found.starts, "agreeing": found.agreeing}
    check = report.projection
    return {
        "runs": len(report.points.loss),
        "left_out": report.left_out,
        "repeated": report.repeated,
        "counts": report.counts,
        "bootstraps": len(report.sample.terms),
        "level": LEVEL,
        "approach3": law | {"objective": found.objective, "huber_delta": surface.DELTA, "start": start},
        "approach2": _power(report.isoflop)
        | {"budgets": [_budget(budget) for budget in report.budgets]}
        | _bias(report),
        "approach1": _power(report.frontier),
        "variable_projection": {
            "constants": asdict(check.form),
            "exponent": check.form.exponent,
            "sum_of_squares": check.squares,
        },
        "outliers": [_outlier(report, index) for index in report.outliers],
        "without_outliers": report.without_outliers and _plain(report.without_outliers),
        "predictions": [_prediction(report, flops) for flops in report.flops],
    }


def _plain(found: SurfaceFit) -> dict[str, Any]:
    return {"constants": asdict(found.form), "exponent": found.form.exponent, "objective": found.objective}


def _span(predictions: Any) -> list[float]:
    low, _, high = interval(predictions)
    return [low, high]


def _power(approach: Approach) -> dict[str, Any]:
    if approach.law is None:
        return {"refused": approach.refused}
    exponents = [law.exponent for law in approach.sample]
    return asdict(approach.law) | {"interval": _span(exponents) if exponents else None}


def _bias(report: Report) -> dict[str, Any]:
    """What the parabola does on the surface of approach 3."""
    if report.isoflop.law is None:
        return {}
    ratios, exponent = isoflop.bias(report.budgets, report.surface.form)
    return {"bias": {"size": [min(ratios), max(ratios)], "exponent": exponent}}


def _budget(budget: Budget) -> dict[str, Any]:
    return {"flops": budget.flops, "runs": len(budget.points.loss), "optimum": budget.optimum}


def _outlier(report: Report, index: int) -> dict[str, Any]:
    points = report.points
    numbers = {"params": points.parameters[index], "tokens": points.tokens[index], "loss": points.loss[index]}
    residual = float(report.surface.residuals[index])
    return {"run": points.names[index], "residual": residual} | {name: float(value) for name, value in numbers.items()}


def _prediction(report: Report, flops: float) -> dict[str, Any]:
    """The optimum at a budget by each approach: approach 3 with intervals of size, data, ratio and loss."""
    sample, form = report.sample.sample(), report.surface.form
    size, sizes = form.parameters(flops), sample.parameters(flops)
    data, data_sample = flops / FLOPS_PER_WEIGHT / size, flops / FLOPS_PER_WEIGHT / sizes
    answers: Iterable[tuple[str, Any, Any]] = (
        ("parameters", size, sizes),
        ("tokens", data, data_sample),
        ("tokens_per_parameter", data / size, data_sample / sizes),
        ("loss", form.loss(size, data), sample.loss(sizes, data_sample)),
    )
    found: dict[str, Any] = {"flops": flops}
    for name, value, predictions in answers:
        found[name] = {"value": float(value), "interval": _span(predictions)}
    for name, approach in (("approach2", report.isoflop), ("approach1", report.frontier)):
        if approach.law:
            spread = _span([law.parameters(flops) for law in approach.sample]) if approach.sample else None
            found[f"parameters_by_{name}"] = {"value": approach.law.parameters(flops), "interval": spread}
    return found
