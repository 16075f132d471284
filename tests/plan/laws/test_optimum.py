"""Values from the constants of arXiv 2203.15556, 2404.10102 and 2305.16264 and the closed forms, in float64."""

import numpy as np
import pytest

from megaxf.plan.errors import PlanError
from megaxf.plan.laws import optimum
from megaxf.plan.laws.surface import PowerLaw, Surface
from megaxf.plan.laws.table import LAWS, law, surface
from tests.plan.digits import Printed, printed, words

SURFACES = [name for name, row in LAWS.items() if isinstance(row.form, Surface)]

OPTIMA = """
1e18    hoffmann_rounded    8.0582e7    2.06829e9   25.667  3.535298
1e20    hoffmann_rounded    6.44858e8   2.58455e10  40.079  2.599850
1e21    hoffmann_rounded    1.82422e9   9.13634e10  50.084  2.328883
1e22    hoffmann_rounded    5.16047e9   3.22968e11  62.585  2.138614
1e23    hoffmann_rounded    1.45983e10  1.14168e12  78.207  2.005010
5.76e23 hoffmann_rounded    3.21899e10  2.98231e12  92.647  1.930748
5.88e23 hoffmann_rounded    3.2491e10   3.01622e12  92.832  1.929987
1e24    hoffmann_rounded    4.12967e10  4.03583e12  97.728  1.911195
1e25    hoffmann_rounded    1.16823e11  1.42666e13  122.12  1.845320
3.8e25  hoffmann_rounded    2.13484e11  2.96665e13  138.96  1.816533
1e26    hoffmann_rounded    3.30477e11  5.04322e13  152.60  1.799063
1e20    hoffmann_unrounded  7.74874e8   2.15089e10  27.758  2.553419
1e21    hoffmann_unrounded  2.21695e9   7.51782e10  33.911  2.295491
1e22    hoffmann_unrounded  6.34283e9   2.62764e11  41.427  2.114916
5.76e23 hoffmann_unrounded  4.03609e10  2.37854e12  58.932  1.918412
1e24    hoffmann_unrounded  5.192e10    3.21007e12  61.827  1.899988
1e26    hoffmann_unrounded  4.24998e11  3.92159e13  92.273  1.794643
1e18    epoch               8.05319e7   2.06957e9   25.699  3.490492
1e19    epoch               2.62168e8   6.35724e9   24.249  2.927103
1e20    epoch               8.53477e8   1.9528e10   22.880  2.553405
1e21    epoch               2.77846e9   5.99853e10  21.589  2.305529
1e22    epoch               9.04516e9   1.84261e11  20.371  2.141111
1e23    epoch               2.94461e10  5.66005e11  19.222  2.032052
5.76e23 epoch               7.22487e10  1.32874e12  18.391  1.974441
5.88e23 epoch               7.30164e10  1.34216e12  18.382  1.973864
1e24    epoch               9.58607e10  1.73863e12  18.137  1.959712
1e25    epoch               3.1207e11   5.34068e12  17.114  1.911729
3.8e25  epoch               6.18666e11  1.02371e13  16.547  1.891707
1e26    epoch               1.01593e12  1.64053e13  16.148  1.879902
1e21    epoch_exact         2.79174e9   5.97e10     21.385  2.304455
5.76e23 epoch_exact         7.31905e10  1.31165e12  17.921  1.973912
1e24    epoch_exact         9.71792e10  1.71504e12  17.648  1.959219
"""


@pytest.mark.parametrize(("flops", "name", "parameters", "tokens", "ratio", "loss"), words(OPTIMA, 6))
def test_budget_to_optimum(flops, name, parameters, tokens, ratio, loss):
    found = optimum.for_flops(surface(name), float(flops))
    expected = printed(parameters, tokens, ratio, loss)
    assert (found.parameters, found.tokens, found.tokens_per_parameter, found.loss) == expected


