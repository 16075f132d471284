"""Causal attention on a CPU where PyTorch's kernel is slow, or lacks it.

Slow: bf16 in compiled models. The kernel takes some seven times as long backwards as forwards. Written as products
over blocks of queries, with the elementwise work fused by the compiler, the backward pass of a sequence of 256 takes
about half of that. It pays in bf16, compiled, and up to a few blocks; elsewhere the kernel is the better one.

Lacking: queries that are the last of a longer sequence of keys, without a mask in memory.
"""

from __future__ import annotations

from typing import Any

import torch

BLOCK = 256
"""Queries whose weights exist at one time."""
LONGEST = 1024
"""Tokens: each block is compiled on its own, and beyond this the kernel catches up."""


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
    """The kernel forwards; backwards from its log-sum-exp, as FlashAttention does (arXiv 2205.14135)."""

    @staticmethod
    def forward(ctx: Any, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float) -> torch.Tensor:
        kernel = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
        out, log_sum = kernel(q, k, v, 0.0, True, scale=scale)
        ctx.save_for_backward(q, k, v, out, log_sum)
        ctx.scale = scale
        return out

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        q, k, v, out, log_sum = ctx.saved_tensors
        batch, heads, seq, head_dim = q.shape
        groups = heads // k.shape[1]
        # Query heads that share a key head become more queries against it: [batch * kv_heads, groups, seq, ...].
        mean = (gradient.float() * out.float()).sum(-1)
        q, g = (x.reshape(-1, groups, seq, head_dim) for x in (q, gradient))
        log_sum, mean = (x.reshape(-1, groups, seq) for x in (log_sum, mean))
        shape, keys, values = k.shape, k.reshape(-1, seq, head_dim), v.reshape(-1, seq, head_dim)
        q_gradients, k_gradient, v_gradient = [], torch.zeros_like(keys).float(), torch.zeros_like(values).float()
        for start in range(0, seq, BLOCK):
            rows, seen = slice(start, start + BLOCK), min(start + BLOCK, seq)
            queries, upstream = q[:, :, rows].flatten(1, 2), g[:, :, rows].flatten(1, 2)
            k_seen, v_seen = keys[:, :seen], values[:, :seen]
            scores = (queries @ k_seen.mT).float() * ctx.scale - log_sum[:, :, rows].flatten(1, 2)[..., None]
            hidden = torch.ones(seen - start, seen, dtype=torch.bool, device=q.device).triu(start + 1)
            weights = scores.exp().masked_fill(hidden.repeat(groups, 1), 0.0)
            slope = (upstream @ v_seen.mT).float() - mean[:, :, rows].flatten(1, 2)[..., None]
            slope = (weights * slope * ctx.scale).to(q.dtype)
            v_gradient[:, :seen] += weights.to(q.dtype).mT @ upstream
            k_gradient[:, :seen] += slope.mT @ queries
            q_gradients.append((slope @ k_seen).view(-1, groups, seen - start, head_dim))
        whole = torch.cat(q_gradients, dim=2).view(batch, heads, seq, head_dim)
        return whole, k_gradient.to(q.dtype).view(shape), v_gradient.to(q.dtype).view(shape), None


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
