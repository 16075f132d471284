"""The 240 points that Besiroglu et al. (arXiv 2404.10102) read from figure 4 of arXiv 2203.15556.

They carry no licence and are not part of this project: the file is looked for beside the checkout
(github.com/epoch-research/analyzing-chinchilla, commit 9225883; columns params, flops, tokens, loss, outlier).
"""

from pathlib import Path

import numpy as np
import pytest

from megaxf.plan.fit import surface
from megaxf.plan.fit.report import fit, values
from megaxf.plan.fit.runs import read_csv, results
from megaxf.plan.fit.variable_projection import project
from megaxf.plan.laws.spread import EPOCH_SPREAD, interval
from megaxf.plan.laws.table import law
from megaxf.plan.laws.table import surface as published
from tests.plan.digits import printed

FILE = Path(__file__).resolve().parents[4] / "shared" / "reference" / "chinchilla-points.csv"
pytestmark = pytest.mark.skipif(not FILE.is_file(), reason=f"{FILE.name} has no licence and is not beside the checkout")


@pytest.fixture(scope="module")
def curves():
    found, left_out = read_csv(FILE)
    assert (len(found), left_out) == (240, 5)
    return found


@pytest.fixture(scope="module")
def report(curves):
    return fit(curves, flops=[1e21, 5.76e23, 1e25])


def test_optimum(report):
    found = report.surface
    assert found.objective <= 0.0010184
    assert found.objective == pytest.approx(0.0010182740, abs=5e-11)
    form = found.form
    logs = tuple(np.log([form.A, form.B, form.E]))
    assert (*logs, form.alpha, form.beta) == pytest.approx(
        (6.16924489, 7.67015606, 0.59730673, 0.34731041, 0.3671724), abs=2e-6
    )
    assert form.exponent == pytest.approx(0.5139, abs=5e-5)
    assert found.agreeing > 0.9 * found.starts


def test_objective_of_published_constants(curves):
    points = results(curves)
    sums = tuple(surface.huber(published(name), points) for name in ("epoch", "hoffmann_unrounded", "hoffmann_rounded"))
    assert sums == printed("0.00102284", "0.00123116", "0.00412101")


def test_intervals(report):
    """Against 1,000 bootstraps made elsewhere: standard deviations within a twelfth, ends within a few percent."""
    sample = report.sample.sample()
    deviations = [np.std(value) for value in (sample.A, sample.B, sample.E, sample.alpha, sample.beta, sample.exponent)]
    assert deviations == pytest.approx([117, 1278, 0.0249, 0.0146, 0.0204, 0.0193], rel=0.12)
    for value, ends in (
        (sample.exponent, (0.4806, 0.5554)),
        (sample.alpha, (0.3188, 0.3719)),
        (sample.beta, (0.3307, 0.4170)),
        (sample.E, (1.7720, 1.8701)),
    ):
        assert np.percentile(value, [2.5, 97.5]) == pytest.approx(ends, abs=0.006)
    assert interval(sample.parameters(5.76e23)) == pytest.approx((5.78e10, 7.43e10, 9.63e10), rel=0.03)
    for flops, ends in ((5.76e23, (10.35, 17.40, 28.72)), (1e21, (17.17, 21.08, 26.20)), (1e25, (8.24, 16.0, 29.9))):
        assert interval(flops / 6 / sample.parameters(flops) ** 2) == pytest.approx(ends, rel=0.05)


def test_least_squares_on_the_loss(curves):
    """The numbers that two other projects publish for the 217 points below 1e21 FLOPs; and all 240."""
    points = results(curves)
    found = project(points.take(points.flops < 1e21))
    form = found.form
    millions, billions = form.A / 1e6**form.alpha, form.B / 1e9**form.beta
    expected = printed("1.90509", "4.00052", "1.05095", "0.351058", "0.458742", "0.0624143", "0.566488")
    assert (form.E, millions, billions, form.alpha, form.beta, found.squares, form.exponent) == expected
    form = project(points).form
    assert (form.E, form.alpha, form.beta) == pytest.approx((1.88281, 0.35762, 0.42763), abs=1.1e-5)


def test_the_other_approaches(report):
    """Hoffmann's approach 2 gave a = 0.49 (0.462 to 0.534); single results give no envelope."""
    found = values(report)
    assert 0.462 < found["approach2"]["exponent"] < 0.534
    assert found["approach1"]["refused"].startswith("0 sizes have a curve")
    assert abs(found["approach2"]["bias"]["exponent"]) < 0.01


def test_the_default_law_s_spread_is_this_one(report):
    """4,000 bootstraps as a normal distribution against these 1,000."""
    own, shipped = report.sample.sample(), EPOCH_SPREAD.sample()
    for flops in (1e19, 5.76e23):
        assert interval(own.parameters(flops)) == pytest.approx(interval(shipped.parameters(flops)), rel=0.03)
    exact = law("epoch_exact").form
    assert report.surface.form.parameters(1e24) == pytest.approx(exact.parameters(1e24), rel=1e-6)
