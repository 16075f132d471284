"""Scaled dot-product attention (arXiv 1706.03762), grouped (arXiv 2305.13245), behind one function.

    out = attention(q, k, v)                                          # causal over one sequence
    out = attention(q, k, v, mask=causal_mask(seq, window=4096))      # and only the last 4,096 keys
    out = attention(q, k, v, mask=cache_mask(positions, slots))       # new queries against cached keys

Masks are made once a forward pass and shared by all layers. Without a mask a backend takes its fast causal path, also
where the queries are only the last of the sequence.

Generation keeps the keys and values of earlier tokens in an object with the methods of `Cache`. Slot p of a row holds
the key and value of that row's position p, so a key is visible to a query iff its slot is at most the query's position
and within the window. Rows of different lengths need no padding mask: what stands in slots that a row has not reached
(padding, or nothing yet) lies after all its queries, and is overwritten once the row gets there. It must be finite:
its weight is 0, and 0 times NaN is NaN. Rows of equal lengths need no mask at all.
"""

from __future__ import annotations

import math
from typing import Protocol

import torch
import torch.nn.functional as F

from megaxf.models import attention_cpu


class Cache(Protocol):
    """The keys and values of all layers, as `Model.forward` uses them."""

    def reserve(self, positions: torch.Tensor) -> int | torch.Tensor | None:
        """Called once a forward pass, before the layers.

        positions: [batch, seq] of the new tokens, consecutive within a row, which start anywhere up to the row's
        present length.
        Returns the number of slots that `update` will give, at least positions.max() + 1; or, where slots are used
        again (a sliding window forgets), the position that each of them holds, [1 or batch, slots], beyond all queries
        where it holds none; or None where every query sees every slot.
        Raises ValueError where the positions do not fit.
        """

    def update(self, layer_index: int, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Store one layer's new k and v [batch, seq, kv_heads, head_dim] in the slots of the reserved positions.

        Returns that layer's keys and values of all slots, [batch, slots, kv_heads, head_dim].
        """


def causal_mask(
    seq: int,
    *,
    window: int | None = None,
    document_ids: torch.Tensor | None = None,
    device: torch.device | str | None = None,
) -> torch.Tensor | None:
    """Which keys of a sequence its own queries see: themselves and earlier ones.

    window: only the last `window` of these, the query's own included.
    document_ids: [batch, seq], equal within one document of a row; keys of other documents are hidden.
    Returns True where visible [1 or batch, 1, seq, seq], or None where only causality limits.
    """
    if document_ids is None and (window is None or window >= seq):
        return None
    places = torch.arange(seq, device=device if document_ids is None else document_ids.device)
    mask = _visible(places[None], places, window)
    if document_ids is not None:
        mask = mask & (document_ids[:, None, :, None] == document_ids[:, None, None, :])
    return mask


def cache_mask(
    positions: torch.Tensor, slots: int | torch.Tensor | None, window: int | None = None
) -> torch.Tensor | None:
    """Which cached keys the queries at positions [batch, seq] see; as `causal_mask`, [1 or batch, 1, seq, slots].

    slots: as `Cache.reserve` gives them.
    """
    if slots is None:
        return None
    if isinstance(slots, torch.Tensor):
        return _visible(positions, slots[:, None, None, :], window)
    if extent(positions)[0] == slots - positions.shape[1]:  # All rows stand at the last slot.
        if window is None or window >= slots:
            return None
        positions = positions[:1]
    return _visible(positions, torch.arange(slots, device=positions.device), window)


def extent(positions: torch.Tensor) -> tuple[int, int]:
    """The first and the last of the positions [batch, seq] of all rows."""
    first, last = torch.stack(positions.aminmax()).tolist()
    return first, last


def _visible(queries: torch.Tensor, keys: torch.Tensor, window: int | None) -> torch.Tensor:
    """Positions of queries [batch, seq] and keys [slots] or [batch, 1, 1, slots] -> [batch, 1, seq, slots]."""
    distance = queries[:, None, :, None] - keys
    return distance >= 0 if window is None else (distance >= 0) & (distance < window)


def attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    mask: torch.Tensor | None = None,
    backend: str = "sdpa",
    scale: float | None = None,
) -> torch.Tensor:
    """softmax(scale * q k^T + mask) v; a query that sees no key gives 0.

    q: [batch, seq, heads, head_dim]; k, v: [batch, slots, kv_heads, head_dim], each shared by heads / kv_heads
    neighbouring query heads.
    mask: True where visible, [1 or batch, 1, seq, slots]; None for causal over one sequence of keys, of which the
    queries are the last.
    scale: 1 / sqrt(head_dim) by default.
    Returns [batch, seq, heads, head_dim]. Raises ValueError for an unknown backend, or no mask where seq > slots.
    """
    if backend not in BACKENDS:
        raise ValueError(f"attention backend {backend!r} is not known; use one of {', '.join(BACKENDS)}")
    if mask is None and q.shape[1] > k.shape[1]:
        raise ValueError(f"{q.shape[1]} queries against {k.shape[1]} keys need a mask that says which see which")
    scale = 1 / math.sqrt(q.shape[-1]) if scale is None else scale
    out = BACKENDS[backend](q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), mask, scale)
    return out.transpose(1, 2)


def _reference(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor | None, scale: float
) -> torch.Tensor:
    """The formula, with the softmax in fp32 or wider."""
    groups = q.shape[1] // k.shape[1]
    k, v = k.repeat_interleave(groups, dim=1), v.repeat_interleave(groups, dim=1)
    if mask is None:
        seq, slots = q.shape[2], k.shape[2]
        mask = torch.ones(seq, slots, dtype=torch.bool, device=q.device).tril(slots - seq)
    scores = (q @ k.transpose(-2, -1) * scale).to(torch.promote_types(q.dtype, torch.float32))
    weights = scores.masked_fill(~mask, -torch.inf).softmax(-1)
    weights = weights.masked_fill(~mask.any(-1, keepdim=True), 0.0)
    return weights.to(v.dtype) @ v


def _sdpa(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor | None, scale: float) -> torch.Tensor:
    """PyTorch's fused kernels, but for what they lack or are slow in."""
    if q.shape[2] == 1:
        return _one_query(q, k, v, mask, scale)
    if mask is None and q.shape[2] != k.shape[2]:
        return _last_queries(q, k, v, scale)
    if mask is None and attention_cpu.pays(q):
        return attention_cpu.causal_attention(q, k, v, scale)
    if k.shape[1] != q.shape[1] and mask is not None and q.device.type != "cpu":
        # The fused GPU kernels that take a mask do not share keys between heads.
        groups = q.shape[1] // k.shape[1]
        k, v = k.repeat_interleave(groups, dim=1), v.repeat_interleave(groups, dim=1)
    grouped = k.shape[1] != q.shape[1]
    return F.scaled_dot_product_attention(
        q, k, v, attn_mask=mask, is_causal=mask is None, scale=scale, enable_gqa=grouped
    )


def _one_query(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor | None, scale: float
) -> torch.Tensor:
    """Causality hides nothing from it, so the heads that share keys can stand as its neighbours, who read them once."""
    grouped = q.reshape(*k.shape[:2], -1, q.shape[-1])
    return F.scaled_dot_product_attention(grouped, k, v, attn_mask=mask, scale=scale).reshape(q.shape)


def _last_queries(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float) -> torch.Tensor:
    """Causal, fewer queries than keys: PyTorch has it for GPUs only, as a mask that is never written out."""
    if q.device.type == "cpu":
        return attention_cpu.last_queries(q, k, v, scale)
    from torch.nn.attention.bias import causal_lower_right  # takes 1.7 s, which only fused kernels are worth

    bias = causal_lower_right(q.shape[2], k.shape[2])
    grouped = k.shape[1] != q.shape[1]
    return F.scaled_dot_product_attention(q, k, v, attn_mask=bias, scale=scale, enable_gqa=grouped)


BACKENDS = {"reference": _reference, "sdpa": _sdpa}
