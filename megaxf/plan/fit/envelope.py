"""Approach 1: at each compute the run with the least loss so far, and a power law through their sizes."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from megaxf.plan.errors import PlanError
from megaxf.plan.fit.isoflop import PowerFit, power_fit
from megaxf.plan.fit.runs import Curve
from megaxf.plan.laws.surface import FLOPS_PER_WEIGHT

PLACES = 1500
"""Values of compute, evenly in the logarithm, as in the paper."""
WINNERS = 3
"""Sizes that have to win somewhere."""


class Envelope(NamedTuple):
    """The curves on a common grid of compute."""

    flops: Any
    """[places]"""
    sizes: Any
    """[runs]"""
    losses: Any
    """[runs, places], infinite outside of a run."""


def envelope(curves: list[Curve]) -> Envelope:
    """The runs that have a curve, on a grid. Raises PlanError where fewer than three sizes have one."""
    whole = [curve for curve in curves if len(curve.tokens) > 1]
    sizes = np.array([curve.parameters for curve in whole])
    if len(np.unique(sizes)) < WINNERS:
        raise PlanError(
            f"{len(np.unique(sizes))} sizes have a curve, at least {WINNERS} are needed: give each run's losses on the "
            "way (the column run, or folders of megaxf runs)"
        )
    compute = [np.log(FLOPS_PER_WEIGHT * curve.parameters * np.asarray(curve.tokens, float)) for curve in whole]
    places = np.linspace(min(logs[0] for logs in compute), max(logs[-1] for logs in compute), PLACES)
    rows = [
        np.interp(places, logs, curve.losses, left=np.inf, right=np.inf)
        for logs, curve in zip(compute, whole, strict=True)
    ]
    return Envelope(np.exp(places), sizes, np.array(rows))


def fit(found: Envelope) -> PowerFit:
    """The power law through the winners. Raises PlanError where too few sizes win."""
    law = _law(found, np.ones(len(found.sizes), bool))
    if law is None:
        raise PlanError(
            f"fewer than {WINNERS} sizes are best at some compute where both smaller and larger ones ran; train more "
            "sizes over the same range of compute"
        )
    return law


def bootstrap(found: Envelope, count: int, seed: int) -> list[PowerFit]:
    """The power laws of resamples of the runs; without those in which too few sizes win."""
    generator = np.random.default_rng(seed)
    runs = len(found.sizes)
    drawn = (np.isin(np.arange(runs), generator.integers(runs, size=runs)) for _ in range(count))
    return [law for present in drawn if (law := _law(found, present))]


def winners(found: Envelope, present: Any) -> tuple[Any, Any]:
    """(compute, size of the best run there), where it is neither the smallest nor the largest that ran there.

    At an end of the sizes the best run says only that the optimum lies on or beyond it.
    """
    losses = np.where(present[:, None], found.losses, np.inf)
    size = found.sizes[np.argmin(losses, axis=0)]
    ran = np.isfinite(losses)
    column = found.sizes[:, None]
    inside = (size > np.where(ran, column, np.inf).min(axis=0)) & (size < np.where(ran, column, -np.inf).max(axis=0))
    return found.flops[inside], size[inside]


def _law(found: Envelope, present: Any) -> PowerFit | None:
    flops, sizes = winners(found, present)
    return power_fit(flops, sizes) if len(np.unique(sizes)) >= WINNERS else None
