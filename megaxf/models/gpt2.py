"""GPT-2 (Radford et al. 2019, "Language Models are Unsupervised Multitask Learners").

Pre-norm decoder layers of multi-head attention and a GELU MLP, biases everywhere, positions from a learned table.
Parameters have Hugging Face's names, but that queries, keys and values have a map each instead of the fused c_attn, and
all weights are stored [out, in]. Dropout is that of the residual stream alone.
"""

from __future__ import annotations

import torch
from torch import nn

from megaxf.models.decoder import Decoder, Layer, Options, SelfAttention, Shared
from megaxf.models.dropout import Dropout
from megaxf.models.gelu import GeluMLP
from megaxf.models.gpt2_config import Config
from megaxf.models.linear import Embedding, Linear
from megaxf.models.norm import LayerNorm

TENSOR_PLAN = {
    "transformer.wte": "vocab",
    "transformer.wpe": "sequence",
    "transformer.h.*.ln_1": "sequence",
    "transformer.h.*.attn.q_proj": "column",
    "transformer.h.*.attn.k_proj": "column",
    "transformer.h.*.attn.v_proj": "column",
    "transformer.h.*.attn.c_proj": "row",
    "transformer.h.*.attention_dropout": "sequence",
    "transformer.h.*.ln_2": "sequence",
    "transformer.h.*.mlp.c_fc": "column",
    "transformer.h.*.mlp.c_proj": "row",
    "transformer.h.*.mlp_dropout": "sequence",
    "transformer.ln_f": "sequence",
    "lm_head": "vocab",
}


class Attention(SelfAttention):
    """Multi-head attention (arXiv 1706.03762)."""

    def __init__(self, config: Config, layer_index: int, options: Options) -> None:
        super().__init__(config.head_dim, layer_index, options)
        hidden, dtype = config.hidden_size, options.dtype
        self.q_proj = Linear(hidden, hidden, dtype=dtype)
        self.k_proj = Linear(hidden, hidden, dtype=dtype)
        self.v_proj = Linear(hidden, hidden, dtype=dtype)
        self.c_proj = Linear(hidden, hidden, dtype=dtype)

    def forward(self, x: torch.Tensor, shared: Shared) -> torch.Tensor:
        """[batch, seq, hidden] -> [batch, seq, hidden]"""
        q, k, v = (y.unflatten(-1, (-1, self.head_dim)) for y in self.q_proj.beside(x, self.k_proj, self.v_proj))
        return self.c_proj(self.mix(q, k, v, shared))


class MLP(GeluMLP):
    """c_proj(gelu(c_fc(x)))"""

    def __init__(self, config: Config, recompute: bool, dtype: torch.dtype | None) -> None:
        super().__init__(config.hidden_act, recompute)
        self.c_fc = Linear(config.hidden_size, config.intermediate_size, dtype=dtype)
        self.c_proj = Linear(config.intermediate_size, config.hidden_size, dtype=dtype)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[batch, seq, hidden] -> [batch, seq, hidden]"""
        return self.through(x, self.c_fc, self.c_proj)


class Block(Layer):
    """x + attention(norm(x)), then the same with the MLP."""

    def __init__(self, config: Config, layer_index: int, options: Options) -> None:
        super().__init__(options.recompute_of(layer_index))
        self.ln_1 = LayerNorm(config.hidden_size, config.layer_norm_eps, options.dtype)
        self.attn = Attention(config, layer_index, options)
        self.ln_2 = LayerNorm(config.hidden_size, config.layer_norm_eps, options.dtype)
        self.mlp = MLP(config, self.recompute == "selective", options.dtype)
        self.attention_dropout = Dropout(options.dropout, site=2 * layer_index)
        self.mlp_dropout = Dropout(options.dropout, site=2 * layer_index + 1)

    def block(self, x: torch.Tensor, shared: Shared) -> torch.Tensor:
        """[batch, seq, hidden] -> [batch, seq, hidden]"""
        x = x + self.attention_dropout(self.attn(self.normed(self.ln_1, x), shared), shared.keys)
        return x + self.mlp_dropout(self.mlp(self.normed(self.ln_2, x)), shared.keys)


class Transformer(nn.Module):
    """Tables of tokens and of positions, layers, final norm."""

    def __init__(self, config: Config, options: Options) -> None:
        super().__init__()
        self.wte = Embedding(config.vocab_size, config.hidden_size, dtype=options.dtype)
        self.wpe = Embedding(config.max_position_embeddings, config.hidden_size, dtype=options.dtype)
        self.h = nn.ModuleList(Block(config, index, options) for index in range(config.num_hidden_layers))
        self.ln_f = LayerNorm(config.hidden_size, config.layer_norm_eps, options.dtype)


class Model(Decoder):
    """A model of the family."""

    table_name, layers_name, norm_name, head_name = "transformer.wte", "transformer.h", "transformer.ln_f", "lm_head"
    residual_projections = ("c_proj.weight",)
    key_value_projections = ("k_proj", "v_proj")
    config: Config

    def build(self, options: Options) -> None:
        """Make the modules."""
        self.transformer = Transformer(self.config, options)
        if not self.config.tie_word_embeddings:
            hidden, words = self.config.hidden_size, self.config.vocab_size
            self.lm_head = Linear(hidden, words, bias=False, dtype=options.dtype)

    @property
    def before_layers(self) -> tuple[str, ...]:
        """Both tables."""
        return "transformer.wte", "transformer.wpe"

    def embed(self, tokens: torch.Tensor, shared: Shared) -> torch.Tensor:
        """Token ids [batch, seq] -> [batch, seq, hidden]."""
        embedded: torch.Tensor = self.transformer.wte(tokens) + self.transformer.wpe(shared.positions)
        return embedded
