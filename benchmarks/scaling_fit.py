"""What does fitting a scaling law cost, and does it find the optimum? megaxf plan fit beside the published recipe.

    python benchmarks/scaling_fit.py [runs.csv]

The recipe (arXiv 2203.15556, and the code of arXiv 2404.10102): scipy's L-BFGS-B at its defaults from a grid of starts
over ln A, ln B, ln E, alpha, beta, one start at a time, and a fit for each bootstrap. It is timed on a share of its
4,500 starts and 1,000 bootstraps and counted up. Without a file: 240 made-up runs of the law `epoch`, 0.5 % of noise.
"""

from __future__ import annotations

import sys
from itertools import product
from pathlib import Path
from time import process_time
from typing import Any

import numpy as np
from scipy.optimize import minimize

from megaxf.plan.fit import surface
from megaxf.plan.fit.runs import Points, read_csv, results
from megaxf.plan.laws.table import surface as published

STARTS, BOOTSTRAPS, SHARE = 4500, 1000, 100
"""Of the recipe, and one in how many is run."""


def main() -> None:
    """Fit both ways, print seconds of one core, objectives and the ratio."""
    points = results(read_csv(Path(sys.argv[1]))[0]) if sys.argv[1:] else made_up()
    began = process_time()
    found = surface.fit(points)
    fitted = process_time()
    surface.bootstrap(points, found, BOOTSTRAPS, seed=0)
    ours = (fitted - began, process_time() - fitted)

    grid = list(
        product((0, 5, 10, 15, 20, 25), (0, 5, 10, 15, 20, 25), (-1, -0.5, 0, 0.5, 1), *2 * [(0, 0.5, 1, 1.5, 2)])
    )
    chosen = np.random.default_rng(0).choice(len(grid), STARTS // SHARE, replace=False)
    began = process_time()
    ends = [recipe(points, np.array(grid[index], float)) for index in chosen]
    per_start = (process_time() - began) / len(ends)
    best = min(ends, key=lambda end: end.fun)
    weights = np.random.default_rng(0).multinomial(
        len(points.loss), np.full(len(points.loss), 1 / len(points.loss)), 10
    )
    began = process_time()
    for weight in weights:
        recipe(points, best.x, weight)
    theirs = (STARTS * per_start, BOOTSTRAPS * (process_time() - began) / len(weights))

    reached = sum(end.fun <= found.objective * (1 + 1e-3) for end in ends)
    print(f"{len(points.loss)} runs; seconds of one core\n")
    print(f"{'':<28}{'fit':>9}{'1,000 bootstraps':>18}{'objective':>15}   starts within 0.1 % of the best")
    print(f"{'megaxf':<28}{ours[0]:>9.2f}{ours[1]:>18.2f}{found.objective:>15.9f}   {found.agreeing} of {found.starts}")
    print(
        f"{'scipy, at its defaults':<28}{theirs[0]:>9.1f}{theirs[1]:>18.1f}{best.fun:>15.9f}   {reached} of {len(ends)}"
    )
    print(f"\nratio of the whole: {sum(theirs) / sum(ours):.0f}")


def made_up() -> Points:
    """Runs of the law `epoch`."""
    law, random = published("epoch"), np.random.default_rng(0)
    flops = np.repeat(np.geomspace(6e18, 3e21, 12), 20)
    sizes = law.parameters(flops) * np.tile(np.geomspace(1 / 6, 6, 20), 12)
    tokens = flops / 6 / sizes
    loss = law.loss(sizes, tokens) * np.exp(0.005 * random.standard_normal(len(flops)))
    return Points(("",) * len(flops), sizes, tokens, loss)


def recipe(points: Points, start: Any, weights: Any = 1.0) -> Any:
    """One fit by scipy, with the analytic gradient, on the sum of the Huber losses."""
    x, y, target = np.log(points.parameters), np.log(points.tokens), np.log(points.loss)

    def value_and_gradient(terms: Any) -> tuple[float, Any]:
        a, b, e, alpha, beta = terms
        parts = np.stack([a - alpha * x, b - beta * y, np.full_like(x, e)])
        total = np.logaddexp.reduce(parts)
        inner = np.clip(total - target, -surface.DELTA, surface.DELTA)
        slope = weights * inner * np.exp(parts - total)
        value = np.sum(weights * inner * (total - target - 0.5 * inner))
        return float(value), np.array([*slope.sum(axis=1), -slope[0] @ x, -slope[1] @ y])

    return minimize(value_and_gradient, start, jac=True, method="L-BFGS-B")


if __name__ == "__main__":
    main()
