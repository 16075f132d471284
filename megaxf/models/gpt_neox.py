"""GPT-NeoX (arXiv 2204.06745) and Pythia (arXiv 2304.01373).

Pre-norm decoder layers in which attention and a GELU MLP work on the same input (or, without `use_parallel_residual`,
one after the other). A part of each head's dimensions is rotary. Parameters have the names and shapes of Hugging
Face's: query_key_value gives query, key and value of the first head, then those of the second one, ...
"""

from __future__ import annotations

import torch
from torch import nn

from megaxf.models.decoder import Decoder, Layer, Options, SelfAttention, Shared
from megaxf.models.dropout import Dropout
from megaxf.models.gelu import GeluMLP
from megaxf.models.gpt_neox_config import Config
from megaxf.models.linear import Embedding, Linear
from megaxf.models.norm import LayerNorm
from megaxf.models.rope import Rope, rotate

TENSOR_PLAN = {
    "gpt_neox.embed_in": "vocab",
    "gpt_neox.layers.*.input_layernorm": "sequence",
    "gpt_neox.layers.*.attention.query_key_value": "column",
    "gpt_neox.layers.*.attention.dense": "row",
    "gpt_neox.layers.*.post_attention_dropout": "sequence",
    "gpt_neox.layers.*.post_attention_layernorm": "sequence",
    "gpt_neox.layers.*.mlp.dense_h_to_4h": "column",
    "gpt_neox.layers.*.mlp.dense_4h_to_h": "row",
    "gpt_neox.layers.*.post_mlp_dropout": "sequence",
    "gpt_neox.final_layer_norm": "sequence",
    "embed_out": "vocab",
}


class Attention(SelfAttention):
    """Multi-head attention, rotary in the first dimensions of each head."""

    def __init__(self, config: Config, layer_index: int, options: Options) -> None:
        super().__init__(config.head_dim, layer_index, options)
        hidden, bias, dtype = config.hidden_size, config.attention_bias, options.dtype
        self.rotary_dim = config.rotary_dim
        self.query_key_value = Linear(hidden, 3 * hidden, bias=bias, dtype=dtype)
        self.dense = Linear(hidden, hidden, bias=bias, dtype=dtype)

    def forward(self, x: torch.Tensor, shared: Shared) -> torch.Tensor:
        """[batch, seq, hidden] -> [batch, seq, hidden]"""
        q, k, v = self.query_key_value(x).unflatten(-1, (-1, 3 * self.head_dim)).chunk(3, dim=-1)
        # v as a tensor of its own, so that what it is a view of is not kept for the backward pass.
        return self.dense(self.mix(self._turned(q, shared), self._turned(k, shared), v.contiguous(), shared))

    def _turned(self, x: torch.Tensor, shared: Shared) -> torch.Tensor:
        turned, rest = x.split((self.rotary_dim, self.head_dim - self.rotary_dim), dim=-1)
        return torch.cat((rotate(turned, *shared.rotation), rest), dim=-1)


class MLP(GeluMLP):
    """dense_4h_to_h(gelu(dense_h_to_4h(x)))"""

    def __init__(self, config: Config, recompute: bool, dtype: torch.dtype | None) -> None:
        super().__init__(config.hidden_act, recompute)
        self.dense_h_to_4h = Linear(config.hidden_size, config.intermediate_size, dtype=dtype)
        self.dense_4h_to_h = Linear(config.intermediate_size, config.hidden_size, dtype=dtype)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[batch, seq, hidden] -> [batch, seq, hidden]"""
        return self.through(x, self.dense_h_to_4h, self.dense_4h_to_h)


class NeoXLayer(Layer):
    """x + attention(norm(x)) + mlp(norm(y)), where y is x, or what attention has made of it."""

    def __init__(self, config: Config, layer_index: int, options: Options) -> None:
        super().__init__(options.recompute_of(layer_index))
        self.use_parallel_residual = config.use_parallel_residual
        self.input_layernorm = LayerNorm(config.hidden_size, config.layer_norm_eps, options.dtype)
        self.attention = Attention(config, layer_index, options)
        self.post_attention_layernorm = LayerNorm(config.hidden_size, config.layer_norm_eps, options.dtype)
        self.mlp = MLP(config, self.recompute == "selective", options.dtype)
        self.post_attention_dropout = Dropout(options.dropout, site=2 * layer_index)
        self.post_mlp_dropout = Dropout(options.dropout, site=2 * layer_index + 1)

    def block(self, x: torch.Tensor, shared: Shared) -> torch.Tensor:
        """[batch, seq, hidden] -> [batch, seq, hidden]"""
        attended = self.attention(self.normed(self.input_layernorm, x), shared)
        y = x + self.post_attention_dropout(attended, shared.keys)
        normed = self.normed(self.post_attention_layernorm, x if self.use_parallel_residual else y)
        return y + self.post_mlp_dropout(self.mlp(normed), shared.keys)


class Trunk(nn.Module):
    """Embedding table, layers, final norm."""

    def __init__(self, config: Config, options: Options) -> None:
        super().__init__()
        self.embed_in = Embedding(config.vocab_size, config.hidden_size, dtype=options.dtype)
        self.layers = nn.ModuleList(NeoXLayer(config, index, options) for index in range(config.num_hidden_layers))
        self.final_layer_norm = LayerNorm(config.hidden_size, config.layer_norm_eps, options.dtype)


class Model(Decoder):
    """A model of the family."""

    table_name, layers_name, norm_name = "gpt_neox.embed_in", "gpt_neox.layers", "gpt_neox.final_layer_norm"
    head_name = "embed_out"
    residual_projections = ("attention.dense.weight", "dense_4h_to_h.weight")
    key_value_projections = ("query_key_value",)
    config: Config

    def build(self, options: Options) -> None:
        """Make the modules."""
        config = self.config
        self.rope = Rope(config.rotary_dim, config.rotary_emb_base, None)
        self.gpt_neox = Trunk(config, options)
        if not config.tie_word_embeddings:
            self.embed_out = Linear(config.hidden_size, config.vocab_size, bias=False, dtype=options.dtype)

    def rotation(self, positions: torch.Tensor, dtype: torch.dtype) -> tuple[torch.Tensor, ...]:
        """Cosine and sine of the rotary dimensions."""
        return self.rope.tables(positions, dtype)
