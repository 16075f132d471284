"""Approaches 1 and 2 on surfaces that are known."""

import numpy as np
import pytest

from megaxf.plan.errors import PlanError
from megaxf.plan.fit import envelope, isoflop
from megaxf.plan.fit.runs import Curve, results
from megaxf.plan.laws.surface import Surface
from megaxf.plan.laws.table import surface
from tests.plan.digits import Printed
from tests.plan.fit.kit import TRUTH, runs

EQUAL = Surface(1.7, 300.0, 900.0, 0.34, 0.34)


def groups(form, **more):
    return isoflop.budgets(results(runs(form, **more)))


@pytest.mark.parametrize(
    ("name", "width", "size", "exponent"),
    [
        ("epoch", 1, "0.997790", "0.512612"),
        ("epoch", 2, "0.991186", "0.512612"),
        ("hoffmann_rounded", 1, "1.007402", "0.451613"),
        ("hoffmann_rounded", 2, "1.029930", "0.451613"),
    ],
)
def test_parabolas_find_the_exponent_and_a_biased_size(name, width, size, exponent):
    """Nine sizes, ln N within +-width of the optimum, no noise."""
    form = surface(name)
    found = groups(form, sizes=9, width=np.exp(width))
    assert len(found) == 5
    for budget in found:
        assert budget.optimum / form.parameters(budget.flops) == Printed(size)
    law = isoflop.fit(found)
    assert law.exponent == Printed(exponent)
    ratios, off = isoflop.bias(found, form)
    assert ratios == pytest.approx([float(size)] * 5, abs=5e-7)
    assert off == pytest.approx(0, abs=1e-9)


def test_bias_vanishes_with_equal_exponents_and_is_told_otherwise():
    """Sizes from 1/8 to 8 times the optimum, exponents 0.34 and 0.28 (arXiv 2603.22339)."""
    equal = groups(EQUAL, width=8)
    assert [budget.optimum for budget in equal] == pytest.approx([EQUAL.parameters(b.flops) for b in equal], rel=1e-9)
    rounded = surface("hoffmann_rounded")
    found = groups(rounded, width=8)
    truth = [budget.optimum / rounded.parameters(budget.flops) for budget in found]
    assert min(truth) > 1.02
    assert isoflop.bias(found, rounded)[0] == pytest.approx(truth, rel=1e-9)


def test_off_centre_sizes_bias_the_exponent_and_that_is_told():
    """The smallest budget has sizes too large, the largest too small."""
    curves = []
    for shift, flops in zip((3, 1, 1 / 3), (1e18, 1e20, 1e22), strict=True):
        for size in TRUTH.parameters(flops) * shift * np.geomspace(1 / 8, 8, 9):
            tokens = flops / 6 / size
            curves.append(Curve("", float(size), np.array([tokens]), np.array([TRUTH.loss(size, tokens)])))
    found = isoflop.budgets(results(curves))
    off = isoflop.fit(found).exponent - TRUTH.exponent
    assert abs(off) > 0.003
    assert isoflop.bias(found, TRUTH)[1] == pytest.approx(off, rel=1e-6)


def test_budgets_are_windows_of_compute():
    curves = runs(budgets=[1e18, 1.1e18, 3e18, 1e20], sizes=5)
    found = isoflop.budgets(results(curves))
    assert [len(budget.points.loss) for budget in found] == [10, 5, 5]
    assert [budget.flops for budget in found] == pytest.approx([1e18 * 1.1**0.5, 3e18, 1e20])
    assert isoflop.budgets(results(runs(sizes=4))) == []


def test_a_budget_without_a_minimum_has_none():
    curves = [
        Curve("", size, np.array([1e20 / 6 / size]), np.array([TRUTH.loss(size, 1e20 / 6 / size)]))
        for size in TRUTH.parameters(1e20) * np.geomspace(2, 8, 6)
    ]
    (budget,) = isoflop.budgets(results(curves))
    assert budget.optimum is None
    with pytest.raises(PlanError, match="0 of 1 budgets have 5 sizes on both sides of a minimum; at least two"):
        isoflop.fit([budget])


def test_a_dome_has_no_minimum():
    sizes = 1e9 * np.geomspace(1 / 4, 4, 7)
    losses = 3 - 0.1 * np.log(sizes / 1.1e9) ** 2
    found = [Curve("", n, np.array([1e20 / 6 / n]), np.array([loss])) for n, loss in zip(sizes, losses, strict=True)]
    (budget,) = isoflop.budgets(results(found))
    assert budget.optimum is None


def test_bootstraps_of_parabolas():
    exact = groups(EQUAL)
    exponents = [law.exponent for law in isoflop.bootstrap(exact, 40, seed=0)]
    # A resample is not centred on the optimum, which is enough to bias it a little.
    assert exponents == pytest.approx([0.5] * 40, abs=2e-3)
    noisy = groups(EQUAL, noise=0.002, budgets=np.geomspace(1e18, 1e21, 7), sizes=9)
    exponents = np.array([law.exponent for law in isoflop.bootstrap(noisy, 200, seed=0)])
    low, high = np.percentile(exponents, [2, 98])
    assert low < 0.5 < high and high - low < 0.2


def curve(form, size, flops):
    tokens = np.geomspace(flops[0], flops[1], 60) / 6 / size
    return Curve(f"{size:.1e}", float(size), tokens, form.loss(size, tokens))


def test_envelope_of_curves():
    """Models 1.3 apart over the same range of compute: each wins where it is nearest to the optimum."""
    curves = [curve(TRUTH, size, (1e18, 1e21)) for size in np.geomspace(5e7, 6e9, 19)]
    found = envelope.envelope(curves)
    law = envelope.fit(found)
    assert law.exponent == pytest.approx(TRUTH.exponent, abs=0.005)
    assert law.parameters(3e19) == pytest.approx(TRUTH.parameters(3e19), rel=0.05)
    flops, sizes = envelope.winners(found, np.ones(19, bool))
    nearest = np.abs(np.log(sizes / TRUTH.parameters(flops)))
    assert nearest.max() < np.log(1.31)
    laws = envelope.bootstrap(found, 20, seed=0)
    assert [law.exponent for law in laws] == pytest.approx([TRUTH.exponent] * len(laws), abs=0.05)
    assert len({law.exponent for law in laws}) > 10


def test_a_run_counts_only_where_it_ran():
    """Each size over its own range of compute, a factor of ten to either side of where it is best."""
    ranges = {n: TRUTH.flops_for_parameters(n) for n in np.geomspace(5e7, 6e9, 19)}
    curves = [curve(TRUTH, n, (middle / 10, middle * 10)) for n, middle in ranges.items()]
    found = envelope.envelope(curves)
    assert envelope.fit(found).exponent == pytest.approx(TRUTH.exponent, abs=0.01)
    flops, sizes = envelope.winners(found, np.ones(19, bool))
    assert np.abs(np.log(sizes / TRUTH.parameters(flops))).max() < np.log(1.31)


def test_ends_of_the_sizes_do_not_win():
    """All models too large: the smallest is best everywhere and says nothing."""
    curves = [curve(TRUTH, size, (1e18, 1e19)) for size in np.geomspace(5e9, 5e10, 5)]
    with pytest.raises(PlanError, match="fewer than 3 sizes are best at some compute"):
        envelope.fit(envelope.envelope(curves))
    with pytest.raises(PlanError, match="2 sizes have a curve, at least 3 are needed"):
        envelope.envelope([*curves[:2], *runs()])
