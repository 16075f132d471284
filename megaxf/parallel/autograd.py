"""Collectives that autograd can pass through: each has its adjoint as backward pass.

    forward                      backward
    copy_to         nothing      all-reduce          into a region where each rank computes a part
    reduce_from     all-reduce   nothing             out of it
    gather_from     all-gather   reduce-scatter      the same two, where ranks hold shares of the sequence outside of it
    scatter_to      reduce-scatter   all-gather

Tensors are [batch, seq, ...]; shares are equal and cut along seq.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist

from megaxf.parallel.collectives import all_gather, reduce_scatter
from megaxf.parallel.mesh import Axis


def copy_to(x: torch.Tensor, axis: Axis) -> torch.Tensor:
    """x, whose gradient is the sum of the ranks' parts of it."""
    return _CopyTo.apply(x, axis)


def reduce_from(x: torch.Tensor, axis: Axis) -> torch.Tensor:
    """The sum of the ranks' x."""
    return _ReduceFrom.apply(x, axis)


def gather_from(x: torch.Tensor, axis: Axis) -> torch.Tensor:
    """[batch, seq/ranks, ...] -> [batch, seq, ...], whose gradient is the sum of the ranks' parts of it."""
    return _GatherFrom.apply(x, axis)


def scatter_to(x: torch.Tensor, axis: Axis) -> torch.Tensor:
    """[batch, seq, ...] -> this rank's [batch, seq/ranks, ...] of the sum of the ranks' x."""
    return _ScatterTo.apply(x, axis)


class Pending:
    """A collective under way: `wait()` gives its result."""

    def __init__(self, work: Any, result: torch.Tensor, axis: Axis, batch: int = 0) -> None:
        """batch: rows of each rank where the result is [ranks x batch, seq/ranks, ...] and still to be put in order."""
        self._work, self._result, self._axis, self._batch = work, result, axis, batch

    def wait(self) -> torch.Tensor:
        """The result, [batch, seq, ...]."""
        with self._axis.message(self._result.device):
            self._work.wait()
        if self._batch == 0:
            return self._result
        return self._result.unflatten(0, (-1, self._batch)).transpose(0, 1).flatten(1, 2)


def start_reduce(x: torch.Tensor, axis: Axis) -> Pending:
    """Begin to sum x over the ranks, in place."""
    return Pending(dist.all_reduce(x, group=axis.group, async_op=True), x, axis)


def start_gather(x: torch.Tensor, axis: Axis) -> Pending:
    """Begin to join the shares [batch, seq/ranks, ...]."""
    joined = x.new_empty(axis.size * x.shape[0], *x.shape[1:])
    work = all_gather(joined, x.contiguous(), group=axis.group, async_op=True)
    return Pending(work, joined, axis, x.shape[0])


def start_scatter(x: torch.Tensor, axis: Axis) -> Pending:
    """Begin to sum x [batch, seq, ...] over the ranks, of which this one keeps its share."""
    shares = x.unflatten(1, (axis.size, -1)).transpose(0, 1).contiguous()
    own = torch.empty_like(shares[0])
    return Pending(reduce_scatter(own, shares.flatten(0, 1), group=axis.group, async_op=True), own, axis)


class _CopyTo(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, axis: Axis) -> torch.Tensor:
        ctx.axis = axis
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        return start_reduce(gradient.clone(memory_format=torch.contiguous_format), ctx.axis).wait(), None


class _ReduceFrom(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, axis: Axis) -> torch.Tensor:
        return start_reduce(x.clone(memory_format=torch.contiguous_format), axis).wait()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        return gradient, None


class _GatherFrom(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, axis: Axis) -> torch.Tensor:
        ctx.axis = axis
        return start_gather(x, axis).wait()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        return start_scatter(gradient, ctx.axis).wait(), None


class _ScatterTo(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, axis: Axis) -> torch.Tensor:
        ctx.axis = axis
        return start_scatter(x, axis).wait()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        return start_gather(gradient, ctx.axis).wait(), None
