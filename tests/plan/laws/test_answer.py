"""Answers and pages: what they hold, and that they agree with the functions that they come from."""

import json

import numpy as np
import pytest

from megaxf.plan.errors import PlanError
from megaxf.plan.laws import optimum, repetition
from megaxf.plan.laws.answer import Question, answer
from megaxf.plan.laws.files import Bootstraps, find, read_law, write_law
from megaxf.plan.laws.page import listing, page
from megaxf.plan.laws.surface import Surface
from megaxf.plan.laws.table import LAWS, Law, law


def ask(name="epoch", **question):
    found = answer(law(name), Question(**question))
    json.dumps(found, allow_nan=False)
    return found


def test_budget():
    found = ask(flops=5.76e23)
    training = found["training"]
    assert training["tokens_per_parameter"] == pytest.approx(18.391, abs=5e-4)
    assert 6 * training["parameters"] * training["tokens"] == pytest.approx(5.76e23, rel=1e-12)
    low, _, high = training["interval"]["tokens_per_parameter"]
    assert (low, high) == pytest.approx((10.35, 28.72), rel=0.04)
    assert set(training["interval"]) == {"level", "parameters", "tokens", "tokens_per_parameter", "loss"}
    assert {row["law"] for row in found["other_laws"]} == set(LAWS) - {"epoch"}
    half = next(row for row in found["off_optimum"] if row["size_factor"] == 0.5)
    assert half["extra_flops"] == pytest.approx(0.259, abs=5e-4)
    assert half["extra_loss"] == pytest.approx(0.004810, abs=5e-7)


@pytest.mark.parametrize("name", LAWS)
def test_page_names_the_constants_to_all_digits(name):
    """Rounded exponents have moved published optima by a fifth: nothing is rounded on the page."""
    text = page(ask(name, flops=1e21))
    assert name in text and LAWS[name].source in text and LAWS[name].published in text
    for value in vars(law(name).form).values():
        assert repr(value) in text
    assert f"N counts {law(name).counts} parameters" in text


@pytest.mark.parametrize(("name", "value"), [("parameters", 7e10), ("tokens", 1e12), ("loss", 2.0)])
def test_inverse_questions(name, value):
    training = ask(**{name: value})["training"]
    assert training[name] == pytest.approx(value, rel=1e-12)
    there = optimum.for_flops(law("epoch").form, training["flops"])
    assert training["parameters"] == pytest.approx(there.parameters, rel=1e-9)
    assert name not in training["interval"]
    low, median, high = training["interval"]["flops"]
    assert low < median < high and low < training["flops"] < high


def test_intervals_end_where_a_part_of_the_sample_has_no_answer():
    """A loss of 1.83 is below the irreducible loss of a quarter of the bootstraps."""
    low, _, high = ask(loss=1.83)["training"]["interval"]["flops"]
    assert low > 1e25 and high is None
    assert "to any" in page(ask(loss=1.83))


def test_a_training_of_one_s_own():
    found = ask(parameters=8e9, tokens=15e12)
    cost = found["cost_of_choice"]
    form = law("epoch").form
    assert found["training"]["loss"] == form.loss(8e9, 15e12)
    assert cost["cheapest_of_equal_loss"]["loss"] == pytest.approx(form.loss(8e9, 15e12))
    assert cost["extra_flops"] == pytest.approx(7.2e23 / cost["cheapest_of_equal_loss"]["flops"] - 1)
    assert found["optimum_of_equal_flops"]["flops"] == pytest.approx(7.2e23)
    assert set(found["training"]["interval"]) == {"level", "loss"}
    for pair in ({"flops": 7.2e23, "parameters": 8e9}, {"flops": 7.2e23, "tokens": 15e12}):
        same = ask(**pair)["training"]
        assert (same["parameters"], same["tokens"]) == pytest.approx((8e9, 15e12))
    reached = ask(parameters=8e9, loss=form.loss(8e9, 15e12))["training"]
    assert reached["tokens"] == pytest.approx(15e12)


