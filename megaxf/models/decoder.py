"""What the models of all families have in common: a family's file has the mathematics, this one the ways in and out.

A family's Model is a `Decoder` made of `Layer`s, each with a `SelfAttention`. Engines, generation and parallelism know
these three only.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from megaxf.models.attention import Cache, attention, cache_mask, causal_mask
from megaxf.models.dropout import token_keys
from megaxf.models.matmul import linear

RECOMPUTE = ("none", "selective", "full")

keep_nothing = partial(checkpoint, use_reentrant=False, preserve_rng_state=False)
"""Run a function without keeping its inner activations: the backward pass makes them again."""


class Options(NamedTuple):
    """How a model computes; what it computes is in its Config. See `Decoder`."""

    attention_backend: str
    recompute: str
    recompute_every: int
    dropout: float
    dtype: torch.dtype | None

    def recompute_of(self, layer_index: int) -> str:
        """What the backward pass of a layer makes again."""
        return "none" if layer_index % self.recompute_every else self.recompute


class Shared(NamedTuple):
    """What all layers of one forward pass share."""

    positions: torch.Tensor
    """[1 or batch, seq]"""
    rotation: tuple[torch.Tensor, ...]
    """Cosine and sine of the rotary embedding, if there is one."""
    mask: Any
    """What `Decoder.make_mask` gives, as `SelfAttention.attend` takes it."""
    cache: Cache | None
    keys: torch.Tensor | None
    """Of the tokens, for dropout."""


class SelfAttention(nn.Module):
    """The part of attention between the maps to queries, keys and values and the map back."""

    def __init__(self, head_dim: int, layer_index: int, options: Options) -> None:
        super().__init__()
        self.layer_index, self.head_dim = layer_index, head_dim
        self.attend: Callable[..., torch.Tensor] = partial(attention, backend=options.attention_backend)

    def mix(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, shared: Shared) -> torch.Tensor:
        """[batch, seq, heads, head_dim], of k and v the key/value heads -> [batch, seq, heads x head_dim]"""
        if shared.cache is not None:
            k, v = shared.cache.update(self.layer_index, k, v)
        return self.attend(q, k, v, mask=shared.mask).flatten(2)


class Layer(nn.Module):
    """A decoder layer, of which `block` is the mathematics."""

    def __init__(self, recompute: str) -> None:
        super().__init__()
        self.recompute = recompute

    def forward(self, x: torch.Tensor, shared: Shared) -> torch.Tensor:
        """[batch, seq, hidden] -> [batch, seq, hidden]"""
        return keep_nothing(self.block, x, shared) if self.recompute == "full" else self.block(x, shared)

    def block(self, x: torch.Tensor, shared: Shared) -> torch.Tensor:
        """As `forward`, keeping its activations."""
        raise NotImplementedError

    def normed(self, norm: nn.Module, x: torch.Tensor) -> torch.Tensor:
        """norm(x), the insides of which are not kept where recomputation is selective."""
        return keep_nothing(norm, x) if self.recompute == "selective" else norm(x)


class Decoder(nn.Module):
    """A decoder-only language model.

    attention_backend: a key of megaxf.models.attention.BACKENDS.
    recompute: what the backward pass makes again rather than keeps. "none": nothing. "selective": the insides of the
    norms and of the MLP's activation, which cost no matrix product. "full": each layer from its input.
    recompute_every: only in every so manieth layer, the first among them.
    dropout: rate at which elements of what attention and MLP add to the residual stream fall out in training.
    seed: of the dropout.
    dtype: of the parameters, torch's default where None. They are unset until `initialize` or a checkpoint fills them.
    """

    table_name: str
    """Of the embedding table."""
    layers_name: str
    norm_name: str
    """Of the final norm."""
    head_name: str
    """Of the output matrix, where it is not the table."""
    residual_projections: tuple[str, ...]
    """Ends of the names of the matrices that write into the residual stream."""
    key_value_projections: tuple[str, ...]
    """Ends of the names of the maps whose outputs are whole key/value heads."""

    def __init__(
        self,
        config: Any,
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
        self.build(Options(attention_backend, recompute, recompute_every, dropout, dtype))

    def build(self, options: Options) -> None:
        """Make the modules."""
        raise NotImplementedError

    def rotation(self, positions: torch.Tensor, dtype: torch.dtype) -> tuple[torch.Tensor, ...]:
        """Cosine and sine for positions [1 or batch, seq]; nothing where the family has no rotary embedding."""
        return ()

    @property
    def before_layers(self) -> tuple[str, ...]:
        """Names of the modules that make the input of the first layer."""
        return (self.table_name,)

    @property
    def after_layers(self) -> tuple[str, ...]:
        """Names of the modules that take the output of the last layer."""
        return self.norm_name, self.table_name if self.config.tie_word_embeddings else self.head_name

    @property
    def layers(self) -> nn.ModuleList:
        """The decoder layers, first to last."""
        layers = self.get_submodule(self.layers_name)
        assert isinstance(layers, nn.ModuleList)
        return layers

    def embed(self, tokens: torch.Tensor, shared: Shared) -> torch.Tensor:
        """Token ids [batch, seq] -> [batch, seq, hidden]."""
        embedded: torch.Tensor = self.get_submodule(self.table_name)(tokens)
        return embedded

    def head_weight(self) -> torch.Tensor:
        """The output matrix [vocab, hidden]; with tied embeddings the embedding table itself."""
        return self.get_parameter(f"{self.after_layers[1]}.weight")

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """[..., hidden] -> [..., vocab]"""
        return linear(hidden, self.head_weight())

    def final_norm(self, hidden: torch.Tensor) -> torch.Tensor:
        """[batch, seq, hidden] -> the same, as the head takes it."""
        normed: torch.Tensor = self.get_submodule(self.norm_name)(hidden)
        return normed

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
        positions: [1 or batch, seq] for the position embedding, 0 .. seq - 1 by default. The order of the tokens in the
        row decides what is earlier, except with a cache, where the positions do.
        samples: [batch], the places of the rows in the order of the data; dropout needs them.
        cache: keys and values of earlier tokens; the new tokens' are added to it.
        Raises ValueError where both a cache and document_ids are given.
        """
        shared = self.shared(tokens, document_ids=document_ids, positions=positions, samples=samples, cache=cache)
        hidden = self.embed(tokens, shared)
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
        return Shared(positions, self.rotation(positions, dtype), mask, cache, keys)

    def _mask(self, tokens: torch.Tensor, document_ids: Any, positions: torch.Tensor, cache: Any) -> Any:
        window = self.config.sliding_window
        if cache is None:
            return self.make_mask(tokens.shape[1], window=window, document_ids=document_ids, device=tokens.device)
        if document_ids is not None:
            raise ValueError("a cache holds one document a row: give either cache or document_ids")
        positions = positions.expand_as(tokens)
        return cache_mask(positions, cache.reserve(positions), window)
