"""Tensors of Megatron-LM's GPT model by what of ours they are made of, and how tensor parallelism cuts them.

Megatron-LM fuses queries, keys and values group by group (arXiv 2305.13245): the query heads of a group, its key head,
its value head, then the next group. Gate and up are fused so that each rank has its rows of gate above its rows of up.
A norm is part of the matrix behind it where the model is made by Transformer Engine.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch

from megaxf.models.llama_config import Config

TABLE, HEAD = "embedding.word_embeddings.weight", "output_layer.weight"
LAYER = "decoder.layers."


class Part(NamedTuple):
    """One tensor of Megatron-LM."""

    theirs: str
    """Its name; of a layer's, the end behind the number."""
    ours: tuple[str, ...]
    cut: str
    """How ranks share it: "rows", "columns", "groups" (of fused heads), "halves" (of gate and up), or "none"."""
    local: str = ""
    """Its name without Transformer Engine, where that is another."""


OUTER = (
    Part(TABLE, ("model.embed_tokens.weight",), "rows"),
    Part("decoder.final_layernorm.weight", ("model.norm.weight",), "none"),
    Part(HEAD, ("lm_head.weight",), "rows"),
)
INNER = (
    Part("self_attention.linear_qkv.layer_norm_weight", ("input_layernorm.weight",), "none", "input_layernorm.weight"),
    *(
        Part(f"self_attention.linear_qkv.{kind}", tuple(f"self_attn.{part}_proj.{kind}" for part in "qkv"), "groups")
        for kind in ("weight", "bias")
    ),
    Part("self_attention.q_layernorm.weight", ("self_attn.q_norm.weight",), "none"),
    Part("self_attention.k_layernorm.weight", ("self_attn.k_norm.weight",), "none"),
    Part("self_attention.linear_proj.weight", ("self_attn.o_proj.weight",), "columns"),
    Part("mlp.linear_fc1.layer_norm_weight", ("post_attention_layernorm.weight",), "none", "pre_mlp_layernorm.weight"),
    Part("mlp.linear_fc1.weight", ("mlp.gate_proj.weight", "mlp.up_proj.weight"), "halves"),
    Part("mlp.linear_fc2.weight", ("mlp.down_proj.weight",), "columns"),
)


def parts(config: Config) -> dict[str, Part]:
    """The tensors of a whole model by Megatron-LM's names with global layer numbers, sources under our full names."""
    outer = [part for part in OUTER if part.theirs != HEAD or not config.tie_word_embeddings]
    without = ([] if config.attention_bias else ["bias"]) + ([] if config.qk_norm else ["q_layernorm", "k_layernorm"])
    inner = [part for part in INNER if not any(word in part.theirs.split(".") for word in without)]
    found = {part.theirs: part for part in outer}
    for layer in range(config.num_hidden_layers):
        for part in inner:
            ours = tuple(f"model.layers.{layer}.{end}" for end in part.ours)
            found[f"{LAYER}{layer}.{part.theirs}"] = part._replace(ours=ours)
    return found


def share(part: Part, tensors: Sequence[torch.Tensor], config: Config, rank: int, ranks: int) -> torch.Tensor:
    """What a tensor-parallel rank holds. tensors: ours, whole, of `part.ours`; a vocabulary filled up already."""
    if part.cut == "groups":
        grouped = [_by_group(tensor, config) for tensor in tensors]
        return torch.cat(grouped, 1).flatten(0, 2).chunk(ranks)[rank]
    if part.cut == "halves":
        return torch.cat([tensor.chunk(ranks)[rank] for tensor in tensors])
    (whole,) = tensors
    if part.cut == "none":
        return whole
    return whole.chunk(ranks, dim=0 if part.cut == "rows" else 1)[rank]


def whole(part: Part, shares: Sequence[torch.Tensor], config: Config, source: int) -> torch.Tensor:
    """Our tensor number `source` of `part.ours` from the shares of all ranks; a vocabulary as it was filled up."""
    if part.cut == "groups":
        fused = torch.cat(tuple(shares)).unflatten(0, (config.num_key_value_heads, -1, config.head_dim))
        heads = (slice(None, -2), slice(-2, -1), slice(-1, None))[source]
        return fused[:, heads].flatten(0, 2)
    if part.cut == "halves":
        return torch.cat([share.chunk(2)[source] for share in shares])
    return shares[0] if part.cut == "none" else torch.cat(tuple(shares), 0 if part.cut == "rows" else 1)


def _by_group(tensor: torch.Tensor, config: Config) -> torch.Tensor:
    """[heads * head_dim, ...] -> [groups, heads of a group, head_dim, ...]"""
    return tensor.unflatten(0, (config.num_key_value_heads, -1, config.head_dim))
