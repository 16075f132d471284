"""The same weights in transformers (fp32, eager attention) give the same logits, loss and gradients.

Shapes are such that a mix-up shows: hidden != heads x head_dim, fewer key heads than query heads, weights large enough
that attention is far from uniform, sequences several windows long.
"""

import pytest
import torch
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from megaxf.models.attention import BACKENDS
from megaxf.models.initialize import initialize
from megaxf.models.llama import Config, Model
from megaxf.models.loss import chunked_cross_entropy
from tests.parity.families import counted_targets

SHAPE = {
    "vocab_size": 101,
    "hidden_size": 48,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 256,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1000.0,
    "initializer_range": 0.15,
    "tie_word_embeddings": False,
}
LENGTH = 96
TOLERANCE = 1e-5
"""Of the difference's norm to the norm: a few fp32 roundings (6e-8) through three layers and 96 positions."""

YARN = {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
LLAMA3 = {
    "type": "llama3",
    "factor": 8.0,
    "original_max_position_embeddings": 64,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
}
LLAMA = (LlamaConfig, LlamaForCausalLM)
CASES = {
    "llama": (LLAMA, {}),
    "llama, large eps": (LLAMA, {"rms_norm_eps": 1e-2}),
    "llama, tied": (LLAMA, {"tie_word_embeddings": True}),
    "llama, multi-query": (LLAMA, {"num_key_value_heads": 1}),
    "llama, multi-head": (LLAMA, {"num_key_value_heads": 6}),
    "mistral, window": ((MistralConfig, MistralForCausalLM), {"sliding_window": 7}),
    "qwen2, biases": ((Qwen2Config, Qwen2ForCausalLM), {"attention_bias": True}),
    "qwen3, qk norm, tied": ((Qwen3Config, Qwen3ForCausalLM), {"qk_norm": True, "tie_word_embeddings": True}),
    "linear": (LLAMA, {"rope_scaling": {"type": "linear", "factor": 4.0}}),
    "yarn": (LLAMA, {"rope_scaling": YARN}),
    "llama3": (LLAMA, {"rope_scaling": LLAMA3}),
}


def peer_rope(config):
    """The rotation of a config as transformers writes it."""
    settings = {} if config.rope_scaling is None else config.rope_scaling.model_dump(exclude_none=True)
    kind = settings.pop("type", "default")
    return {"rope_type": kind, "rope_theta": config.rope_theta, **settings}


def peer_config(kind, config):
    renamed = {"family", "rope_scaling", "rope_theta", "qk_norm", "attention_bias", "sliding_window"}
    settings = config.model_dump(exclude=renamed)
    if kind is MistralConfig:
        settings["sliding_window"] = config.sliding_window
    return kind(**settings, rope_parameters=peer_rope(config), attn_implementation="eager", use_cache=False)


def models(case, backend):
    """Ours and theirs with the same weights, biases and norm weights not trivial."""
    (kind, architecture), changes = CASES[case]
    config = Config(**(SHAPE | changes))
    ours = Model(config, attention_backend=backend)
    initialize(ours, 5)
    generator = torch.Generator().manual_seed(6)
    for parameter in ours.parameters():
        if parameter.dim() == 1:
            parameter.data += 0.3 * torch.randn(parameter.shape, generator=generator)
    theirs = architecture(peer_config(kind, config)).float().train()
    result = theirs.load_state_dict(ours.state_dict(), strict=False)
    assert set(result.missing_keys) <= {"lm_head.weight"} and not result.unexpected_keys
    return ours, theirs


def distance(ours, theirs):
    return ((ours - theirs).norm() / theirs.norm()).item()


@pytest.mark.parametrize("backend", list(BACKENDS))
@pytest.mark.parametrize("case", CASES)
def test_logits_loss_and_every_gradient(case, backend):
    ours, theirs = models(case, backend)
    tokens, labels = counted_targets(LENGTH)
    output = theirs(tokens, labels=labels.roll(1, 1))
    output.loss.backward()

    hidden = ours(tokens)
    loss, _ = chunked_cross_entropy(hidden.flatten(0, 1), ours.head_weight(), labels.flatten(), chunk_size=50)
    (loss / (labels != -100).sum()).backward()

    assert distance(ours.logits(hidden), output.logits) < TOLERANCE
    assert distance(ours.logits(hidden)[:, -1], output.logits[:, -1]) < TOLERANCE
    assert (loss / (labels != -100).sum()).item() == pytest.approx(output.loss.item(), rel=TOLERANCE)
    gradients = {name: p.grad for name, p in theirs.named_parameters()}
    assert gradients.keys() == {name for name, _ in ours.named_parameters()}
    for name, parameter in ours.named_parameters():
        assert distance(parameter.grad, gradients[name]) < TOLERANCE, name


SCALINGS = [
    {"type": "linear", "factor": 3.0},
    LLAMA3,
    {**LLAMA3, "factor": 4.0, "original_max_position_embeddings": 2048},
    YARN,
    {**YARN, "truncate": False},
    {**YARN, "beta_fast": 16.0, "beta_slow": 2.0},
    {**YARN, "attention_factor": 1.3},
    {**YARN, "factor": 40.0, "mscale": 0.7, "mscale_all_dim": 1.0},
    {**YARN, "factor": 1.0},
    {**YARN, "original_max_position_embeddings": 2048},
]


@pytest.mark.parametrize("scaling", SCALINGS, ids=str)
@pytest.mark.parametrize(("theta", "head_dim"), [(100_000.0, 64), (10_000.0, 16)])
def test_scaled_frequencies(scaling, theta, head_dim):
    config = Config(**(SHAPE | {"rope_scaling": scaling, "rope_theta": theta, "head_dim": head_dim}))
    frequencies, factor = Model(config).rope.frequencies()
    expected, expected_factor = ROPE_INIT_FUNCTIONS[scaling["type"]](peer_config(LlamaConfig, config))
    torch.testing.assert_close(frequencies, expected, rtol=1e-6, atol=0)
    assert factor == pytest.approx(expected_factor, rel=1e-9)


def test_ntk_is_what_dynamic_ntk_becomes_at_that_length():
    """transformers grows the base with the length L by (factor L / max - factor + 1); at factor 1 that is L / max."""
    config = Config(**(SHAPE | {"rope_scaling": {"type": "ntk", "factor": 4.0}}))
    peer = peer_config(LlamaConfig, Config(**SHAPE))
    peer.rope_parameters = {"rope_type": "dynamic", "rope_theta": 1000.0, "factor": 1.0}
    expected, _ = ROPE_INIT_FUNCTIONS["dynamic"](peer, seq_len=4 * 256)
    torch.testing.assert_close(Model(config).rope.frequencies()[0], expected, rtol=1e-6, atol=0)
