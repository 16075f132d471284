"""Proposed shapes: near in size, divisible, accepted by the model and by the layouts that they are for."""

import random
from dataclasses import asdict

import pytest

from megaxf.config import validate
from megaxf.config_files import parse_yaml
from megaxf.models.llama_config import Config
from megaxf.plan.errors import PlanError
from megaxf.plan.parameters import count
from megaxf.plan.shape.page import model_file, page, settings, values
from megaxf.plan.shape.propose import ROOMS, Wish, propose, vocabulary
from megaxf.plan.shape.published import MODELS, usual_aspect


def run_of(model, tensor, stages):
    """A run of the model that is cut so."""
    return validate(
        {
            "run_folder": "x",
            "model": model,
            "data": {"sources": {"t": {"folder": "x"}}, "sequence_length": 64 * tensor},
            "train": {"steps": 1, "global_batch_size": stages, "micro_batch_size": 1},
            "optimizer": {"learning_rate": 1e-3},
            "parallel": {"tensor_parallel_size": tensor, "pipeline_parallel_size": stages},
        },
        "tests",
        None,
        tensor * stages,
    )


@pytest.mark.parametrize("seed", range(60))
def test_proposals_are_near_divisible_and_accepted(seed):
    draw = random.Random(seed)
    parameters = 10 ** draw.uniform(6, 12.3)
    tensor, stages = draw.choice([1, 2, 4, 8, 16]), draw.choice([1, 2, 3, 4, 8, 16])
    if parameters < 1e8:  # A small model has no room for many heads and layers.
        tensor, stages = min(tensor, 4), min(stages, 2)
    wish = Wish(parameters, tensor_parallel_size=tensor, pipeline_parallel_size=stages)
    for found in propose(wish):
        sizes = found.sizes
        run = run_of(settings(sizes, 64 * tensor), tensor, stages)
        total = count(run.model).total
        assert found.deviation == pytest.approx(total / parameters - 1, abs=1e-9)
        assert abs(total / parameters - 1) <= (0.02 if parameters >= 1e8 else 0.1)
        assert sizes.num_attention_heads % tensor == sizes.num_key_value_heads % tensor == 0
        assert sizes.intermediate_size % (8 * tensor) == 0
        assert sizes.num_hidden_layers % stages == 0
        assert sizes.hidden_size % 16 == 0
        assert parameters < 1e9 or sizes.hidden_size % 128 == 0
        aspect = sizes.hidden_size / sizes.num_hidden_layers / usual_aspect(parameters)
        assert 1 / ROOMS[-1].aspect_factor <= aspect <= ROOMS[-1].aspect_factor


@pytest.mark.parametrize("counts", ["total", "non_embedding", "matmul"])
def test_the_count_that_is_asked_for_is_met(counts):
    for found in propose(Wish(3e9, counts)):
        assert getattr(count(found.sizes), counts) == pytest.approx(3e9, rel=0.02)


@pytest.mark.parametrize("name", ["LLaMA-7B, Llama-2-7B", "LLaMA-13B, Llama-2-13B", "Llama-3-70B"])
def test_published_frames_are_among_the_proposals(name):
    (model,) = (model for model in MODELS if model.name == name)
    wish = Wish(model.parameters, vocab_size=model.vocab_size, key_heads=model.num_key_value_heads)
    found = [each.sizes for each in propose(wish, many=6)]
    assert (model.hidden_size, model.num_hidden_layers) in [(s.hidden_size, s.num_hidden_layers) for s in found]


def test_vocabularies():
    assert vocabulary(Wish(1e9, vocab_size=50257)) == 50304
    assert vocabulary(Wish(7e9)) == 131072
    for parameters in (1e6, 1e8, 1e10):
        best = propose(Wish(parameters))[0].sizes
        tables = count(best).embedding
        assert tables < 0.35 * parameters
        assert best.tie_word_embeddings is (parameters < 4.5e9)


def test_a_given_number_of_key_heads():
    for found in propose(Wish(7e9, key_heads=4, tensor_parallel_size=8)):
        assert found.sizes.num_key_value_heads == 4
        run_of(settings(found.sizes, 512), 8, 1)


def test_best_first_and_each_of_another_width():
    found = propose(Wish(7e9), many=5)
    assert [each.score for each in found] == sorted(each.score for each in found)
    assert len({each.sizes.hidden_size for each in found}) == 5


def test_the_model_file_is_the_first_proposal():
    wish = Wish(2.5e8, tensor_parallel_size=2)
    found = propose(wish)
    text = model_file(found[0], wish, 8192)
    read = Config(**parse_yaml(text, "tests"))
    assert {name: getattr(read, name) for name in asdict(found[0].sizes)} == asdict(found[0].sizes)
    assert (read.max_position_embeddings, read.rope_theta) == (8192, 500000.0)
    assert text.startswith(f"# {count(read).total:,} parameters, ")
    shown, listed = page(found, wish), values(found, wish, 8192)
    assert f"{count(read).total:,}" in shown
    assert all(model["name"] in shown for model in listed["neighbours"])
    assert listed["proposals"][0]["parameters"]["total"] == count(read).total


@pytest.mark.parametrize(
    ("wish", "message"),
    [
        (Wish(0.5), "--params = 0.5 is too small or no number; use 1 or more"),
        (Wish(float("inf")), "--params = inf is too small or no number"),
        (Wish(1e9, tensor_parallel_size=0), "--tensor-parallel = 0 is too small"),
        (
            Wish(1e6, tensor_parallel_size=64),
            r"no shape of 1.00M parameters has a vocabulary of 1,024, heads for --tens",
        ),
        (Wish(1e6, vocab_size=128256), r"take more parameters, smaller degrees or a smaller vocabulary"),
        (Wish(1e9, key_heads=7, tensor_parallel_size=2), "7 key/value heads, heads for --tensor-parallel 2"),
    ],
)
def test_faults(wish, message):
    with pytest.raises(PlanError, match=message):
        propose(wish)
