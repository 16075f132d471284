"""What a fit reads, refuses, reports and draws."""

import json

import numpy as np
import pytest
from matplotlib.image import imread

from megaxf.plan.errors import PlanError
from megaxf.plan.fit import identify, plots
from megaxf.plan.fit.page import page
from megaxf.plan.fit.report import fit, values
from megaxf.plan.fit.runs import Curve, read_csv, results
from megaxf.plan.laws.files import find, write_law
from megaxf.plan.laws.surface import Surface
from tests.plan.fit.kit import BUDGETS, TRUTH, runs, with_losses
from tests.plan.fit.test_power_laws import curve

HEAD = "params,tokens,loss"


def table(path, *rows, head=HEAD):
    path.write_text("\n".join([head, *rows]) + "\n")
    return path


def test_csv(tmp_path):
    rows = ["1e6, 2e7, 4.0, , a, 0", "1e6, 1e7, 4.5, , a, 0", "2e6, , 3.9, 1.2e15, b,", "3e6, 1e8, 9, , c, 1"]
    path = table(tmp_path / "runs.csv", *rows, head="params, tokens, loss, flops, run, outlier")
    curves, left_out = read_csv(path)
    assert left_out == 1 and [curve.name for curve in curves] == ["a", "b"]
    assert curves[0].tokens.tolist() == [1e7, 2e7] and curves[0].losses.tolist() == [4.5, 4.0]
    points = results(curves)
    assert points.loss.tolist() == [4.0, 3.9] and points.tokens.tolist() == [2e7, 1e8]
    assert points.flops.tolist() == [1.2e14, 1.2e15]
    alone = read_csv(table(tmp_path / "alone.csv", "1e6,1e7,4", "1e6,1e7,4"))[0]
    assert [curve.name for curve in alone] == ["line 2", "line 3"]
    result = Curve("c", 1e6, np.array([1.0, 2.0]), np.array([5.0, 4.0]), 3.5)
    assert results([result]).loss.tolist() == [3.5]


@pytest.mark.parametrize(
    ("head", "row", "message"),
    [
        (HEAD, "1e6,1e7,", "runs.csv:2: params, loss, and tokens or flops are needed in each row"),
        (HEAD, "1e6,,4", "runs.csv:2: params, loss, and tokens or flops are needed in each row"),
        (HEAD, "1e6,1e7,nan", "runs.csv:2: loss = nan is not a number above 0; correct it or mark the row outlier = 1"),
        (HEAD, "1e6,many,4", "runs.csv:2: tokens = many is not a number above 0"),
        (HEAD, "-1,1e7,4", "runs.csv:2: params = -1 is not a number above 0"),
        (HEAD, "1" * 140_000 + ",1e7,4", "runs.csv cannot be read: field larger than field limit"),
        ("params,loss", "1,2", "runs.csv: the header has params, loss; params, loss, and tokens or flops are needed"),
        (
            "run,params,tokens,loss",
            "a,1,1,1\na,2,2,2",
            "runs.csv: the run a has 2 values of params; a run has one size",
        ),
    ],
)
def test_faults_of_a_csv(tmp_path, head, row, message):
    path = table(tmp_path / "runs.csv", row, head=head)
    with pytest.raises(PlanError) as error:
        read_csv(path)
    assert message in str(error.value)
    with pytest.raises(PlanError, match=r"absent.csv cannot be read: .*No such file"):
        read_csv(tmp_path / "absent.csv")


def ray(count=12):
    """Twenty tokens for each parameter, always."""
    sizes = np.geomspace(1e7, 1e10, count)
    return [Curve("", size, np.array([20 * size]), np.array([TRUTH.loss(size, 20 * size)])) for size in sizes]


@pytest.mark.parametrize(
    ("curves", "message"),
    [
        (runs(sizes=5, budgets=[1e18]), "5 runs cannot determine 5 constants; train at least two budgets"),
        ([], "0 runs cannot determine 5 constants"),
        (runs(sizes=3, budgets=[1e18, 1e20]), "6 runs cannot determine .*; 8 runs that differ are the least"),
        (
            runs(sizes=5, budgets=[1e18]) + runs(sizes=5, budgets=[1e18], noise=0.01),
            "10 runs of 5 different params and",
        ),
        (ray(), r"all runs lie along one line, D ~ N\^1.00: what N and what D did to the loss cannot be told apart"),
        (runs(budgets=[1e20]), r"all runs lie along one line, D ~ N\^-1.00"),
        (
            runs(sizes=9, width=1.1, budgets=[1e18, 1.2e18]),
            r"params spans a factor of 1.\d\d only; at least 2 is needed",
        ),
        (
            [c for c in runs(budgets=[1e18] * 9) if c.parameters == runs()[0].parameters],
            "params has 1 different values",
        ),
        (runs(Surface(1.7, 1e-9, 900.0, 0.32, 0.36), budgets=[1e18]), "cannot be told apart"),
        (runs(noise=0.3), "the runs do not identify a law: "),
    ],
)
def test_refusals(curves, message):
    with pytest.raises(PlanError, match=message):
        fit(curves, bootstraps=50)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"bootstraps": 0}, "--bootstraps = 0 is too few for an interval; use 10 or more"),
        ({"bootstraps": -1}, "--bootstraps = -1 is too few"),
        ({"seed": -1}, "--seed = -1 is below 0"),
        ({"flops": [1e20, 0]}, "--flops = 0 is not a number above 0"),
    ],
)
def test_options_that_are_none(options, message):
    with pytest.raises(PlanError, match=message):
        fit(runs(), **options)


