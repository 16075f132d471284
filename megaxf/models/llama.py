"""The Llama family: Llama, Mistral (sliding window), Qwen2 (biases on q, k, v) and Qwen3 (norms on q and k).

Pre-norm decoder layers of rotary grouped-query attention and SwiGLU (arXiv 2302.13971, 2407.21783). Parameters have the
names and shapes of Hugging Face's, weights are stored [out, in].
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

from megaxf.models.attention import Cache, attention, cache_mask, causal_mask
from megaxf.models.dropout import Dropout, token_keys
from megaxf.models.linear import Embedding, Linear
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

RECOMPUTE = ("none", "selective", "full")

keep_nothing = partial(checkpoint, use_reentrant=False, preserve_rng_state=False)
"""Run a function without keeping its inner activations: the backward pass makes them again."""


class Shared(NamedTuple):
    """What all layers of one forward pass share."""

    cos: torch.Tensor
    sin: torch.Tensor
    mask: Any
    """What `Model.make_mask` gives, as `Attention.attend` takes it."""
    cache: Cache | None
    keys: torch.Tensor | None
    """Of the tokens, for dropout."""


class Attention(nn.Module):
    """Rotary grouped-query attention."""

    def __init__(self, config: Config, layer_index: int, backend: str, dtype: torch.dtype | None) -> None:
        super().__init__()
        self.layer_index, self.head_dim = layer_index, config.head_dim
        self.attend: Callable[..., torch.Tensor] = partial(attention, backend=backend)
        hidden = config.hidden_size
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

    def forward(self, x: torch.Tensor, shared: Shared) -> torch.Tensor:
        """[batch, seq, hidden] -> [batch, seq, hidden]"""
        q, k, v = (y.unflatten(-1, (-1, self.head_dim)) for y in self.q_proj.beside(x, self.k_proj, self.v_proj))
        if self.qk_norm:
            q, k = self.q_norm(q), self.k_norm(k)
        q, k = rotate(q, shared.cos, shared.sin), rotate(k, shared.cos, shared.sin)
        if shared.cache is not None:
            k, v = shared.cache.update(self.layer_index, k, v)
        out = self.attend(q, k, v, mask=shared.mask)
        return self.o_proj(out.flatten(2))


class MLP(nn.Module):
    """SwiGLU (arXiv 2002.05202): down(silu(gate(x)) * up(x))."""

    def __init__(self, config: Config, recompute: bool, dtype: torch.dtype | None) -> None:
        super().__init__()
        self.recompute = recompute
        self.gate_proj = Linear(config.hidden_size, config.intermediate_size, bias=False, dtype=dtype)
        self.up_proj = Linear(config.hidden_size, config.intermediate_size, bias=False, dtype=dtype)
        self.down_proj = Linear(config.intermediate_size, config.hidden_size, bias=False, dtype=dtype)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """[batch, seq, hidden] -> [batch, seq, hidden]"""
        gate, up = self.gate_proj.beside(x, self.up_proj)
        return keep_nothing(self._close, gate, up) if self.recompute else self._close(gate, up)

    def _close(self, gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
        return self.down_proj(F.silu(gate) * up)


class Layer(nn.Module):
    """x + attention(norm(x)), then the same with the MLP."""

    def __init__(
        self,
        config: Config,
        layer_index: int,
        backend: str,
        recompute: str,
        dropout: float,
        dtype: torch.dtype | None,
    ) -> None:
        super().__init__()
        self.recompute = recompute
        self.input_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps, dtype)
        self.self_attn = Attention(config, layer_index, backend, dtype)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps, dtype)
        self.mlp = MLP(config, recompute == "selective", dtype)
        self.attention_dropout = Dropout(dropout, site=2 * layer_index)
        self.mlp_dropout = Dropout(dropout, site=2 * layer_index + 1)

    def forward(self, x: torch.Tensor, shared: Shared) -> torch.Tensor:
        """[batch, seq, hidden] -> [batch, seq, hidden]"""
        return keep_nothing(self._block, x, shared) if self.recompute == "full" else self._block(x, shared)

    def _block(self, x: torch.Tensor, shared: Shared) -> torch.Tensor:
        attended = self.self_attn(self._norm(self.input_layernorm, x), shared)
        x = x + self.attention_dropout(attended, shared.keys)
        return x + self.mlp_dropout(self.mlp(self._norm(self.post_attention_layernorm, x)), shared.keys)

    def _norm(self, norm: nn.Module, x: torch.Tensor) -> torch.Tensor:
        return keep_nothing(norm, x) if self.recompute == "selective" else norm(x)


class Trunk(nn.Module):
    """Embedding table, layers, final norm."""

    def __init__(
        self,
        config: Config,
        backend: str,
        recompute: Callable[[int], str],
        dropout: float,
        dtype: torch.dtype | None,
    ) -> None:
        super().__init__()
        self.embed_tokens = Embedding(config.vocab_size, config.hidden_size, dtype=dtype)
        self.layers = nn.ModuleList(
            Layer(config, index, backend, recompute(index), dropout, dtype) for index in range(config.num_hidden_layers)
        )
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps, dtype)


class Model(nn.Module):
    """A decoder-only language model.

    attention_backend: a key of megaxf.models.attention.BACKENDS.
    recompute: what the backward pass makes again rather than keeps. "none": nothing. "selective": the insides of the
    norms and of SwiGLU, which cost no matrix product. "full": each layer from its input.
    recompute_every: only in every so manieth layer, the first among them.
    dropout: rate at which elements of what attention and MLP add to the residual stream fall out in training.
    seed: of the dropout.
    dtype: of the parameters, torch's default where None. They are unset until `initialize` or a checkpoint fills them.
    """

    residual_projections = ("o_proj.weight", "down_proj.weight")
    """Ends of the names of the matrices that write into the residual stream."""
    key_value_projections = ("k_proj", "v_proj")
    """Ends of the names of the maps whose outputs are whole key/value heads."""
    before_layers = ("model.embed_tokens",)
    """Names of the modules that make the input of the first layer."""

    def __init__(
        self,
        config: Config,
        *,
        attention_backend: str = "sdpa",
        recompute: str = "none",
        recompute_every: int = 1,
        dropout: float = 0.0,
        seed: int = 0,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__()
        if recompute not in RECOMPUTE:
            raise ValueError(f"recompute = {recompute!r} is not known; use one of {', '.join(RECOMPUTE)}")
        self.config, self.seed = config, seed
        self.places: Callable[..., torch.Tensor] = torch.arange
        self.make_mask: Callable[..., Any] = causal_mask
        self.rope = Rope(config.head_dim, config.rope_theta, config.rope_scaling)
        self.model = Trunk(
            config,
            attention_backend,
            lambda index: "none" if index % recompute_every else recompute,
            dropout,
            dtype,
        )
        if not config.tie_word_embeddings:
            self.lm_head = Linear(config.hidden_size, config.vocab_size, bias=False, dtype=dtype)

    @property
    def after_layers(self) -> tuple[str, ...]:
        """Names of the modules that take the output of the last layer."""
        return "model.norm", "model.embed_tokens" if self.config.tie_word_embeddings else "lm_head"

    @property
    def layers(self) -> nn.ModuleList:
        """The decoder layers, first to last."""
        return self.model.layers

    def embed(self, tokens: torch.Tensor) -> torch.Tensor:
        """Token ids [batch, seq] -> [batch, seq, hidden]."""
        return self.model.embed_tokens(tokens)

    def head_weight(self) -> torch.Tensor:
        """The output matrix [vocab, hidden]; with tied embeddings the embedding table itself."""
        return (self.model.embed_tokens if self.config.tie_word_embeddings else self.lm_head).weight

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """[..., hidden] -> [..., vocab]"""
        return F.linear(hidden, self.head_weight())

    def final_norm(self, hidden: torch.Tensor) -> torch.Tensor:
        """[batch, seq, hidden] -> the same, as the head takes it."""
        return self.model.norm(hidden)

    def forward(
        self,
        tokens: torch.Tensor,
        *,
        document_ids: torch.Tensor | None = None,
        positions: torch.Tensor | None = None,
        samples: torch.Tensor | None = None,
        cache: Cache | None = None,
    ) -> torch.Tensor:
        """Token ids [batch, seq] -> hidden states [batch, seq, hidden] after the final norm.

        document_ids: [batch, seq], equal within one document of a row; a token sees its own document only.
        positions: [batch, seq] for the rotary embedding, 0 .. seq - 1 by default. The order of the tokens in the row
        decides what is earlier, except with a cache, where the positions do.
        samples: [batch], the places of the rows in the order of the data; dropout needs them.
        cache: keys and values of earlier tokens; the new tokens' are added to it.
        Raises ValueError where both a cache and document_ids are given.
        """
        shared = self.shared(tokens, document_ids=document_ids, positions=positions, samples=samples, cache=cache)
        hidden = self.embed(tokens)
        for layer in self.layers:
            hidden = layer(hidden, shared)
        return self.final_norm(hidden)

    def shared(
        self,
        tokens: torch.Tensor,
        *,
        document_ids: torch.Tensor | None = None,
        positions: torch.Tensor | None = None,
        samples: torch.Tensor | None = None,
        cache: Cache | None = None,
    ) -> Shared:
        """What the layers need beside the hidden states; arguments as those of `forward`."""
        places = self.places(tokens.shape[1], device=tokens.device)
        if positions is None:
            positions = places[None]
        dtype = next(self.parameters()).dtype
        keys = None if samples is None else token_keys(self.seed, samples, places)
        mask = self._mask(tokens, document_ids, positions, cache)
        return Shared(*self.rope.tables(positions, dtype), mask, cache, keys)

    def _mask(self, tokens: torch.Tensor, document_ids: Any, positions: torch.Tensor, cache: Any) -> Any:
        window = self.config.sliding_window
        if cache is None:
            return self.make_mask(tokens.shape[1], window=window, document_ids=document_ids, device=tokens.device)
        if document_ids is not None:
            raise ValueError("a cache holds one document a row: give either cache or document_ids")
        positions = positions.expand_as(tokens)
        return cache_mask(positions, cache.reserve(positions), window)
