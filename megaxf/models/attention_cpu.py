"""Causal attention on a CPU where PyTorch's kernel is slow, or lacks it.

Slow: bf16 in compiled models. Written as products over blocks of queries, with the elementwise work fused by the
compiler, both passes over a sequence of 256 take two fifths of the kernel's time, over 1,024 four fifths. The scores
are rounded to bf16, as in every attention that is not fused, and widened for the softmax. Elsewhere the kernel is as
good, and keeps its scores in fp32.

Lacking: queries that are the last of a longer sequence of keys, without a mask in memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

SMALLEST_BLOCK, MOST_BLOCKS = 128, 4
"""Of queries whose weights exist at one time; each block is compiled on its own."""
LONGEST = 1024
"""Tokens: beyond this the kernel catches up."""


def pays(q: torch.Tensor) -> bool:
    """Whether `causal_attention` is the faster way for queries [batch, heads, seq, head_dim]."""
    small = q.device.type == "cpu" and q.dtype == torch.bfloat16 and q.shape[2] <= LONGEST
    return small and torch.compiler.is_compiling()


def causal_attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float) -> torch.Tensor:
    """softmax(scale * q k^T) v, each query seeing the keys up to its own place.

    q: [batch, heads, seq, head_dim]; k, v: [batch, kv_heads, seq, head_dim]. Returns the shape of q.
    """
    out: torch.Tensor = _CausalAttention.apply(q, k, v, scale)
    return out


class _CausalAttention(torch.autograd.Function):
    """Blocks of queries against the keys up to their last; backwards from the log-sum-exp, as FlashAttention does
    (arXiv 2205.14135), with all matrices the other way round: what it has in common with the pass forwards, the
    compiler would find, and keep from there.
    """

    @staticmethod
    def forward(ctx: Any, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float) -> torch.Tensor:
        queries, keys, values = _grouped(q, k), k.flatten(0, 1), v.flatten(0, 1)
        outs, log_sums = [], []
        for block, seen in _blocks(q.shape[2]):
            own = queries[:, :, block]
            scores = (own.flatten(1, 2) @ keys[:, :seen].mT).view(*own.shape[:3], seen).float() * scale
            scores = scores.masked_fill(_later(own, seen), -torch.inf)
            log_sum = scores.logsumexp(-1)
            weights = (scores - log_sum[..., None]).exp().to(q.dtype)
            outs.append((weights.flatten(1, 2) @ values[:, :seen]).view_as(own))
            log_sums.append(log_sum)
        # Laid out as [batch, seq, heads, head_dim], which is how the next product reads it, so that it is kept once.
        out = torch.cat(outs, dim=2).view(q.shape).transpose(1, 2).contiguous().transpose(1, 2)
        ctx.save_for_backward(q, k, v, out, torch.cat(log_sums, dim=2))
        ctx.scale = scale
        return out

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        q, k, v, out, log_sum = ctx.saved_tensors
        queries, keys, values = _grouped(q, k), k.flatten(0, 1), v.flatten(0, 1)
        upstream, out = _grouped(gradient, k), _grouped(out, k)
        mean = (upstream.float() * out.float()).sum(-1)
        q_gradients, k_gradient, v_gradient = [], torch.zeros_like(keys).float(), torch.zeros_like(values).float()
        for block, seen in _blocks(q.shape[2]):
            own, g = queries[:, :, block], upstream[:, :, block].flatten(1, 2)
            scores = (keys[:, :seen] @ own.flatten(1, 2).mT).unflatten(2, own.shape[1:3]).float() * ctx.scale
            weights = (scores - log_sum[:, None, :, block]).exp()
            weights = weights.masked_fill(_later(own, seen).T[:, None], 0.0)
            slope = (values[:, :seen] @ g.mT).view_as(weights).float() - mean[:, None, :, block]
            slope = (weights * slope * ctx.scale).to(q.dtype).flatten(2)
            v_gradient[:, :seen] += weights.to(q.dtype).flatten(2) @ g
            k_gradient[:, :seen] += slope @ own.flatten(1, 2)
            q_gradients.append((slope.mT @ keys[:, :seen]).view_as(own))
        of_q = torch.cat(q_gradients, dim=2).view(q.shape)
        return of_q, k_gradient.to(q.dtype).view(k.shape), v_gradient.to(q.dtype).view(v.shape), None


def _blocks(seq: int) -> Iterator[tuple[slice, int]]:
    """The queries of each block, and how many keys they see."""
    size = max(SMALLEST_BLOCK, -(-seq // MOST_BLOCKS))
    for start in range(0, seq, size):
        stop = min(start + size, seq)
        yield slice(start, stop), stop


def _grouped(x: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
    """[batch, heads, seq, head_dim] -> [batch * kv_heads, groups, seq, head_dim]: heads that share a key head together,
    where they are but more queries against it."""
    return x.reshape(k.shape[0] * k.shape[1], -1, *x.shape[2:])


def _later(queries: torch.Tensor, seen: int) -> torch.Tensor:
    """Which keys come after a query, which is one of the last seen: [block, seen] bool."""
    block = queries.shape[2]
    return torch.ones(block, seen, dtype=torch.bool, device=queries.device).triu(seen - block + 1)


def last_queries(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float) -> torch.Tensor:
    """As `causal_attention`, with q the last seq of more keys: [batch, heads, seq, head_dim]."""
    out: torch.Tensor = _LastQueries.apply(q, k, v, scale)
    return out


class _LastQueries(torch.autograd.Function):
    """Two calls of the kernel, to the keys before all queries and to the queries' own, joined by their log-sum-exps.

    With the joined output and log-sum-exp the kernel's backward pass gives each call's share of the gradient
    (arXiv 2310.01889).
    """

    @staticmethod
    def forward(ctx: Any, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float) -> torch.Tensor:
        kernel = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
        (k_past, k_own), (v_past, v_own) = (x.tensor_split([x.shape[2] - q.shape[2]], dim=2) for x in (k, v))
        past, log_past = kernel(q, k_past, v_past, 0.0, False, scale=scale)
        own, log_own = kernel(q, k_own, v_own, 0.0, True, scale=scale)
        log_sum = torch.logaddexp(log_past, log_own)
        past_share = (log_past - log_sum).exp()[..., None]
        out = torch.lerp(own.to(log_sum.dtype), past.to(log_sum.dtype), past_share).to(q.dtype)
        ctx.save_for_backward(q, k, v, out, log_sum)
        ctx.scale = scale
        return out

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        q, k, v, out, log_sum = ctx.saved_tensors
        kernel = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward
        (k_past, k_own), (v_past, v_own) = (x.tensor_split([x.shape[2] - q.shape[2]], dim=2) for x in (k, v))
        past = kernel(gradient, q, k_past, v_past, out, log_sum, 0.0, False, scale=ctx.scale)
        own = kernel(gradient, q, k_own, v_own, out, log_sum, 0.0, True, scale=ctx.scale)
        of_k, of_v = (torch.cat(pair, dim=2) for pair in zip(past[1:], own[1:], strict=True))
        return past[0] + own[0], of_k, of_v, None
