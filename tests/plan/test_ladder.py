"""A ladder of runs: sizes, tokens, scaled settings."""

import numpy as np
import pytest

from megaxf.config import validate
from megaxf.models.registry import config_type
from megaxf.plan.errors import PlanError
from megaxf.plan.fit.identify import check_runs
from megaxf.plan.fit.runs import Points
from megaxf.plan.ladder import hint, ladder, page, shape_of
from megaxf.plan.laws.table import law, surface
from megaxf.plan.parameters import count

BUILD = config_type("llama").model_validate
MODEL = {
    "vocab_size": 4096,
    "hidden_size": 512,
    "intermediate_size": 1376,
    "num_hidden_layers": 8,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "tie_word_embeddings": True,
    "rope_theta": 5e5,
}


def base(**sections):
    settings = {
        "run_folder": "runs/base",
        "model": MODEL,
        "data": {"sources": {"text": {"folder": "tokens"}}, "sequence_length": 512},
        "train": {"steps": 5000, "global_batch_size": 64, "micro_batch_size": 4, "precision": "fp32"},
        "optimizer": {"learning_rate": 2e-3},
        "schedule": {"kind": "warmup_stable_decay", "warmup_steps": 500, "min_learning_rate": 2e-4, "decay_steps": 900},
    }
    for name, section in sections.items():
        settings[name] = settings[name] | section
    return validate(settings, "tests").model_dump(mode="json")


def total(settings):
    return count(validate(settings, "tests").model).total


@pytest.fixture(scope="module")
def rungs():
    return list(ladder(base(), BUILD, surface("epoch"), 1e18, 3, 5, "ladder/runs"))


def test_a_shape_is_trained_once():
    """Sizes so near one another that places of a budget share a shape."""
    found = list(ladder(base(), BUILD, surface("epoch"), 1e17, 2, 60, "ladder/runs"))
    assert len(found) == len({rung.name for rung in found}) < 120
    assert f"{len(found)} runs, {sum(rung.flops for rung in found):.3g} FLOPs in all" in page(found)


def test_every_run_is_valid_and_has_the_size_that_it_names(rungs):
    assert len(rungs) == len({rung.name for rung in rungs}) == 15
    for rung in rungs:
        assert total(rung.settings) == rung.parameters
        train, length = rung.settings["train"], rung.settings["data"]["sequence_length"]
        assert rung.tokens == train["steps"] * train["global_batch_size"] * length
        assert rung.settings["run_folder"] == f"ladder/runs/{rung.name}"
        assert rung.settings["model"]["rope_theta"] == 5e5
        assert train["global_batch_size"] % train["micro_batch_size"] == 0


def test_budgets_are_met_and_sizes_lie_around_the_optimum(rungs):
    form = surface("epoch")
    for number, flops in enumerate((1e17, 1e17 * 10**0.5, 1e18)):
        group = rungs[5 * number : 5 * number + 5]
        assert [rung.flops for rung in group] == pytest.approx([flops] * 5, rel=0.02)
        wanted = form.parameters(flops) * np.array([0.25, 0.5, 1, 2, 4])
        assert [rung.parameters for rung in group] == pytest.approx(wanted, rel=0.08)
    columns = [[rung.parameters for rung in rungs], [rung.tokens for rung in rungs], [3.0] * 15]
    check_runs(Points(("",) * 15, *(np.array(column, float) for column in columns)))


def test_settings_follow_the_size(rungs):
    """Batch with N^(2/3), rates (to three digits) with N^(-1/3); warm-up of N tokens, a tenth of the steps at most."""
    own = total(base())
    for rung in rungs:
        scale, train = rung.parameters / own, rung.settings["train"]
        schedule = rung.settings["schedule"]
        assert rung.settings["optimizer"]["learning_rate"] == pytest.approx(2e-3 * scale ** (-1 / 3), rel=6e-3)
        assert schedule["min_learning_rate"] == pytest.approx(2e-4 * scale ** (-1 / 3), rel=6e-3)
        assert abs(train["global_batch_size"] - 64 * scale ** (2 / 3)) <= 2 or train["steps"] == pytest.approx(
            100, rel=0.1
        )
        tokens = min(rung.parameters, rung.tokens / 10)
        assert schedule["warmup_steps"] * train["global_batch_size"] * 512 == pytest.approx(tokens, rel=0.05)
        assert schedule["kind"] == "warmup_stable_decay" and "decay_steps" not in schedule


@pytest.mark.parametrize("parameters", [2e6, 3e7, 1e9, 7e10])
@pytest.mark.parametrize("vocabulary", [512, 32000])
def test_shapes_are_near_in_size_and_proportioned(parameters, vocabulary):
    if parameters == 2e6 and vocabulary == 32000:
        pytest.skip("the vocabulary alone is larger")
    shape = shape_of(base(model={"vocab_size": vocabulary})["model"], BUILD, parameters)
    assert count(BUILD(shape)).total == pytest.approx(parameters, rel=0.12)
    assert 16 <= shape["hidden_size"] / shape["num_hidden_layers"] <= 130
    assert shape["num_attention_heads"] * shape["head_dim"] == shape["hidden_size"]
    assert shape["intermediate_size"] == pytest.approx(8 / 3 * shape["hidden_size"], rel=0.2)


@pytest.mark.parametrize(("name", "more"), [("gpt2", {}), ("gpt_neox", {"rotary_pct": 0.5})])
def test_shapes_of_other_families(name, more):
    build, sizes = config_type(name).model_validate, MODEL.keys() - {"num_key_value_heads", "rope_theta"}
    model = {key: MODEL[key] for key in sizes} | {"intermediate_size": 2048, "family": name} | more
    shape = shape_of(build(model).model_dump(), build, 3e7)
    assert count(build(shape)).total == pytest.approx(3e7, rel=0.12)
    assert shape["intermediate_size"] == pytest.approx(4 * shape["hidden_size"], rel=0.2)
    assert shape.keys() == build(model).model_dump().keys()


def test_another_law_moves_the_sizes():
    largest = [list(ladder(base(), BUILD, law(name).form, 1e18, 2, 5, "")) for name in ("minicpm", "epoch")]
    assert largest[0][-1].parameters < 0.6 * largest[1][-1].parameters


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ((1e18, 1, 5), "1 budgets of 5 sizes do not identify a law"),
        ((1e18, 3, 4), "3 budgets of 4 sizes do not identify a law; at least 2 budgets of 5 sizes do"),
        ((1e13, 2, 5), "no model of .*k parameters has a vocabulary of 4,096"),
    ],
)
def test_ladders_that_cannot_be(options, message):
    with pytest.raises(PlanError, match=message):
        list(ladder(base(), BUILD, surface("epoch"), *options, ""))


def test_runs_that_would_be_too_short():
    coarse = base(model={"vocab_size": 256}, train={"global_batch_size": 512, "micro_batch_size": 512})
    with pytest.raises(PlanError, match=r"would have \d+ steps of 512 sequences of 512 tokens; take more FLOPs"):
        list(ladder(coarse, BUILD, surface("epoch"), 1e15, 2, 5, ""))


def test_page_and_hint(rungs):
    text = page(rungs)
    assert all(rung.name in text for rung in rungs)
    assert f"15 runs, {sum(rung.flops for rung in rungs):.3g} FLOPs in all" in text
    lines = hint("ladder/runs.txt", "ladder")
    assert "megaxf submit ladder/runs.txt --template sweep " in lines
    assert "megaxf plan fit ladder -o ladder/fit" in lines
