"""The Llama family: Llama, Mistral (sliding window), Qwen2 (biases on q, k, v) and Qwen3 (norms on q and k).

Pre-norm decoder layers of rotary grouped-query attention and SwiGLU (arXiv 2302.13971, 2407.21783). Parameters have the
names and shapes of Hugging Face's, weights are stored [out, in].
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from megaxf.models.decoder import Decoder, Layer, Options, SelfAttention, Shared, keep_nothing
from megaxf.models.dropout import Dropout
from megaxf.models.linear import Embedding, Linear, join
from megaxf.models.llama_config import Config
from megaxf.models.norm import RMSNorm
from megaxf.models.rope import Rope, rotate

__all__ = ["TENSOR_PLAN", "Config", "Model"]

TENSOR_PLAN = {
    "model.embed_tokens": "vocab",
    "model.layers.*.input_layernorm": "sequence",
    "model.layers.*.self_attn.q_proj": "column",
    "model.layers.*.self_attn.k_proj": "column",
    "model.layers.*.self_attn.v_proj": "column",
    "model.layers.*.self_attn.q_norm": "heads",
    "model.layers.*.self_attn.k_norm": "heads",
    "model.layers.*.self_attn.o_proj": "row",
    "model.layers.*.attention_dropout": "sequence",
    "model.layers.*.post_attention_layernorm": "sequence",
    "model.layers.*.mlp.gate_proj": "column",
    "model.layers.*.mlp.up_proj": "column",
    "model.layers.*.mlp.down_proj": "row",
    "model.layers.*.mlp_dropout": "sequence",
    "model.norm": "sequence",
    "lm_head": "vocab",
}


class Attention(SelfAttention):
    """Rotary grouped-query attention."""

    def __init__(self, config: Config, layer_index: int, options: Options) -> None:
        super().__init__(config.head_dim, layer_index, options)
        hidden, dtype = config.hidden_size, options.dtype
        queries = config.num_attention_heads * config.head_dim
        keys = config.num_key_value_heads * config.head_dim
        self.q_proj = Linear(hidden, queries, bias=config.attention_bias, dtype=dtype)
        self.k_proj = Linear(hidden, keys, bias=config.attention_bias, dtype=dtype)
        self.v_proj = Linear(hidden, keys, bias=config.attention_bias, dtype=dtype)
        self.o_proj = Linear(queries, hidden, bias=False, dtype=dtype)
        if config.qk_norm:
            self.q_norm = RMSNorm(config.head_dim, config.rms_norm_eps, dtype)
            self.k_norm = RMSNorm(config.head_dim, config.rms_norm_eps, dtype)
        self.qk_norm = config.qk_norm

    def join(self) -> None:
        """One product for queries, keys and values; for inference."""
        join(self.q_proj, self.k_proj, self.v_proj)

    def forward(self, x: torch.Tensor, shared: Shared) -> torch.Tensor:
        """[batch, seq, hidden] -> [batch, seq, hidden]"""
        q, k, v = (y.unflatten(-1, (-1, self.head_dim)) for y in self.q_proj.beside(x, self.k_proj, self.v_proj))
        if self.qk_norm:
            q, k = self.q_norm(q), self.k_norm(k)
        q, k = rotate(q, *shared.rotation), rotate(k, *shared.rotation)
        return self.o_proj(self.mix(q, k, v, shared))


class MLP(nn.Module):
    """SwiGLU (arXiv 2002.05202): down(silu(gate(x)) * up(x))."""

    def __init__(self, config: Config, recompute: bool, dtype: torch.dtype | None) -> None:
        super().__init__()
        self.recompute = recompute
        self.gate_proj = Linear(config.hidden_size, config.intermediate_size, bias=False, dtype=dtype)
        self.up_proj = Linear(config.hidden_size, config.intermediate_size, bias=False, dtype=dtype)
        self.down_proj = Linear(config.intermediate_size, config.hidden_size, bias=False, dtype=dtype)

    def join(self) -> None:
        """One product for both maps of the input; for inference."""
        join(self.gate_proj, self.up_proj)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[batch, seq, hidden] -> [batch, seq, hidden]"""
        gate, up = self.gate_proj.beside(x, self.up_proj)
        return keep_nothing(self._close, gate, up) if self.recompute else self._close(gate, up)

    def _close(self, gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
        return self.down_proj(F.silu(gate) * up)


class LlamaLayer(Layer):
    """x + attention(norm(x)), then the same with the MLP."""

    def __init__(self, config: Config, layer_index: int, options: Options) -> None:
        super().__init__(options.recompute_of(layer_index))
        dtype = options.dtype
        self.input_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps, dtype)
        self.self_attn = Attention(config, layer_index, options)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps, dtype)
        self.mlp = MLP(config, self.recompute == "selective", dtype)
        self.attention_dropout = Dropout(options.dropout, site=2 * layer_index)
        self.mlp_dropout = Dropout(options.dropout, site=2 * layer_index + 1)

    def block(self, x: torch.Tensor, shared: Shared) -> torch.Tensor:
        """[batch, seq, hidden] -> [batch, seq, hidden]"""
        attended = self.self_attn(self.normed(self.input_layernorm, x), shared)
        x = x + self.attention_dropout(attended, shared.keys)
        return x + self.mlp_dropout(self.mlp(self.normed(self.post_attention_layernorm, x)), shared.keys)


class Trunk(nn.Module):
    """Embedding table, layers, final norm."""

    def __init__(self, config: Config, options: Options) -> None:
        super().__init__()
        self.embed_tokens = Embedding(config.vocab_size, config.hidden_size, dtype=options.dtype)
        self.layers = nn.ModuleList(LlamaLayer(config, index, options) for index in range(config.num_hidden_layers))
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps, options.dtype)


class Model(Decoder):
    """A model of the family."""

    table_name, layers_name, norm_name, head_name = "model.embed_tokens", "model.layers", "model.norm", "lm_head"
    residual_projections = ("o_proj.weight", "down_proj.weight")
    key_value_projections = ("k_proj", "v_proj")
    config: Config

    def build(self, options: Options) -> None:
        """Make the modules."""
        config = self.config
        self.rope = Rope(config.head_dim, config.rope_theta, config.rope_scaling)
        self.model = Trunk(config, options)
        if not config.tie_word_embeddings:
            self.lm_head = Linear(config.hidden_size, config.vocab_size, bias=False, dtype=options.dtype)

    def rotation(self, positions: torch.Tensor, dtype: torch.dtype) -> tuple[torch.Tensor, ...]:
        """Cosine and sine of all of a head's dimensions."""
        return self.rope.tables(positions, dtype)
