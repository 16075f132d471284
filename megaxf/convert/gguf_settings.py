"""The settings of a model under GGUF's keys, so that llama.cpp computes the same."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch

from megaxf.models.rope_scaling import LinearScaling, Llama3Scaling, NtkScaling, YarnScaling, plain_frequencies

if TYPE_CHECKING:
    from gguf import GGUFWriter

FREQUENCIES = "rope_freqs.weight"
"""Table [head_dim / 2] of what each rotary frequency is divided by."""


def describe_model(writer: GGUFWriter, config: Any) -> None:
    """Sizes, epsilon and rotary settings."""
    writer.add_vocab_size(config.vocab_size)
    writer.add_context_length(context_length(config))
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(config.head_dim)
    writer.add_value_length(config.head_dim)
    if config.family == "llama":
        writer.add_layer_norm_rms_eps(config.rms_norm_eps)
        writer.add_rope_dimension_count(config.head_dim)
        _describe_rope(writer, config)
    else:
        writer.add_layer_norm_eps(config.layer_norm_eps)
    if config.family == "gpt_neox":
        writer.add_parallel_residual(config.use_parallel_residual)
        writer.add_rope_dimension_count(config.rotary_dim)
        writer.add_rope_freq_base(config.rotary_emb_base)


def context_length(config: Any) -> int:
    """Tokens within which llama.cpp computes the same: it has no sliding window for these architectures."""
    return min(config.max_position_embeddings, config.sliding_window or config.max_position_embeddings)


def needs_table(config: Any) -> bool:
    """Whether the rotary stretch is one that llama.cpp computes from a table of divisors alone.

    It has YaRN with the usual ramp only, and Llama 3.1's stretch by such a table.
    """
    scaling = getattr(config, "rope_scaling", None)
    if isinstance(scaling, YarnScaling):
        return (scaling.beta_fast, scaling.beta_slow, scaling.truncate) != (32.0, 1.0, True)
    return isinstance(scaling, Llama3Scaling)


def tables(config: Any) -> dict[str, torch.Tensor]:
    """Tensors beside the weights."""
    if not needs_table(config):
        return {}
    plain = plain_frequencies(config.head_dim, config.rope_theta)
    return {FREQUENCIES: plain / config.rope_scaling.apply(plain, config.head_dim, config.rope_theta)[0]}


def _describe_rope(writer: GGUFWriter, config: Any) -> None:
    import gguf

    theta, scaling = config.rope_theta, config.rope_scaling
    if isinstance(scaling, NtkScaling):
        theta = scaling.theta(config.head_dim, theta)
    writer.add_rope_freq_base(theta)
    if isinstance(scaling, LinearScaling):
        writer.add_rope_scaling_type(gguf.RopeScalingType.LINEAR)
        writer.add_rope_scaling_factor(scaling.factor)
    if isinstance(scaling, YarnScaling):
        # What cosine and sine are multiplied by, beyond what llama.cpp multiplies them by with YaRN.
        usual = 1.0
        if not needs_table(config):
            writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
            writer.add_rope_scaling_factor(scaling.factor)
            writer.add_rope_scaling_orig_ctx_len(scaling.original_max_position_embeddings)
            usual = 0.1 * math.log(scaling.factor) + 1
        writer.add_rope_scaling_attn_factors(scaling.temperature / usual)