def test_inference_and_repeats_choose_the_hyperparameters():
    life = ask(parameters=30e9, inference_tokens=1e13)
    assert life["lifetime"]["saving"] == pytest.approx(0.4271, abs=5e-5)
    assert life["neighbour"]["hidden_size"] == 4352  # of 11.6B, not of 30B
    repeated = ask("muennighoff", flops=9.3e21, unique_tokens=25e9)
    assert repeated["repeated"]["epochs"] == pytest.approx(9.10, abs=5e-3)
    assert "9.10 epochs, worth 182B new tokens" in page(repeated)
    assert "the data is not all needed" in page(ask(flops=1e20, unique_tokens=1e13))


@pytest.mark.parametrize("given", [{"tokens": 1e12}, {"flops": 4.2e22}])
def test_repeats_count_in_a_training_of_one_s_own(given):
    """One that is worse than the best on this data, not better; the planner expects the same of it."""
    found = ask(parameters=7e9, unique_tokens=10e9, **given)
    training, spread = found["training"], law("epoch").spread.sample()
    assert training["loss"] == repetition.loss(law("epoch").form, 7e9, 1e12, 10e9) == pytest.approx(2.2402, abs=5e-5)
    assert training["loss"] > found["repeated"]["best"]["loss"] > found["repeated"]["unlimited"]["loss"]
    low, _, high = training["interval"]["loss"]
    assert low < training["loss"] < high
    assert (low, high) == pytest.approx(np.percentile(repetition.loss(spread, 7e9, 1e12, 10e9), [10, 90]), abs=1e-4)
    assert found["cost_of_choice"]["cheapest_of_equal_loss"]["loss"] == pytest.approx(training["loss"])
    # What is given is what begins: neither the best on this data nor that without repeats.
    begins = ask(parameters=7e9, tokens=1e12)["hyperparameters"]
    assert found["hyperparameters"]["learning_rate"] == begins["learning_rate"]
    assert found["hyperparameters"]["warmup_tokens"] == begins["warmup_tokens"]
    plenty = ask(parameters=7e9, unique_tokens=1e13, **given)["training"]
    assert plenty["loss"] == pytest.approx(law("epoch").form.loss(7e9, 1e12))


def test_kaplan_has_losses_of_its_own():
    found = ask("kaplan", flops=8.64e19)
    assert found["kaplan_losses"]["L(C)"] == pytest.approx(2.658080, abs=5e-7)
    assert "L(N, D)" in page(found)
    assert ask(flops=1e20)["kaplan_losses"] is None


@pytest.mark.parametrize(
    ("name", "question", "message"),
    [
        ("epoch", {}, "0 of flops, parameters, tokens, loss are given; give one"),
        ("epoch", {"flops": 1, "parameters": 1, "tokens": 1}, "3 of flops"),
        (
            "epoch",
            {"flops": 1e20, "loss": 2},
            "flops and loss are given; beside a loss, give the parameters or nothing",
        ),
        ("epoch", {"tokens": 1e20, "loss": 2}, "tokens and loss are given"),
        ("epoch", {"parameters": 1e9, "loss": 1.9}, r"with no amount of data: .* more than 6.687e\+10"),
        ("llama3", {"loss": 2}, "the law llama3 gives no loss and cannot answer about a loss; try --law epoch"),
        ("llama3", {"flops": 1e20, "inference_tokens": 1}, "cannot answer about inference tokens"),
        ("llama3", {"flops": 1e20, "unique_tokens": 1}, "cannot answer about unique tokens"),
        (
            "epoch",
            {"flops": 1e20, "inference_tokens": 1e9, "unique_tokens": 1e9},
            "inference tokens and unique tokens are given, but no law covers both; give one of them",
        ),
        (
            "epoch",
            {"parameters": 1e9, "loss": 3, "unique_tokens": 1e9},
            "repeats may not reach a loss; give tokens or flops in place of the loss",
        ),
        ("epoch", {"parameters": 1e9, "tokens": 1e9, "unique_tokens": 0}, "unique tokens = 0 is not a number above 0"),
        ("llama3", {"parameters": 1, "tokens": 1, "unique_tokens": 1}, "cannot answer about unique tokens"),
        ("epoch", {"flops": 0}, "flops = 0 is not a number above 0"),
    ],
)
def test_questions_without_an_answer(name, question, message):
    with pytest.raises(PlanError, match=message):
        answer(law(name), Question(**question))


