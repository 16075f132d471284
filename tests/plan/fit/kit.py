"""Runs whose law is known."""

import numpy as np

from megaxf.plan.fit.runs import Curve
from megaxf.plan.laws.surface import Surface

TRUTH = Surface(1.7, 300.0, 900.0, 0.32, 0.36)
BUDGETS = np.geomspace(1e18, 1e21, 5)


def runs(form=TRUTH, budgets=BUDGETS, sizes=7, width=4.0, noise=0.0, seed=0):
    """At each budget so many sizes, evenly from 1/width to width times the optimum; noise is of ln L, normal."""
    generator = np.random.default_rng(seed)
    found = []
    for flops in budgets:
        for size in form.parameters(flops) * np.geomspace(1 / width, width, sizes):
            tokens = flops / 6 / size
            loss = form.loss(size, tokens) * np.exp(noise * generator.standard_normal())
            found.append(Curve(f"{flops:.0e}-{size:.2e}", float(size), np.array([tokens]), np.array([loss])))
    return found


def with_losses(curves, factors):
    """The same runs with losses times factors by index."""
    return [
        Curve(c.name, c.parameters, c.tokens, c.losses * factors.get(number, 1.0)) for number, c in enumerate(curves)
    ]


def constants(form):
    return np.array([form.E, form.A, form.B, form.alpha, form.beta])
