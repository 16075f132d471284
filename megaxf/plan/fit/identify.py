"""Can these runs tell the five constants apart? Refusals with their reason, before and after the fit."""

from __future__ import annotations

from typing import Any

import numpy as np

from megaxf.plan.errors import PlanError
from megaxf.plan.fit.runs import Points
from megaxf.plan.fit.surface import SurfaceFit
from megaxf.plan.laws.files import Bootstraps
from megaxf.plan.laws.spread import interval

CONSTANTS = 5
LEAST_RUNS = 8
"""Different pairs of params and tokens: of six, resamples repeat so many that an interval of 80 % holds 60 %."""
REMEDY = (
    "add a budget ten times the largest, and more sizes (megaxf plan ladder --flops, --budgets, --sizes), or leave out "
    "runs that went wrong (outlier = 1 in the table)"
)
LEAST_SPAN = 2.0
"""Largest over least size, and likewise of tokens."""
LEAST_WIDTH = 0.05
"""Of the narrower direction of the runs in (ln N, ln D) over the wider."""
LEAST_SHARE = 1e-3
"""Of a term in the loss at the mean run."""
WIDEST = 0.5
"""Of the interval of the exponent a, which lies between 0 and 1."""


def check_runs(points: Points) -> None:
    """Raises PlanError where no fit could find the law, with all reasons."""
    reasons = [*_count(points), *(_extent(points) if len(points.loss) else [])]
    if reasons:
        raise PlanError("the runs do not identify a law:" + "".join(f"\n  - {reason}" for reason in reasons))


def check_fit(found: SurfaceFit) -> None:
    """Raises PlanError where a term of the fit has vanished."""
    a, b, e, alpha, beta = found.terms
    shares = np.exp([a, b, e]) / np.sum(np.exp([a, b, e]))
    names = ("A / N^alpha", "B / D^beta", "E")
    gone = [name for name, share in zip(names, shares, strict=True) if share < LEAST_SHARE]
    gone += [f"{name} = {value:.3g}" for name, value in (("alpha", alpha), ("beta", beta)) if not 0.01 < value < 4]
    if gone:
        raise PlanError(
            f"the runs do not identify a law: the best surface has no sensible {' and '.join(gone)}: sizes or compute "
            f"span too little for the noise of the losses; {REMEDY}"
        )


def check_bootstraps(sample: Bootstraps) -> None:
    """Raises PlanError where the resamples disagree about all that a law is asked for."""
    exponents: Any = sample.sample().exponent
    low, _, high = interval(exponents)
    if not high - low < WIDEST:
        raise PlanError(
            f"the runs do not identify a law: resampled, they put the exponent of N* ~ C^a between {low:.2f} and "
            f"{high:.2f}; {REMEDY}"
        )


def _count(points: Points) -> list[str]:
    """A run again is no other run, though its loss tells of the noise."""
    count = len(points.loss)
    different = len(np.unique([points.parameters, points.tokens], axis=1).T)
    if different >= LEAST_RUNS:
        return []
    runs = f"{count} runs" if different == count else f"{count} runs of {different} different params and tokens"
    return [
        f"{runs} cannot determine {CONSTANTS} constants; train at least two budgets of five sizes each (megaxf plan "
        f"ladder); {LEAST_RUNS} runs that differ are the least"
    ]


def _extent(points: Points) -> list[str]:
    """Of sizes and tokens, and of both together."""
    reasons = [*_spans("params", points.parameters), *_spans("tokens", points.tokens)]
    logs = np.log([points.parameters, points.tokens])
    widths = np.linalg.svd(logs - logs.mean(axis=1, keepdims=True), compute_uv=False)
    if not reasons and widths[1] < LEAST_WIDTH * widths[0]:
        slope = np.polyfit(logs[0], logs[1], 1)[0]
        reasons.append(
            f"all runs lie along one line, D ~ N^{slope:.2f}: what N and what D did to the loss cannot be told apart; "
            "at one compute train several sizes"
        )
    return reasons


def _spans(name: str, values: Any) -> list[str]:
    span = float(values.max() / values.min())
    distinct = len(np.unique(values))
    if distinct < 3:
        return [f"{name} has {distinct} different values; a power law with an offset needs at least 3"]
    return (
        [] if span >= LEAST_SPAN else [f"{name} spans a factor of {span:.2f} only; at least {LEAST_SPAN:g} is needed"]
    )