def test_the_same_runs_twice_say_no_more():
    """Else their intervals would be narrower by sqrt(2). A run that was made again, with another loss, counts."""
    curves = runs(noise=0.002)
    once, twice = (values(fit(given, bootstraps=20)) for given in (curves, curves * 2))
    assert (twice.pop("repeated"), once.pop("repeated")) == (35, 0)
    assert once == twice
    again = values(fit(curves + runs(noise=0.002, seed=1), bootstraps=20))
    assert (again["runs"], again["repeated"]) == (70, 0)
    assert "35 runs, 35 that stood there twice counted once;" in page(twice | {"repeated": 35})


def test_a_term_that_vanished_is_refused():
    """Losses that do not depend on the size."""
    grid = [(n, d) for n in np.geomspace(1e7, 1e9, 4) for d in np.geomspace(1e9, 1e11, 4)]
    curves = [Curve("", n, np.array([d]), np.array([1.7 + 900 / d**0.36])) for n, d in grid]
    with pytest.raises(
        PlanError, match=r"the runs do not identify a law: the best surface has no sensible .*alpha.*megaxf plan ladder"
    ):
        fit(curves, bootstraps=20)


def test_disagreeing_bootstraps_are_refused():
    report = fit(runs(noise=0.002), bootstraps=20)
    terms = np.tile(report.sample.terms, (3, 1))
    terms[:20, 3] *= 20
    terms[20:40, 3] /= 20
    with pytest.raises(PlanError, match=r"resampled, they put the exponent of N\* ~ C\^a between 0.05 and 0.9\d"):
        identify.check_bootstraps(report.sample._replace(terms=terms))


@pytest.fixture(scope="module")
def report():
    """Runs with noise, of which two went wrong, on their way and at their end."""
    whole = [curve(TRUTH, size, (1e18, 1e21)) for size in np.geomspace(5e7, 6e9, 12)]
    curves = with_losses(runs(noise=0.002, sizes=9, seed=1, budgets=np.geomspace(1e18, 1e21, 7)), {5: 1.2, 30: 0.9})
    return fit([*curves, *whole], left_out=3, bootstraps=200, flops=[1e20, 1e23], counts="non-embedding")


def test_report(report):
    found = json.loads(json.dumps(values(report), allow_nan=False))
    assert (found["runs"], found["left_out"], found["bootstraps"]) == (75, 3, 200)
    for name in ("approach3", "approach2", "approach1"):
        assert found[name]["exponent"] == pytest.approx(TRUTH.exponent, abs=0.03), name
    low, high = found["approach3"]["interval"]["exponent"]
    assert low < TRUTH.exponent < high
    assert [row["run"] for row in found["outliers"]] == [report.points.names[5], report.points.names[30]]
    assert [row["residual"] for row in found["outliers"]] == pytest.approx([np.log(1.2), np.log(0.9)], abs=0.01)
    assert found["without_outliers"]["exponent"] == pytest.approx(TRUTH.exponent, abs=0.02)
    of_two = 1e-3 * (np.log(1.2) - np.log(0.9))
    assert found["without_outliers"]["objective"] == pytest.approx(found["approach3"]["objective"] - of_two, rel=0.2)
    near, far = found["predictions"]
    assert near["parameters"]["value"] * near["tokens"]["value"] * 6 == pytest.approx(1e20, rel=1e-9)
    widths = [np.log(row["parameters"]["interval"][1] / row["parameters"]["interval"][0]) for row in (near, far)]
    assert widths[1] > 1.5 * widths[0]
    for row in (near, far):
        for name in ("parameters", "tokens", "tokens_per_parameter", "loss"):
            low, high = row[name]["interval"]
            assert low <= row[name]["value"] <= high
        assert row["parameters_by_approach2"]["value"] == pytest.approx(row["parameters"]["value"], rel=0.4)


def test_page(report):
    found = values(report)
    text = page(found)
    assert "75 runs, 3 rows left out as outliers; N counts non-embedding parameters" in text
    for value in found["approach3"]["constants"].values():
        assert repr(value) in text
    start = found["approach3"]["start"]
    assert f"{start['agreeing']} of {start['tried']} starts end here; the first of them: {start['won']}" in text
    assert "Outliers: 2 runs" in text and "approach 3, these parabolas give" in text
    single = page(values(fit(runs(noise=0.002), bootstraps=20)))
    assert "1, envelope of curves: none, 0 sizes have a curve" in single and "Outliers" not in single


def test_default_budgets_begin_at_the_largest_run():
    report = fit(runs(), bootstraps=10)
    assert report.flops == pytest.approx([BUDGETS[-1] * times for times in (1, 10, 100, 1000)])


def test_law_to_be_asked(report, tmp_path):
    write_law(tmp_path / "law.json", report.law("fit"))
    own = find(str(tmp_path / "law.json"))
    assert own.form == report.surface.form
    assert np.array_equal(own.spread.sample().alpha, report.sample.sample().alpha)
    assert own.counts == "non-embedding" and "approach 3 on 75 runs" in own.source


def test_pictures(report, tmp_path):
    paths = plots.draw(report, tmp_path)
    assert [path.name for path in paths] == ["fit.png", "frontier.png", "isoflop.png"]
    for path in paths:
        image = imread(path)[..., :3]
        assert image.shape[0] > 500 and image.shape[1] > 900
        assert 0.02 < np.mean(image.min(axis=2) < 0.9) < 0.6, "neither empty nor full"
    scattered = runs(sizes=4, noise=0.002)
    assert "isoflop.png" not in [path.name for path in plots.draw(fit(scattered, bootstraps=10), tmp_path)]
