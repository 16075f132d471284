"""Cross-entropy from hidden states, in chunks: the logits of all tokens never exist at one time.

The gradients are made in the same pass, while a chunk's logits are at hand. Kept for the backward pass are then only
two tensors of the shapes of the hidden states and of the weight.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from megaxf.models.logits import IGNORED, Vocabulary, differentiate, differentiate_compiled
from megaxf.models.matmul import add_mm, by_onednn, mm


def chunked_cross_entropy(
    hidden: torch.Tensor,
    weight: torch.Tensor,
    labels: torch.Tensor,
    *,
    chunk_size: int | None = None,
    z_loss: float = 0.0,
    vocabulary: Vocabulary | None = None,
    compiled: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The loss of logits = hidden @ weight^T, summed (not averaged) over the counted labels.

    hidden: [..., hidden]; weight: [vocab, hidden]; labels: [...] int64, -100 where not counted.
    chunk_size: tokens whose logits exist at one time; by default what suits the device.
    z_loss: coefficient of log(sum(exp(logits)))^2 (PaLM, arXiv 2204.02311).
    vocabulary: where the weight has the rows of a part of the vocabulary only. The gradient of `hidden` is then that
    part's, to be summed with the others'.
    compiled: let torch.compile join the passes over the logits.
    Returns (loss, nll), fp32: the sum of nll and z_loss term, which can be differentiated once, and detached the
    negative log-likelihood of each label [...], 0 where it is not counted.
    Raises ValueError for a label outside the vocabulary (on a GPU, where that would wait for the device, a device-side
    assertion).
    """
    _check_labels(labels, vocabulary.size if vocabulary else weight.shape[0])
    rows = chunk_size or _chunk_rows(weight)
    shape, hidden, labels = labels.shape, hidden.flatten(0, -2), labels.flatten()
    grad_enabled = torch.is_grad_enabled()
    way = differentiate_compiled if compiled else differentiate
    loss, nll = _ChunkedCrossEntropy.apply(hidden, weight, labels, rows, z_loss, vocabulary, grad_enabled, way)
    return loss, nll.view(shape)


def _check_labels(labels: torch.Tensor, vocab: int) -> None:
    wrong = (labels != IGNORED) & ((labels < 0) | (labels >= vocab))
    if labels.device.type != "cpu":
        torch._assert_async(~wrong.any(), f"a label is outside 0..{vocab - 1} and not {IGNORED}")
    elif wrong.any():
        raise ValueError(
            f"label {int(labels[wrong][0])} is outside the vocabulary, 0..{vocab - 1} ({IGNORED} is not counted); "
            "was the data made with another tokenizer?"
        )


def _chunk_rows(weight: torch.Tensor) -> int:
    """Few enough for a CPU's cache, enough for a GPU's matrix units."""
    elements = 2**24 if weight.device.type == "cpu" else 2**28
    return max(256, elements // weight.shape[0])


class _ChunkedCrossEntropy(torch.autograd.Function):
    """See chunked_cross_entropy."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden: torch.Tensor,
        weight: torch.Tensor,
        labels: torch.Tensor,
        rows: int,
        z_loss: float,
        vocabulary: Vocabulary | None,
        grad_enabled: bool,
        way: Callable[..., torch.Tensor],
    ) -> tuple[torch.Tensor, torch.Tensor]:
        wants_hidden, wants_weight = (grad_enabled and needed for needed in ctx.needs_input_grad[:2])
        ctx.hidden_gradient = torch.empty_like(hidden) if wants_hidden else None
        ctx.weight_gradient = None
        each = torch.empty(2, len(labels), dtype=torch.float32, device=hidden.device)
        # oneDNN takes new memory for every product.
        products = None if by_onednn(hidden) else hidden.new_empty(min(rows, len(labels)), weight.shape[0])
        for start in range(0, len(labels), rows):
            chunk = slice(start, start + rows)
            states = hidden[chunk]
            logits = None  # those of the chunk before make room
            logits = mm(states, weight.t(), None if products is None else products[: len(states)])
            each[:, chunk] = way(logits, labels[chunk], z_loss, vocabulary, wants_hidden or wants_weight)
            if wants_hidden:
                mm(logits, weight, ctx.hidden_gradient[chunk])
            if wants_weight:
                ctx.weight_gradient = _add_product(ctx.weight_gradient, logits.t(), states)
        if ctx.weight_gradient is not None:
            ctx.weight_gradient = ctx.weight_gradient.to(weight.dtype)
        nll, squares = each
        loss, nll = nll.sum() + z_loss * squares.sum(), nll.clone()
        ctx.mark_non_differentiable(nll)
        ctx.used = False
        return loss, nll

    @staticmethod
    def backward(ctx: Any, scale: torch.Tensor, _: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        if ctx.used:
            raise RuntimeError("chunked_cross_entropy can be differentiated once: its gradients are scaled in place")
        ctx.used = True
        gradients = [ctx.hidden_gradient, ctx.weight_gradient]
        ctx.hidden_gradient = ctx.weight_gradient = None
        return *(None if g is None else g.mul_(scale) for g in gradients), *[None] * 6


def _add_product(total: torch.Tensor | None, left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """total + left @ right, where a sum of several products is in fp32 whatever their dtype."""
    if total is None:
        return mm(left, right)
    if left.dtype == torch.float32:
        return add_mm(total, left, right)
    return total.float().add_(mm(left, right))