def test_a_law_of_one_s_own(tmp_path):
    terms = np.array([[0.1, 0.2, 0.3, 0.4, 0.5], [0.1, 0.2, 0.5, 0.4, 0.5]])
    own = Law("fit", Surface(1.5, 100.0, 200.0, 0.3, 0.35), "here", "total", "none", Bootstraps(1e8, 1e9, terms))
    write_law(tmp_path / "law.json", own)
    found = find(str(tmp_path / "law.json"))
    assert (found.form, found.source, found.counts) == (own.form, "here", "total")
    assert np.array_equal(found.spread.sample().E, np.exp([0.3, 0.5]))
    assert np.allclose(found.spread.sample().A, np.exp(0.1) * 1e8**0.4, rtol=1e-12)
    assert find("epoch") is LAWS["epoch"]
    (tmp_path / "other.json").write_text("{}")
    for path, reason in ((tmp_path / "other.json", "'constants'"), (tmp_path / "absent.json", "No such file")):
        with pytest.raises(PlanError, match=f"{path.name} is not a law that megaxf plan fit wrote: .*{reason}"):
            read_law(path)


@pytest.mark.parametrize(
    ("section", "change", "message"),
    [
        ("constants", {"A": -3.0}, "constants.A = -3.0 is not a number above 0"),
        ("constants", {"alpha": 0}, "constants.alpha = 0 is not a number above 0"),
        ("constants", {"E": "low"}, "constants.E = 'low' is not a number above 0"),
        ("constants", {"B": float("nan")}, "constants.B = nan is not a number above 0"),
        ("constants", {"C": 1.0}, "unexpected keyword argument 'C'"),
        ("bootstraps", {"tokens": 0}, "bootstraps.tokens = 0 is not a number above 0"),
        ("bootstraps", {"terms": [[1, 2, 3]]}, "bootstraps.terms are not rows of five numbers"),
        ("bootstraps", {"terms": []}, "bootstraps.terms are not rows of five numbers"),
        ("bootstraps", {"terms": [[1, 2, 3, 4, None]]}, "bootstraps.terms are not rows of five numbers"),
    ],
)
def test_faults_of_a_law_of_one_s_own(tmp_path, section, change, message):
    path = tmp_path / "law.json"
    spread = Bootstraps(1e8, 1e9, np.full((2, 5), 0.3))
    write_law(path, Law("fit", Surface(1.5, 100.0, 200.0, 0.3, 0.35), "here", "total", "none", spread))
    written = json.loads(path.read_text())
    path.write_text(json.dumps(written | {section: written[section] | change}))
    with pytest.raises(PlanError, match=f"law.json is not a law that megaxf plan fit wrote: .*{message}"):
        read_law(path)
    path.write_text(json.dumps(written | {"counts": "all of them"}))
    with pytest.raises(PlanError, match="counts = 'all of them'; use one of total, non-embedding, matrices with"):
        read_law(path)
    path.write_text(json.dumps(written | {section: [1]}))
    with pytest.raises(PlanError, match=r"law.json is not a law that megaxf plan fit wrote"):
        read_law(path)


@pytest.mark.parametrize("question", [{"tokens": 1e100}, {"parameters": 1e200}, {"loss": 1.8172 + 1e-15}])
def test_numbers_beyond_numbers(question):
    with pytest.raises(PlanError, match="is beyond what this law can be asked about; use a "):
        answer(Law("steep", Surface(1.8172, 1e10, 1e10, 0.01, 0.02), "", "total", ""), Question(**question))
    with pytest.raises(PlanError):
        answer(law("epoch"), Question(tokens=1e100))


def test_listing():
    text = listing()
    assert all(f"{name}\n  {row.source}" in text for name, row in LAWS.items())
