"""BFGS on many small problems at once: the same steps as one at a time, in arrays.

The stopping rule is relative, so that scaling the objectives (a mean in place of a sum) changes nothing; an absolute
one has stopped published fits early (arXiv 2404.10102).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

Objective = Callable[[Any, Any], tuple[Any, Any]]
"""([some, n] places, [some] indices of their problems) -> ([some] values, [some, n] gradients)."""

LONGEST_STEP = 2.0
"""In the Euclidean norm, for variables of order one."""
SUFFICIENT, SHRINK, TRIALS = 1e-4, 0.4, 30
"""Of the line search: share of the promised fall, factor between trials, number of them."""
STALLED = 3
"""Iterations in a row without a relative fall of `tolerance` that end a problem."""


def minimise(objective: Objective, starts: Any, tolerance: float = 1e-12, iterations: int = 500) -> tuple[Any, Any]:
    """([problems, n] minima, [problems] values there) from [problems, n] starts."""
    count = len(starts)
    minima, values = np.array(starts, float), np.empty(count)
    live, place = np.arange(count), np.array(starts, float)
    value, gradient = objective(place, live)
    inverse, stalled = _first_inverse(gradient, 0.1), np.zeros(count, int)
    for _ in range(iterations):
        new, new_value, new_gradient, found = _search(objective, live, place, value, gradient, inverse)
        inverse = _update(inverse, new - place, new_gradient - gradient)
        inverse[~found] = _first_inverse(gradient[~found], 1e-3)
        stalled = np.where(value - new_value <= tolerance * np.abs(value), stalled + 1, 0)
        place, value, gradient = new, new_value, new_gradient
        going = stalled < STALLED
        minima[live], values[live] = place, value
        live, place, value, gradient = live[going], place[going], value[going], gradient[going]
        inverse, stalled = inverse[going], stalled[going]
        if not live.size:
            break
    return minima, values


def _search(objective: Objective, live: Any, place: Any, value: Any, gradient: Any, inverse: Any) -> tuple[Any, ...]:
    """(place, value, gradient, whether it fell) after a backtracking line search of each problem."""
    step = -np.einsum("pij,pj->pi", inverse, gradient)
    step *= np.minimum(1, LONGEST_STEP / np.maximum(np.linalg.norm(step, axis=1), 1e-300))[:, None]
    promised = np.sum(step * gradient, axis=1)
    new, new_value, new_gradient = place.copy(), value.copy(), gradient.copy()
    length, todo = np.ones(len(place)), np.arange(len(place))
    for _ in range(TRIALS):
        trial = place[todo] + length[todo, None] * step[todo]
        trial_value, trial_gradient = objective(trial, live[todo])
        good = trial_value <= value[todo] + SUFFICIENT * length[todo] * promised[todo]
        done = todo[good]
        new[done], new_value[done], new_gradient[done] = trial[good], trial_value[good], trial_gradient[good]
        todo = todo[~good]
        if not todo.size:
            break
        length[todo] *= SHRINK
    found = np.ones(len(place), bool)
    found[todo] = False
    return new, new_value, new_gradient, found


def _first_inverse(gradient: Any, length: float) -> Any:
    """A multiple of the identity with which the first step has that length."""
    norm = np.maximum(np.linalg.norm(gradient, axis=1), 1e-300)
    return np.eye(gradient.shape[1]) * (length / norm)[:, None, None]


def _update(inverse: Any, step: Any, change: Any) -> Any:
    """The BFGS update of the inverse Hessians; none where the curvature along the step is not positive."""
    curvature = np.sum(step * change, axis=1)
    norms = np.linalg.norm(step, axis=1) * np.linalg.norm(change, axis=1)
    usable = curvature > 1e-14 * norms
    rho = np.where(usable, 1 / np.where(usable, curvature, 1), 0)[:, None, None]
    moved = np.einsum("pij,pj->pi", inverse, change)
    stretch = rho * np.sum(change * moved, axis=1)[:, None, None] + 1
    cross = step[:, :, None] * moved[:, None, :]
    return inverse - rho * (cross + cross.transpose(0, 2, 1)) + rho * stretch * step[:, :, None] * step[:, None, :]
