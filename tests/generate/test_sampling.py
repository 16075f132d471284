"""Draws follow the distribution that was asked for, and each row its own generator."""

import math

import pytest
import torch
from transformers import RepetitionPenaltyLogitsProcessor

from megaxf.generate import GenerateError, Sampling, generate
from megaxf.generate.sampling import choose, likeliest, penalise, probabilities, row_generator

CHANCES = torch.tensor([[0.1, 0.4, 0.05, 0.25, 0.2]])
LOGITS = CHANCES.log()


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"temperature": 1.0}, [0.1, 0.4, 0.05, 0.25, 0.2]),
        ({"temperature": 1.0, "top_k": 2}, [0, 0.4 / 0.65, 0, 0.25 / 0.65, 0]),
        ({"temperature": 1.0, "top_k": 99}, [0.1, 0.4, 0.05, 0.25, 0.2]),
        ({"temperature": 1.0, "top_p": 0.5}, [0, 0.4 / 0.65, 0, 0.25 / 0.65, 0]),
        ({"temperature": 1.0, "top_p": 0.39}, [0, 1, 0, 0, 0]),
        ({"temperature": 1.0, "top_p": 0.66}, [0, 0.4 / 0.85, 0, 0.25 / 0.85, 0.2 / 0.85]),
        ({"temperature": 1.0, "top_k": 2, "top_p": 0.6}, [0, 1, 0, 0, 0]),
        ({"temperature": 1e-39}, [0, 1, 0, 0, 0]),
        ({"temperature": 0.5}, [c * c / 0.275 for c in (0.1, 0.4, 0.05, 0.25, 0.2)]),
    ],
)
def test_distributions(options, expected):
    assert probabilities(LOGITS.clone(), Sampling(**options))[0].tolist() == pytest.approx(expected, abs=1e-6)


def test_tokens_that_reach_p_exactly_are_enough():
    assert probabilities(torch.zeros(1, 4), Sampling(temperature=1.0, top_p=0.5)).tolist() == [[0.5, 0.5, 0, 0]]


def test_draws_follow_the_distribution():
    sampling = Sampling(temperature=1.0, top_k=3)
    rows = 4000
    drawn = torch.tensor(choose(LOGITS.expand(rows, 5), sampling, [row_generator(1, row) for row in range(rows)]))
    shares = [(drawn == token).float().mean().item() for token in range(5)]
    assert shares == pytest.approx([0, 0.4 / 0.85, 0, 0.25 / 0.85, 0.2 / 0.85], abs=0.03)
    assert shares[0] == shares[2] == 0


@pytest.mark.parametrize(
    "options",
    [{}, {"temperature": 1.7, "top_k": 1}, {"temperature": 1.7, "top_p": 0.0}, {"top_k": 5, "top_p": 0.3}],
)
@pytest.mark.parametrize("seed", [0, 1])
def test_four_ways_to_be_greedy(make_model, prompts, options, seed):
    greedy = generate(make_model(), prompts, max_new_tokens=6, sampling=Sampling())
    assert generate(make_model(), prompts, max_new_tokens=6, sampling=Sampling(**options, seed=seed)) == greedy


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"temperature": -0.1}, "temperature = -0.1 must be 0"),
        ({"temperature": math.nan}, "temperature = nan"),
        ({"temperature": math.inf}, "temperature = inf"),
        ({"top_k": 0}, "top-k = 0 must be 1 or more"),
        ({"top_k": -3}, "top-k = -3"),
        ({"top_p": 1.1}, "top-p = 1.1 must lie between 0 and 1"),
        ({"top_p": -0.1}, "top-p = -0.1"),
        ({"repetition_penalty": 0.0}, "repetition-penalty = 0.0 must be above 0"),
        ({"repetition_penalty": math.nan}, "repetition-penalty = nan"),
    ],
)
def test_values_without_meaning(options, message):
    with pytest.raises(GenerateError, match=message):
        Sampling(**options)


def test_penalty_of_what_has_been_said():
    """CTRL's formula, as transformers has it: positive logits divided, negative ones multiplied, each token once."""
    draw = torch.Generator().manual_seed(3)
    logits, rows = torch.randn(3, 50, generator=draw), [[1, 1, 4], [7], list(range(0, 50, 3))]
    before = logits.clone()
    found = penalise(logits, rows, 1.7)
    for row, tokens in enumerate(rows):
        expected = RepetitionPenaltyLogitsProcessor(1.7)(torch.tensor([tokens]), logits[row : row + 1].clone())
        assert torch.equal(found[row], expected[0])
    assert torch.equal(logits, before)


def test_a_row_does_not_depend_on_its_neighbours(make_model, prompts):
    model, sampling = make_model(), Sampling(temperature=1.0, seed=4)
    together = generate(model, prompts, max_new_tokens=8, sampling=sampling)
    others = generate(model, [prompts[0], prompts[3], prompts[2]], max_new_tokens=8, sampling=sampling)
    assert [together[0], together[2]] == [others[0], others[2]]
    assert generate(model, prompts, max_new_tokens=8, sampling=sampling) == together
    assert generate(model, prompts, max_new_tokens=8, sampling=Sampling(temperature=1.0, seed=5)) != together
    same = generate(model, [prompts[1]] * 2, max_new_tokens=8, sampling=sampling)
    assert same[0] != same[1]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64])
def test_likeliest_is_what_torch_finds(dtype):
    """Of equals the first, as in bf16 many are; a NaN before all numbers, so that it is not passed over."""
    logits = torch.randn(5, 3001, generator=torch.Generator().manual_seed(3)).to(dtype)
    logits[1, [40, 7, 2000]] = 9.0
    logits[2] = -torch.inf
    logits[3, 17] = torch.nan
    found = likeliest(logits)
    assert found == logits.argmax(-1).tolist() and found[1:4] == [7, 0, 17]