@pytest.mark.parametrize(
    ("flops", "parameters"),
    [("1e18", "91287093"), ("1e20", "9.1287093e8"), ("1e22", "9.1287093e9"), ("5.76e23", "6.9282032e10")],
)
def test_twenty_to_one(flops, parameters):
    found = optimum.for_flops(law("twenty_to_one").form, float(flops))
    assert found.parameters == Printed(parameters)
    assert found.tokens_per_parameter == pytest.approx(20, rel=1e-12)
    assert found.loss is None


def test_chinchilla_is_twenty_to_one_exactly():
    found = optimum.for_flops(law("twenty_to_one").form, 5.88e23)
    assert (found.parameters, found.tokens) == pytest.approx((7e10, 1.4e12), rel=1e-12)


@pytest.mark.parametrize(
    ("name", "parameters", "flops", "tokens"),
    [
        ("epoch", 1e9, "1.362e20", "2.270e10"),
        ("epoch", 7e10, "5.415e23", "1.289e12"),
        ("epoch", 1e12, "9.696e25", "1.616e13"),
        ("hoffmann_rounded", 1e9, "2.642e20", "4.403e10"),
        ("hoffmann_rounded", 7e10, "3.217e24", "7.66e12"),
        ("hoffmann_unrounded", 1e9, "1.748e20", "2.914e10"),
        ("hoffmann_unrounded", 7e10, "1.924e24", "4.581e12"),
    ],
)
def test_the_training_for_which_a_size_is_optimal(name, parameters, flops, tokens):
    found = optimum.for_parameters(surface(name), parameters)
    assert (found.flops, found.tokens) == printed(flops, tokens)


LOSSES = """
70e9       1.4e12  1.936645 1.920846 1.973882
280e9      300e9   1.993258 1.967243 1.999608
175e9      300e9   2.002288 1.976448 2.008544
6738415616 1e12    2.054308 2.038458 2.086178
6738415616 2e12    2.022682 2.010404 2.067133
8030261248 15e12   1.948308 1.943393 2.021836
405e9      15.6e12 1.819035 1.811936 1.892585
"""


@pytest.mark.parametrize(("parameters", "tokens", "rounded", "unrounded", "epoch"), words(LOSSES, 5))
def test_loss_of_known_models(parameters, tokens, rounded, unrounded, epoch):
    for name, loss in {"hoffmann_rounded": rounded, "hoffmann_unrounded": unrounded, "epoch": epoch}.items():
        assert surface(name).loss(float(parameters), float(tokens)) == Printed(loss)


def test_loss_of_known_models_by_the_other_sets():
    exact, repeated = surface("epoch_exact"), surface("muennighoff")
    assert (exact.loss(70e9, 1.4e12), exact.loss(280e9, 300e9)) == printed("1.973367", "1.998674")
    runs = [(70e9, 1.4e12), (280e9, 300e9), (175e9, 300e9), (6738415616, 1e12)]
    losses = tuple(repeated.loss(*run) for run in runs)
    assert losses == printed("2.024597", "2.050331", "2.058955", "2.134417")


@pytest.mark.parametrize("name", SURFACES)
def test_every_set_ranks_chinchilla_below_gopher(name):
    assert surface(name).loss(70e9, 1.4e12) < surface(name).loss(280e9, 300e9)


@pytest.mark.parametrize("name", LAWS)
@pytest.mark.parametrize("flops", [1e15, 1e21, 5.76e23, 1e26])
def test_every_law_meets_the_budget_and_comes_back(name, flops):
    form = law(name).form
    found = optimum.for_flops(form, flops)
    assert found.parameters * found.tokens * 6 == pytest.approx(flops, rel=1e-12)
    assert optimum.for_parameters(form, found.parameters).flops == pytest.approx(flops, rel=1e-9)
    assert optimum.for_tokens(form, found.tokens).flops == pytest.approx(flops, rel=1e-9)
    if found.loss is not None:
        assert optimum.for_loss(form, found.loss).flops == pytest.approx(flops, rel=1e-9)


