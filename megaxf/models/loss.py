"""Cross-entropy from hidden states, in chunks: the logits of all tokens never exist at one time.

The gradients are made in the same pass, while a chunk's logits are at hand. Kept for the backward pass are then only
two tensors of the shapes of the hidden states and of the weight.
"""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import torch

from megaxf.models.matmul import add_mm, by_onednn, mm

IGNORED = -100
"""Label of a target that is not counted."""
CPU_BLOCK, GPU_BLOCK = 2**18, 2**28
"""Logits widened to fp32 at one time: several passes go over them, so on a CPU no more than its cache holds."""


class Vocabulary(Protocol):
    """The part of the vocabulary that a weight is about, where others have the rest."""

    size: int
    """Of the whole vocabulary."""
    first: int
    """The id of the weight's first row."""

    def combine(self, statistics: torch.Tensor) -> torch.Tensor:
        """Statistics [3, tokens] of the own logits (see `_exponentiate`) -> those of all."""


def chunked_cross_entropy(
    hidden: torch.Tensor,
    weight: torch.Tensor,
    labels: torch.Tensor,
    *,
    chunk_size: int | None = None,
    z_loss: float = 0.0,
    vocabulary: Vocabulary | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The loss of logits = hidden @ weight^T, summed (not averaged) over the counted labels.

    hidden: [..., hidden]; weight: [vocab, hidden]; labels: [...] int64, -100 where not counted.
    chunk_size: tokens whose logits exist at one time; by default what suits the device.
    z_loss: coefficient of log(sum(exp(logits)))^2 (PaLM, arXiv 2204.02311).
    vocabulary: where the weight has the rows of a part of the vocabulary only. The gradient of `hidden` is then that
    part's, to be summed with the others'.
    Returns (loss, nll), fp32: the sum of nll and z_loss term, which can be differentiated once, and detached the
    negative log-likelihood of each label [...], 0 where it is not counted.
    Raises ValueError for a label outside the vocabulary (on a GPU, where that would wait for the device, a device-side
    assertion).
    """
    _check_labels(labels, vocabulary.size if vocabulary else weight.shape[0])
    rows = chunk_size or _chunk_rows(weight)
    shape, hidden, labels = labels.shape, hidden.flatten(0, -2), labels.flatten()
    grad_enabled = torch.is_grad_enabled()
    loss, nll = _ChunkedCrossEntropy.apply(hidden, weight, labels, rows, z_loss, vocabulary, grad_enabled)
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
            each[:, chunk] = _differentiate(logits, labels[chunk], z_loss, vocabulary, wants_hidden or wants_weight)
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
        return *(None if g is None else g.mul_(scale) for g in gradients), *[None] * 5


class _Targets(NamedTuple):
    """The labels of a chunk as the own part of the vocabulary sees them, each [tokens]."""

    counted: torch.Tensor
    here: torch.Tensor
    """Counted, and in the own part."""
    column: torch.Tensor
    """Of the logits; 0 where not here."""

    def rows(self, block: slice) -> _Targets:
        return _Targets(*(field[block] for field in self))


def _differentiate(
    logits: torch.Tensor, labels: torch.Tensor, z_loss: float, vocabulary: Vocabulary | None, wanted: bool
) -> torch.Tensor:
    """Nll and squared log-partition of each label [2, tokens]; where wanted, the gradient of nll + z_loss * squares
    overwrites the logits [tokens, own part of the vocabulary] of any dtype, which are spoilt in any case.

    Done in fp32, a block of tokens at a time. With the whole vocabulary at hand a block is finished while the cache
    has it; otherwise all wait for one message about all tokens.
    """
    targets = _targets(labels, vocabulary.first if vocabulary else 0, logits.shape[1])
    rows = max(1, (CPU_BLOCK if logits.device.type == "cpu" else GPU_BLOCK) // logits.shape[1])
    blocks = [slice(start, start + rows) for start in range(0, len(labels), rows)]
    buffer = None
    if logits.dtype != torch.float32:
        buffer = logits.new_empty(min(rows, len(labels)), logits.shape[1], dtype=torch.float32)
    each, statistics = [], []
    for block in blocks:
        part, own = logits[block], targets.rows(block)
        wide = part if buffer is None else buffer[: len(part)].copy_(part)
        statistics.append(_exponentiate(wide, own))
        if vocabulary is None:
            each.append(_finish(wide, statistics[-1], statistics[-1], own, z_loss, wanted))
        if wanted and buffer is not None:
            part.copy_(wide)
    if vocabulary is not None:
        whole = vocabulary.combine(torch.cat(statistics, dim=1))
        for block, local in zip(blocks, statistics, strict=True):
            each.append(_finish(logits[block], local, whole[:, block], targets.rows(block), z_loss, wanted))
    return torch.cat(each, dim=1)


def _targets(labels: torch.Tensor, first: int, width: int) -> _Targets:
    counted, column = labels != IGNORED, labels - first
    here = counted & (column >= 0) & (column < width)
    return _Targets(counted, here, column.masked_fill(~here, 0))


def _exponentiate(logits: torch.Tensor, targets: _Targets) -> torch.Tensor:
    """Overwrites fp32 logits by exp(logits - largest of the token).

    Returns [3, tokens]: that largest, the sum of the exponentials, and the logit of the target, 0 where not here.
    """
    target_logits = logits.gather(1, targets.column[:, None])[:, 0].masked_fill(~targets.here, 0.0)
    largest = logits.amax(1, keepdim=True)
    total = logits.sub_(largest).exp_().sum(1)
    return torch.stack([largest[:, 0], total, target_logits])


def _finish(
    exponentials: torch.Tensor,
    own: torch.Tensor,
    whole: torch.Tensor,
    targets: _Targets,
    z_loss: float,
    wanted: bool,
) -> torch.Tensor:
    """What `_differentiate` gives, and its gradient in the place of the exponentials.

    own, whole: statistics as `_exponentiate` gives them, of the own part of the vocabulary and of all of it.
    """
    largest, total, target_logits = whole
    log_partition = total.log() + largest
    counted = targets.counted.float()
    if wanted:
        share = counted * (1 + 2 * z_loss * log_partition) / total * (own[0] - largest).exp()
        of_targets = -targets.here.to(exponentials.dtype)
        exponentials.mul_(share[:, None]).scatter_add_(1, targets.column[:, None], of_targets[:, None])
    return torch.stack([counted * (log_partition - target_logits), counted * log_partition.square()])


def _add_product(total: torch.Tensor | None, left: torch.Tensor, right: torch.Tensor) -> torch.Tensor:
    """total + left @ right, where a sum of several products is in fp32 whatever their dtype."""
    if total is None:
        return mm(left, right)
    if left.dtype == torch.float32:
        return add_mm(total, left, right)
    return total.float().add_(mm(left, right))
