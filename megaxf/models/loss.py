"""Cross-entropy from hidden states, in chunks: the logits of all tokens never exist at one time.

The gradients are made in the same pass, while a chunk's logits are at hand. Kept for the backward pass are then only
two tensors of the shapes of the hidden states and of the weight.
"""

from __future__ import annotations

from typing import Any

import torch

IGNORED = -100
"""Label of a target that is not counted."""
CPU_BLOCK, GPU_BLOCK = 2**18, 2**28
"""Logits widened to fp32 at one time: several passes go over them, so on a CPU no more than its cache holds."""


def chunked_cross_entropy(
    hidden: torch.Tensor,
    weight: torch.Tensor,
    labels: torch.Tensor,
    *,
    chunk_size: int | None = None,
    z_loss: float = 0.0,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The loss of logits = hidden @ weight^T, summed (not averaged) over the counted labels.

    hidden: [tokens, hidden]; weight: [vocab, hidden]; labels: [tokens] int64, -100 where not counted.
    chunk_size: tokens whose logits exist at one time; by default what suits the device.
    z_loss: coefficient of log(sum(exp(logits)))^2 (PaLM, arXiv 2204.02311).
    Returns fp32 scalars (loss = nll + z_loss term, nll), the second detached. `loss` can be differentiated once.
    Raises ValueError for a label outside the vocabulary (on a GPU, where that would wait for the device, a device-side
    assertion).
    """
    _check_labels(labels, weight.shape[0])
    rows = chunk_size or _chunk_rows(weight)
    return _ChunkedCrossEntropy.apply(hidden, weight, labels, rows, z_loss, torch.is_grad_enabled())


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
        grad_enabled: bool,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        wants_hidden, wants_weight = (grad_enabled and needed for needed in ctx.needs_input_grad[:2])
        ctx.hidden_gradient = torch.empty_like(hidden) if wants_hidden else None
        ctx.weight_gradient = None
        sums = torch.zeros(2, dtype=torch.float32, device=hidden.device)
        products = hidden.new_empty(min(rows, len(labels)), weight.shape[0])
        for start in range(0, len(labels), rows):
            chunk = slice(start, start + rows)
            states = hidden[chunk]
            logits = torch.mm(states, weight.t(), out=products[: len(states)])
            sums += _differentiate_blocks(logits, labels[chunk], z_loss, wants_hidden or wants_weight)
            if wants_hidden:
                torch.mm(logits, weight, out=ctx.hidden_gradient[chunk])
            if wants_weight:
                ctx.weight_gradient = _add_product(ctx.weight_gradient, logits.t(), states)
        if ctx.weight_gradient is not None:
            ctx.weight_gradient = ctx.weight_gradient.to(weight.dtype)
        nll, z = sums.unbind()
        loss, nll = nll + z_loss * z, nll.clone()
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
        return *(None if g is None else g.mul_(scale) for g in gradients), None, None, None, None


def _differentiate_blocks(logits: torch.Tensor, labels: torch.Tensor, z_loss: float, wanted: bool) -> torch.Tensor:
    """`_differentiate` on logits of any dtype, which the gradient overwrites; in fp32, a block of tokens at a time."""
    rows = max(1, (CPU_BLOCK if logits.device.type == "cpu" else GPU_BLOCK) // logits.shape[1])
    if logits.dtype != torch.float32:
        buffer = logits.new_empty(min(rows, len(labels)), logits.shape[1], dtype=torch.float32)
    sums = torch.zeros(2, dtype=torch.float32, device=logits.device)
    for part, targets in zip(logits.split(rows), labels.split(rows), strict=True):
        wide = part if part.dtype == torch.float32 else buffer[: len(part)].copy_(part)
        sums += _differentiate(wide, targets, z_loss, wanted)
        if wanted and wide is not part:
            part.copy_(wide)
    return sums


def _differentiate(logits: torch.Tensor, labels: torch.Tensor, z_loss: float, wanted: bool) -> torch.Tensor:
    """Sums of nll and of squared log-partition [2]; where wanted, the gradient of nll + z_loss * squares overwrites
    the fp32 logits [tokens, vocab], which are spoilt in any case."""
    counted = (labels != IGNORED).float()
    targets = labels.clamp(min=0)[:, None]
    target_logits = logits.gather(1, targets)[:, 0]
    largest = logits.amax(1, keepdim=True)
    total = logits.sub_(largest).exp_().sum(1)
    log_partition = total.log() + largest[:, 0]
    if wanted:
        share = counted * (1 + 2 * z_loss * log_partition) / total
        logits.mul_(share[:, None]).scatter_add_(1, targets, -counted[:, None])
    return torch.stack([(counted * (log_partition - target_logits)).sum(), (counted * log_partition.square()).sum()])


def _add_product(total: torch.Tensor | None, left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """total + left @ right, where a sum of several products is in fp32 whatever their dtype."""
    if total is None:
        return left @ right
    if left.dtype == torch.float32:
        return total.addmm_(left, right)
    return total.float().add_(left @ right)
