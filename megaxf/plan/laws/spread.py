"""How sure a loss surface is: a sample of surfaces, of which every prediction takes its interval."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from megaxf.plan.laws.surface import Surface

LEVEL = 0.8
"""Share of the sample within an interval; a tenth lies on either side."""


class Interval(NamedTuple):
    """The 10th percentile, the median and the 90th."""

    low: float
    median: float
    high: float


class Spread(NamedTuple):
    """A normal distribution of (ln A / N0^alpha, ln B / D0^beta, ln E, alpha, beta).

    At (N0, D0) in the middle of the data the terms are well determined, while A and B themselves are not: they lie at
    N = 1 and D = 1, and are known with errors of 26 % and 60 %.
    """

    parameters: float
    """N0."""
    tokens: float
    """D0."""
    mean: tuple[float, ...]
    covariance: tuple[tuple[float, ...], ...]

    def sample(self, count: int = 4000, seed: int = 0) -> Surface:
        """So many surfaces, as one with arrays of constants [count]."""
        draws = np.random.default_rng(seed).multivariate_normal(self.mean, self.covariance, count)
        return surface_at(draws, self.parameters, self.tokens)


def surface_at(terms: Any, parameters: float, tokens: float) -> Surface:
    """Surfaces from [..., 5] of (ln A / N0^alpha, ln B / D0^beta, ln E, alpha, beta)."""
    a, b, e, alpha, beta = np.moveaxis(np.asarray(terms), -1, 0)
    with np.errstate(over="ignore"):  # of an exponent that has run away
        return Surface(
            np.exp(e), np.exp(a + alpha * np.log(parameters)), np.exp(b + beta * np.log(tokens)), alpha, beta
        )


def interval(predictions: Any) -> Interval:
    """The interval of what the surfaces of a sample predict [count]; infinite where many of them have no answer."""
    tail = 50 * (1 - LEVEL)
    # Without interpolation, which would meet infinity minus infinity.
    ends = np.percentile(predictions, [tail, 50, 100 - tail], method="nearest")
    return Interval(*(float(value) for value in ends))


EPOCH_SPREAD = Spread(
    2e9,
    2e10,
    (-1.264470, -1.044459, 0.596747, 0.346257, 0.369607),
    (
        (4.887468e-3, -1.644384e-3, -5.247646e-4, -1.025201e-3, 4.263664e-4),
        (-1.644384e-3, 4.556326e-3, -5.537711e-4, 3.045305e-4, -1.344632e-3),
        (-5.247646e-4, -5.537711e-4, 1.910561e-4, 1.166197e-4, 1.721915e-4),
        (-1.025201e-3, 3.045305e-4, 1.166197e-4, 2.190168e-4, -8.000635e-5),
        (4.263664e-4, -1.344632e-3, 1.721915e-4, -8.000635e-5, 4.073619e-4),
    ),
)
"""4,000 bootstraps of the 240 points of Besiroglu et al. (arXiv 2404.10102), made by `megaxf plan fit`."""