@pytest.mark.parametrize("name", SURFACES)
@pytest.mark.parametrize("flops", [1e18, 5.76e23])
def test_the_optimum_is_one(name, flops):
    """Every other N of the budget has a larger loss, and the two terms balance: alpha A/N^alpha = beta B/D^beta."""
    form = surface(name)
    best = optimum.for_flops(form, flops)
    sizes = best.parameters * np.array([0.5, 0.9, 0.999, 1.001, 1.1, 2])
    assert np.all(form.loss(sizes, flops / 6 / sizes) > best.loss)
    terms = form.A / best.parameters**form.alpha, form.B / best.tokens**form.beta
    assert form.alpha * terms[0] == pytest.approx(form.beta * terms[1], rel=1e-9)
    assert terms[0] / sum(terms) == pytest.approx(form.exponent, rel=1e-9)


@pytest.mark.parametrize(
    ("name", "exponent", "scale"),
    [
        ("hoffmann_rounded", "0.451613", "1.3447106"),
        ("hoffmann_unrounded", "0.456526", "1.3000464"),
        ("sardana_mixed", "0.457189", None),
        ("epoch", "0.512612", "0.11962985"),
        ("epoch_exact", "0.513900", "0.11320759"),
        ("muennighoff", "0.5", "0.2258"),
    ],
)
def test_exponent_and_scale(name, exponent, scale):
    form = surface(name)
    assert form.exponent == Printed(exponent)
    assert scale is None or form.scale == Printed(scale)


@pytest.mark.parametrize(
    ("name", "factors", "floor"),
    [
        ("epoch", ("1.3780", "2.5186", "8.7104", "17.861"), "0.146413"),
        ("hoffmann_rounded", ("1.3713", "2.4161", "6.8512", "11.545"), "0.096518"),
    ],
)
def test_data_for_a_smaller_model_of_equal_loss(name, factors, floor):
    form = surface(name)
    sizes = np.array([0.75, 0.50, 0.30, 0.25])
    assert tuple(form.data_factor(sizes)) == printed(*factors)
    assert form.least_size_factor == Printed(floor)
    assert np.isinf(form.data_factor(0.999 * form.least_size_factor))
    for flops in (1e19, 1e24):  # the same at every budget
        best = optimum.for_flops(form, flops)
        losses = form.loss(sizes * best.parameters, form.data_factor(sizes) * best.tokens)
        assert losses == pytest.approx(np.full(4, best.loss), rel=1e-12)


@pytest.mark.parametrize(
    ("flops", "half", "twice", "quarter", "four"),
    [
        (5.76e23, "0.004810", "0.004850", "0.019455", "0.019783"),
        (1e20, "0.022522", "0.022710", "0.091089", "0.092623"),
    ],
)
def test_loss_off_the_optimum_at_equal_compute(flops, half, twice, quarter, four):
    form = surface("epoch")
    best = optimum.for_flops(form, flops)
    for factor, rise in {0.5: half, 2: twice, 0.25: quarter, 4: four}.items():
        off = optimum.detour(form, factor * best.parameters, best.tokens / factor)
        assert off.chosen.loss - off.same_flops.loss == Printed(rise)


@pytest.mark.parametrize(("factor", "extra"), [(0.75, "0.0335"), (0.5, "0.259"), (0.3, "1.61"), (0.25, "3.47")])
def test_compute_off_the_optimum_at_equal_loss(factor, extra):
    form = surface("epoch")
    best = optimum.for_flops(form, 1e22)
    off = optimum.detour(form, factor * best.parameters, form.data_factor(factor) * best.tokens)
    assert off.extra_flops == Printed(extra)
    assert off.same_loss.flops == pytest.approx(1e22)


def test_a_law_without_a_loss_says_so():
    off = optimum.detour(law("llama3").form, 8e9, 15e12)
    assert (off.chosen.loss, off.same_loss, off.extra_flops) == (None, None, None)
    with pytest.raises(
        PlanError, match="the law llama3 says how to divide compute and gives no loss; use one of epoch"
    ):
        surface("llama3")


