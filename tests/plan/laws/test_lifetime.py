"""Inference-aware optima (the examples of Sardana et al., arXiv 2401.00448) and repeated data (arXiv 2305.16264)."""

import numpy as np
import pytest

from megaxf.plan.errors import PlanError
from megaxf.plan.laws import inference, optimum, repetition
from megaxf.plan.laws.table import surface
from tests.plan.digits import Printed, printed, words

LIFETIMES = """
sardana_mixed    30e9 1e13 1.3613e10  4.4262e12  0.27985
sardana_mixed    13e9 2e12 6.9686e9   1.2478e12  0.17447
sardana_mixed    70e9 1e13 4.1551e10  7.9225e12  0.11949
epoch            30e9 1e13 1.16206e10 2.44878e12 0.4271
epoch            13e9 2e12 6.09791e9  7.37033e11 0.2896
epoch            70e9 1e13 3.27651e10 3.66797e12 0.2911
hoffmann_rounded 30e9 1e13 1.58647e10 6.05234e12 0.1825
hoffmann_rounded 13e9 2e12 8.02278e9  1.7489e12  0.1011
"""


@pytest.mark.parametrize(("name", "size", "served", "parameters", "tokens", "saving"), words(LIFETIMES, 6))
def test_cheapest_over_its_life(name, size, served, parameters, tokens, saving):
    form = surface(name)
    life = inference.with_inference(form, optimum.for_parameters(form, float(size)).loss, float(served))
    assert (life.best.parameters, life.best.tokens, life.saving) == printed(parameters, tokens, saving)
    assert life.best.loss == pytest.approx(life.training_optimum.loss, rel=1e-12)


def test_the_paper_s_two_examples():
    """30B quality: 13.6B on 2.84 times the data; 13B quality as a 7B saves 1.7e22 FLOPs."""
    form = surface("sardana_mixed")
    start = optimum.for_parameters(form, 30e9)
    life = inference.with_inference(form, start.loss, 1e13)
    assert start.tokens == Printed("1.556e12")
    assert life.best.tokens / start.tokens == Printed("2.845")
    start = optimum.for_parameters(form, 13e9)
    assert start.tokens == Printed("5.765e11")
    life = inference.with_inference(form, start.loss, 2e12)
    seven = optimum.allocation(form, 7e9, form.tokens_for_loss(7e9, start.loss))
    assert life.flops(start) - life.flops(seven) == Printed("1.692e22")


def test_without_inference_the_training_optimum_is_best():
    life = inference.with_inference(surface("epoch"), 2.2, 0)
    assert life.best.parameters == pytest.approx(life.training_optimum.parameters, rel=1e-4)
    assert life.saving == pytest.approx(0, abs=1e-9)
    with pytest.raises(PlanError, match="inference tokens = -1 is not a number from 0 up"):
        inference.with_inference(surface("epoch"), 2.2, -1)
    with pytest.raises(PlanError, match="irreducible loss"):
        inference.with_inference(surface("epoch"), 1.5, 1e12)


def test_no_other_size_is_cheaper():
    form = surface("epoch")
    life = inference.with_inference(form, 2.1, 3e12)
    sizes = life.best.parameters * np.array([0.8, 0.99, 1.01, 1.3])
    others = [optimum.allocation(form, size, form.tokens_for_loss(size, 2.1)) for size in sizes]
    assert min(life.flops(other) for other in others) > life.flops(life.best)


def test_worth_of_repeats():
    epochs = np.array([1, 2, 4, 8, 16, 40, 100, 1e9])
    values = ("1", "1.968199", "3.725673", "6.624119", "10.582457", "15.167465", "16.363035", "16.387756")
    assert tuple(repetition.worth(epochs, 1, repetition.TOKEN_DECAY)) == printed(*values)
    sizes = repetition.worth(np.array([2, 4, 8]), 1, repetition.PARAMETER_DECAY)
    assert tuple(sizes) == printed("1.911477", "3.291894", "4.888954")
    assert repetition.worth(0.5, 1, repetition.TOKEN_DECAY) == 0.5  # not all is used


@pytest.mark.parametrize(
    ("parameters", "tokens", "loss"),
    [(1e9, 100e9, "2.419527"), (8.67e9, 178e9, "2.226963"), (6.34e9, 242e9, "2.225644")],
)
def test_loss_on_repeated_data(parameters, tokens, loss):
    assert repetition.loss(surface("muennighoff"), parameters, tokens, 25e9) == Printed(loss)


REPEATED = """
9.3e21  25e9 6.8151e9  2.2744e11 9.10 8.8898e9 1.7436e11
1e21    1e10 2.306e9   7.2275e10 7.23 -        -
5.76e23 1e12 6.7228e10 1.428e12  1.43 -        -
1e20    1e9  6.1253e8  2.72e10   27.2 -        -
"""


@pytest.mark.parametrize(("flops", "unique", "parameters", "tokens", "epochs", "free", "data"), words(REPEATED, 7))
def test_optimum_on_limited_data(flops, unique, parameters, tokens, epochs, free, data):
    found = repetition.for_unique_tokens(surface("muennighoff"), float(flops), float(unique))
    best = found.best
    # The optimum is flat: 4e-5 in N is 1e-10 in the loss, and ours is the lower one.
    assert best.parameters == pytest.approx(float(parameters), rel=4e-5)
    assert best.tokens == pytest.approx(float(tokens), rel=4e-4)
    there = float(flops) / 6 / float(parameters)
    assert best.loss <= repetition.loss(surface("muennighoff"), float(parameters), there, float(unique))
    assert found.epochs == Printed(epochs)
    if free != "-":
        assert (found.unlimited.parameters, found.unlimited.tokens) == printed(free, data)
        assert best.loss == Printed("2.225089")
    sizes = best.parameters * np.array([0.5, 0.95, 1.05, 2])
    others = repetition.loss(surface("muennighoff"), sizes, float(flops) / 6 / sizes, float(unique))
    assert np.all(others > best.loss)


@pytest.mark.parametrize("name", ["epoch", "hoffmann_rounded", "muennighoff"])
def test_with_enough_data_nothing_changes(name):
    found = repetition.for_unique_tokens(surface(name), 1e21, 1e13)
    assert found.best.parameters == pytest.approx(found.unlimited.parameters, rel=1e-4)
    assert found.best.loss == pytest.approx(found.unlimited.loss, rel=1e-12)
    assert found.epochs < 1
    with pytest.raises(PlanError, match="unique tokens = 0 is not a number above 0"):
        repetition.for_unique_tokens(surface(name), 1e21, 0)
