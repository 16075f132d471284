"""The table of published shapes: its counts against the architectures' formulas, and what it says about proportions."""

import pytest

from megaxf.plan.parameters import count
from megaxf.plan.shape.published import MODELS, neighbours, usual_aspect
from tests.plan.shapes import shape

NAMES = {model.name: model for model in MODELS}
NO_NORMS = ("OLMo-1B", "OLMo-7B", "PaLM 540B")
"""Whose published count has no weights of norms."""


def gated(model):
    """The count of a model with SwiGLU."""
    config = shape(
        model.vocab_size,
        model.hidden_size,
        model.num_hidden_layers,
        model.intermediate_size,
        model.num_attention_heads,
        model.num_key_value_heads,
        head_dim=model.head_dim,
        tie_word_embeddings=model.tied,
        attention_bias=model.name.startswith("Qwen2.5"),
        qk_norm=model.name.startswith("Qwen3"),
    )
    norms = (2 * model.num_hidden_layers + 1) * model.hidden_size
    return count(config).total - (norms if model.name in NO_NORMS else 0)


def plain(model):
    """The count of a model with an MLP of two matrices of 4 h: GPT-2's with learned positions and biases, GPT-NeoX's
    without positions, DeepMind's (arXiv 2203.15556) with relative ones and without biases."""
    vocab, hidden, layers = model.vocab_size, model.hidden_size, model.num_hidden_layers
    if model.name.startswith(("Chinchilla", "Gopher")):
        return layers * 13 * hidden**2 + vocab * hidden
    if model.name.startswith(("Pythia", "GPT-NeoX")):
        return 2 * vocab * hidden + layers * (12 * hidden**2 + 13 * hidden) + 2 * hidden
    positions = 1024 if model.name.startswith("GPT-2") else 2048
    return (vocab + positions) * hidden + layers * (12 * hidden**2 + 13 * hidden) + 2 * hidden


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.name)
def test_counts_follow_from_the_shapes(model):
    assert model.parameters == (gated(model) if model.mlp_matrices == 3 else plain(model))
    assert model.mlp_matrices == 3 or model.intermediate_size == 4 * model.hidden_size


def test_no_model_stands_twice():
    assert len(NAMES) == len(MODELS)


@pytest.mark.parametrize(
    ("parameters", "names"),
    [
        (7e9, ["LLaMA-7B, Llama-2-7B", "Pythia-6.9B", "OLMo-7B", "Mistral-7B"]),
        (2e12, ["Gopher 280B", "Llama-3.1-405B", "MT-NLG 530B", "PaLM 540B"]),
    ],
)
def test_neighbours(parameters, names):
    assert [model.name for model in neighbours(parameters)] == names


def test_proportions_are_within_those_of_the_neighbours():
    for model in MODELS:
        near = [other.aspect for other in MODELS if 1 / 8 < other.parameters / model.parameters < 8]
        assert min(near) < usual_aspect(model.parameters) < max(near)
    assert usual_aspect(1e3) == pytest.approx(usual_aspect(1e6), rel=0.1)
    assert usual_aspect(1e15) == pytest.approx(usual_aspect(2e12), rel=0.1)