HOFFMANN_TABLES = """
400e6 1.92e19 1.84e19 2.21e19
1e9   1.21e20 1.20e20 1.62e20
10e9  1.23e22 1.32e22 2.46e22
67e9  5.76e23 6.88e23 1.71e24
175e9 3.85e24 4.54e24 -
280e9 9.90e24 1.18e25 3.52e25
520e9 3.43e25 4.19e25 1.36e26
1e12  1.27e26 1.59e26 5.65e26
10e12 1.30e28 1.75e28 8.55e28
"""
"""Optimal size and its FLOPs by approaches 1, 2 and 3 (arXiv 2203.15556, tables 3 and A3; one is a misprint)."""


@pytest.mark.parametrize("approach", [1, 2, 3])
def test_power_laws_through_hoffmann_s_tables(approach):
    name = {1: "hoffmann_approach1", 2: "hoffmann_approach2", 3: "hoffmann_approach3_table"}[approach]
    pairs = [(float(row[approach]), float(row[0])) for row in words(HOFFMANN_TABLES, 4) if row[approach] != "-"]
    exponent, constant = np.polyfit(*np.log(pairs).T, 1)
    assert law(name).form.exponent == pytest.approx(exponent, rel=1e-6)
    assert law(name).form.coefficient == pytest.approx(np.exp(constant), rel=1e-6)


def test_published_power_laws():
    """Hoffmann's 2.86B at 1e21 and 67B at Gopher's budget; Llama 3's formula; Porian's 11.9 C^0.0059."""
    assert law("hoffmann_approach1").form.parameters(1e21) == Printed("2.860e9")
    assert law("hoffmann_approach1").form.parameters(5.76e23) == Printed("6.782e10")
    assert law("hoffmann_approach2").form.parameters(5.76e23) == Printed("6.342e10")
    assert law("hoffmann_approach3_table").form.parameters(5.76e23) == Printed("4.223e10")
    llama = optimum.for_flops(law("llama3").form, 3.8e25)
    assert (llama.parameters, llama.tokens) == printed("6.05e11", "1.0464e13")
    porian = optimum.for_flops(law("porian").form, 1e20)
    assert porian.tokens_per_parameter == pytest.approx(11.9 * 1e20**0.0059, rel=0.02)
    deepseek = optimum.for_flops(law("deepseek").form, 1e20)
    assert 6 * deepseek.parameters == Printed("5.2513e9")
    assert deepseek.tokens == pytest.approx(1.9045e10, rel=2e-4)  # its two printed power laws multiply to 1.0001 C


def test_power_laws_of_tokens_and_of_a_ratio():
    form = PowerLaw.of_tokens(3, 0.4)
    assert optimum.for_flops(form, 1e20).tokens == pytest.approx(3 * 1e20**0.4)
    assert optimum.for_flops(PowerLaw.of_ratio(192), 1e20).tokens_per_parameter == pytest.approx(192)


@pytest.mark.parametrize(
    ("question", "message"),
    [
        (lambda form: optimum.for_flops(form, 0), "flops = 0 is not a number above 0"),
        (lambda form: optimum.for_parameters(form, -1e9), r"parameters = -1e\+09 is not a number above 0"),
        (lambda form: optimum.for_tokens(form, float("nan")), "tokens = nan is not a number above 0"),
        (lambda form: optimum.for_flops(form, float("inf")), "flops = inf"),
        (lambda form: optimum.for_loss(form, 1.8), r"a loss of 1.8 is out of reach: .* irreducible loss of 1.8172"),
        (lambda form: optimum.for_loss(form, float("nan")), "out of reach"),
        (lambda _: law("hofman"), r"'hofman' is not a law; did you mean hoffmann_\w+\? \(all: epoch, "),
        (lambda _: law("xyz"), "'xyz' is not a law; they are"),
    ],
)
def test_questions_without_an_answer(question, message):
    with pytest.raises(PlanError, match=message):
        question(surface("epoch"))
