"""A model gives the same tokens whole, cut over ranks, and spread over memory and disk."""

from itertools import chain

import pytest
import torch

from megaxf.generate import GenerateError, Sampling, generate
from megaxf.generate.loading import load, spread
from megaxf.models import matmul
from megaxf.models.initialize import initialize
from megaxf.models.registry import family
from megaxf.models.weights import Weights
from megaxf.parallel.mesh import build_mesh

SIZES = {
    "vocab_size": 61,
    "hidden_size": 24,
    "intermediate_size": 44,
    "num_hidden_layers": 5,
    "num_attention_heads": 4,
    "max_position_embeddings": 48,
    "initializer_range": 0.3,
}
LLAMA = {"family": "llama", "num_key_value_heads": 2, "head_dim": 10}
KINDS = {
    "llama": LLAMA,
    "tied": LLAMA | {"tie_word_embeddings": True},
    "one key head, biases": LLAMA | {"num_key_value_heads": 1, "attention_bias": True},
    "window, norms": LLAMA | {"sliding_window": 5, "qk_norm": True},
    "gpt2": {"family": "gpt2"},
    "gpt_neox": {"family": "gpt_neox", "rotary_pct": 0.67},
}
PROMPTS = [[5], [9, 2, 60, 33, 1, 8, 8], list(range(20, 40))]
DRAWN = Sampling(temperature=0.9, top_p=0.95, repetition_penalty=1.2, seed=6)


class Counted(Weights):
    """The weights of a model, and the names of those that were read."""

    def __init__(self, model):
        self.state = {name: weight.detach() for name, weight in model.named_parameters()}
        self.shapes = {name: weight.shape for name, weight in self.state.items()}
        self.read = []

    def __getitem__(self, name):
        self.read.append(name)
        return self.state[name]


def made(kind):
    """(config, model, weights) with biases and norms that are not trivial."""
    settings = SIZES | KINDS[kind]
    module = family(settings["family"])
    model = module.Model(module.Config(**settings)).eval()
    initialize(model, 4)
    draw = torch.Generator().manual_seed(5)
    for weight in model.parameters():
        if weight.dim() == 1:
            weight.data += 0.3 * torch.randn(weight.shape, generator=draw)
    return model.config, model, Counted(model)


def texts(model, axis=None):
    """Greedy and drawn."""
    options = {"max_new_tokens": 12, "batch_size": 2, "logprobs": True, "prompt_logprobs": True, "axis": axis}
    return [generate(model, PROMPTS, sampling=sampling, **options) for sampling in (Sampling(), DRAWN)]


def assert_same(found, expected):
    for ours, theirs in zip(chain(*found), chain(*expected), strict=True):
        assert (ours.tokens, ours.reason) == (theirs.tokens, theirs.reason)
        assert ours.logprobs == pytest.approx(theirs.logprobs, abs=1e-4)
        assert ours.prompt_logprobs == pytest.approx(theirs.prompt_logprobs, abs=1e-4)


def on_ranks(kind):
    config, _, weights = made(kind)
    axis = build_mesh({"tensor": 2}).axis("tensor")
    model = load(config, weights, torch.float32, "cpu", axis)
    return texts(model, axis), [weight.numel() for weight in model.parameters()]


@pytest.mark.parametrize("kind", KINDS)
def test_cut_over_two_ranks(ranks2, kind):
    """61 tokens over two ranks: the last has a row that belongs to no token, and is never drawn."""
    _, model, _ = made(kind)
    (first, held), (second, _) = ranks2(on_ranks, kind)
    assert_same(first, texts(model))
    assert first == second  # Every bit, so that draws cannot part.
    assert sum(held) < 0.8 * sum(weight.numel() for weight in model.parameters())


def test_ranks_that_do_not_fit():
    config, _, weights = made("llama")
    axis = type("Axis", (), {"size": 3})
    with pytest.raises(GenerateError, match=r"3 processes do not divide model\.num_attention_heads = 4; start fewer"):
        load(config, weights, torch.float32, "cpu", axis)


@pytest.mark.parametrize("kind", ["llama", "tied", "gpt2", "gpt_neox"])
def test_spread_over_memory_and_disk(kind):
    config, model, weights = made(kind)
    layer = sum(weight.nbytes for weight in model.layers[0].parameters())
    outside = sum(weight.nbytes for weight in model.parameters()) - 5 * layer
    spread_model = spread(config, weights, torch.float32, {"cpu": outside + 4 * layer - 8})
    assert list(spread_model.hf_device_map.values()).count("disk") == 3  # One place is for the layer at work.
    weights.read.clear()
    assert_same(texts(spread_model), texts(model))
    late = [name for name in model.state_dict() if any(f".{number}." in name for number in (2, 3, 4))]
    assert set(weights.read) == set(late)
    assert all(weight.is_meta for weight in spread_model.layers[4].parameters())
    with pytest.raises(GenerateError, match="max-memory cpu = 9 bytes is too little: embeddings, output matrix"):
        spread(config, weights, torch.float32, {"cpu": 9})


def test_where_everything_fits():
    config, model, weights = made("llama")
    spread_model = spread(config, weights, torch.float32)
    assert set(spread_model.hf_device_map.values()) == {next(iter(spread_model.hf_device_map.values()))}
    assert_same(texts(spread_model), texts(model))


def test_in_another_precision():
    config, model, weights = made("llama")
    rounded = load(config, weights, torch.bfloat16, "cpu")
    for name, weight in rounded.named_parameters():
        assert torch.equal(weight, weights.state[name].bfloat16()) and not weight.requires_grad
    assert next(model.parameters()).dtype == torch.float32


@pytest.mark.parametrize("kind", KINDS)
def test_laid_out_for_one_row(kind, monkeypatch):
    """The same weights and results, but that matrices lie in memory by columns where MKL multiplies; not in bf16."""
    monkeypatch.setattr(matmul, "SLOW_MKL", False)
    config, model, weights = made(kind)
    loaded = load(config, weights, torch.float32, "cpu", one_row=True)
    matrices = [(name, weight) for name, weight in loaded.named_parameters() if weight.dim() == 2]
    assert matrices and all(weight.stride(0) == 1 < weight.stride(1) for _, weight in matrices)
    assert all(torch.equal(weight, weights.state[name]) for name, weight in loaded.named_parameters())
    assert_same(texts(loaded), texts(model))
    rounded = load(config, weights, torch.bfloat16, "cpu", one_row=True)
    assert all(weight.stride(1) == 1 for weight in rounded.parameters() if weight.dim() == 2)
