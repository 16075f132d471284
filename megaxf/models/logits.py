"""The loss of logits at hand, and its gradient in their place: in passes over a block of them, or compiled into two."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import NamedTuple, Protocol

import torch

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


class Targets(NamedTuple):
    """The labels of a chunk as the own part of the vocabulary sees them, each [tokens]."""

    counted: torch.Tensor
    here: torch.Tensor
    """Counted, and in the own part."""
    column: torch.Tensor
    """Of the logits; 0 where not here."""

    def rows(self, block: slice) -> Targets:
        """Those of some tokens."""
        return Targets(*(field[block] for field in self))


def differentiate(
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


def _targets(labels: torch.Tensor, first: int, width: int) -> Targets:
    counted, column = labels != IGNORED, labels - first
    here = counted & (column >= 0) & (column < width)
    return Targets(counted, here, column.masked_fill(~here, 0))


def _exponentiate(logits: torch.Tensor, targets: Targets) -> torch.Tensor:
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
    targets: Targets,
    z_loss: float,
    wanted: bool,
) -> torch.Tensor:
    """What `differentiate` gives, and its gradient in the place of the exponentials.

    own, whole: statistics as `_exponentiate` gives them, of the own part of the vocabulary and of all of it.
    """
    each, share = _of_tokens(whole, targets, z_loss)
    if wanted:
        share = share * (own[0] - whole[0]).exp()
        of_targets = -targets.here.to(exponentials.dtype)
        exponentials.mul_(share[:, None]).scatter_add_(1, targets.column[:, None], of_targets[:, None])
    return each


def _of_tokens(whole: torch.Tensor, targets: Targets, z_loss: float) -> tuple[torch.Tensor, torch.Tensor]:
    """What `differentiate` gives, and what each exp(logit - largest) is multiplied by to be its gradient [tokens], less
    1 for the target. whole: see `_finish`.
    """
    largest, total, target_logits = whole
    log_partition, counted = total.log() + largest, targets.counted.float()
    each = torch.stack([counted * (log_partition - target_logits), counted * log_partition.square()])
    return each, counted * (1 + 2 * z_loss * log_partition) / total


def differentiate_compiled(
    logits: torch.Tensor, labels: torch.Tensor, z_loss: float, vocabulary: Vocabulary | None, wanted: bool
) -> torch.Tensor:
    """As `differentiate`. Each logit is widened as it is come by, so no block need fit into a cache."""
    targets = _targets(labels, vocabulary.first if vocabulary else 0, logits.shape[1])
    statistics = _compiled(_statistics)(logits, targets)
    whole = vocabulary.combine(statistics) if vocabulary else statistics
    each, share = _of_tokens(whole, targets, z_loss)
    if wanted:
        largest = whole[0]
        places = torch.arange(len(labels), device=logits.device), targets.column
        of_targets = (logits[places].float() - largest).exp() * share - targets.here.float()
        _compiled(_gradient)(logits, largest, share)
        # Not within what is compiled, where it would make a copy of all logits.
        logits[places] = of_targets.to(logits.dtype)
    return each


@cache
def _compiled(function: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    return torch.compile(function, dynamic=True)


def _statistics(logits: torch.Tensor, targets: Targets) -> torch.Tensor:
    """As `_exponentiate` gives them, of logits that stay."""
    largest = logits.amax(1).float()
    total = (logits.float() - largest[:, None]).exp().sum(1)
    target_logits = logits.gather(1, targets.column[:, None])[:, 0].float().masked_fill(~targets.here, 0.0)
    return torch.stack([largest, total, target_logits])


def _gradient(logits: torch.Tensor, largest: torch.Tensor, share: torch.Tensor) -> torch.Tensor:
    """Overwrites logits by what the gradient is but for the targets."""
    return logits.copy_((logits.float() - largest[:, None]).exp() * share[:, None])
