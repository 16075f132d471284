"""Approach 3 on laws that are known."""

import numpy as np
import pytest
from scipy.optimize import minimize

from megaxf.plan.fit import surface
from megaxf.plan.fit.minimise import minimise
from megaxf.plan.fit.runs import results
from megaxf.plan.fit.variable_projection import project
from megaxf.plan.laws.surface import Surface
from megaxf.plan.laws.table import surface as published
from tests.plan.fit.kit import TRUTH, constants, runs, with_losses

LAWS = [TRUTH, published("epoch"), published("hoffmann_rounded"), Surface(0.8, 60.0, 5000.0, 0.2, 0.45)]


@pytest.mark.parametrize("form", LAWS)
def test_thirty_points_without_noise_give_the_law(form):
    points = results(runs(form, sizes=6))
    assert len(points.loss) == 30
    found = surface.fit(points)
    assert constants(found.form) == pytest.approx(constants(form), rel=1e-4)
    assert found.objective < 1e-12
    assert found.agreeing == found.starts
    assert found.start == "variable projection"
    assert np.abs(found.residuals).max() < 1e-7
    assert surface.huber(found.form, points) == pytest.approx(found.objective, abs=1e-12)


@pytest.mark.parametrize("scale", [1e-3, 1 / 35, 1e3])
def test_scaling_the_objective_changes_nothing(scale):
    """A mean in place of the sum had stopped a published fit early (arXiv 2404.10102)."""
    points = results(runs(noise=0.004, seed=3))
    whole, scaled = surface.fit(points), surface.fit(points, scale)
    assert constants(scaled.form) == pytest.approx(constants(whole.form), rel=1e-5)
    assert scaled.objective == pytest.approx(scale * whole.objective, rel=1e-9)
    assert scaled.start == whole.start


def test_noise_moves_the_exponents_within_their_spread():
    points = results(runs(budgets=np.geomspace(1e18, 1e21, 7), sizes=9, noise=0.003, seed=1))
    found = surface.fit(points)
    sample = surface.bootstrap(points, found, 300, seed=5).sample()
    for name in ("E", "alpha", "beta", "exponent"):
        low, high = np.percentile(getattr(sample, name), [1, 99])
        assert low < getattr(TRUTH, name) < high, name
    assert found.form.exponent == pytest.approx(TRUTH.exponent, abs=0.03)
    assert found.form.parameters(1e21) == pytest.approx(TRUTH.parameters(1e21), rel=0.1)


def test_outliers_hardly_move_it_where_they_ruin_least_squares():
    clean = runs(budgets=np.geomspace(1e18, 1e21, 7), sizes=9)
    points = results(with_losses(clean, {3: 1.5, 20: 1.3, 41: 0.8, 62: 1.4}))
    found = surface.fit(points).form
    assert (found.E, found.alpha, found.beta) == pytest.approx((TRUTH.E, TRUTH.alpha, TRUTH.beta), rel=0.01)
    assert found.parameters(1e23) == pytest.approx(TRUTH.parameters(1e23), rel=0.02)
    assert abs(project(points).form.alpha - TRUTH.alpha) > 0.05


def test_bootstraps_of_exact_data_are_the_law():
    points = results(runs())
    found = surface.fit(points)
    sample = surface.bootstrap(points, found, 50, seed=0).sample()
    assert sample.alpha == pytest.approx(np.full(50, TRUTH.alpha), rel=1e-3)


def test_bootstraps_know_nothing_of_blocks(monkeypatch):
    points = results(runs(noise=0.003))
    found = surface.fit(points)
    whole = surface.bootstrap(points, found, 40, seed=0).terms
    monkeypatch.setattr(surface, "BLOCK", 7 * len(points.loss))
    assert surface.bootstrap(points, found, 40, seed=0).terms == pytest.approx(whole, rel=1e-6)


def test_the_optimum_is_that_of_another_minimiser():
    """scipy's L-BFGS-B in the paper's own variables, scaled and with a tight stop, from our optimum and near it."""
    points = results(runs(noise=0.004, seed=2))
    found = surface.fit(points)
    logs = np.log(points.parameters), np.log(points.tokens), np.log(points.loss)

    def objective(terms):
        a, b, e, alpha, beta = terms
        parts = np.stack([a - alpha * logs[0], b - beta * logs[1], np.full_like(logs[0], e)])
        far = np.abs(np.logaddexp.reduce(parts) - logs[2])
        return 1e6 * np.sum(np.where(far < 1e-3, far**2 / 2, 1e-3 * (far - 5e-4)))

    form = found.form
    optimum = np.array([np.log(form.A), np.log(form.B), np.log(form.E), form.alpha, form.beta])
    assert objective(optimum) == pytest.approx(1e6 * found.objective, rel=1e-9)
    for start in (optimum, optimum * 1.02):
        other = minimize(objective, start, method="L-BFGS-B", options={"ftol": 1e-14, "maxiter": 5000})
        assert other.fun >= 1e6 * found.objective * (1 - 1e-9)


def test_variable_projection_finds_the_law_and_never_a_negative_term():
    assert constants(project(results(runs())).form) == pytest.approx(constants(TRUTH), rel=1e-3)
    noisy = [project(results(runs(noise=0.3, seed=seed, budgets=[1e18, 1e19]))) for seed in range(8)]
    assert np.all(np.stack([constants(found.form) for found in noisy]) > 0)


def test_minimise_solves_each_problem_for_itself():
    """Rosenbrock's valley and bowls with different minima, one batch."""
    centres = np.array([[1.0, 2.0], [-3.0, 0.5], [0.0, 0.0]])

    def objective(place, problems):
        off = place - centres[problems]
        value = np.sum(off**2 * [1.0, 50.0], axis=1)
        return value, 2 * off * [1.0, 50.0]

    minima, values = minimise(objective, np.zeros((3, 2)))
    assert minima == pytest.approx(centres, abs=1e-6)
    assert values == pytest.approx(np.zeros(3), abs=1e-12)

    def rosenbrock(place, problems):
        x, y = place.T
        value = (1 - x) ** 2 + 100 * (y - x**2) ** 2
        return value, np.stack([-2 * (1 - x) - 400 * x * (y - x**2), 200 * (y - x**2)], axis=1)

    minima, _ = minimise(rosenbrock, np.array([[-1.2, 1.0], [2.0, -3.0]]))
    assert minima == pytest.approx(np.ones((2, 2)), abs=1e-5)
