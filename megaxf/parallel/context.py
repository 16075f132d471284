"""Context parallelism: the ranks of an axis share the sequence (the method of Llama 3, arXiv 2407.21783 section 3.3.2).

A row is cut into 2c equal chunks, of which rank r of c holds chunks r and 2c - 1 - r: under causal attention every rank
then has the same work. Everything but attention looks at one token at a time. In attention the queries stay, and the
keys and values are gathered in one message, put into the order of the row, and kept no longer than one layer's
attention lasts: the backward pass gathers them again. Their gradients go back in one message, in the dtype of the
model, and are summed over the ranks in fp32.

A chunk sees the keys from the start of the row to its own end, or those in its window: a contiguous stretch of them.
So it takes the same kernels as on one rank, with grouped heads, document masks and windows, and c is bounded by the
length of the sequence only. That is why neither peer is used. `torch.distributed.tensor.experimental.context_parallel`
(a ring, or the same gather consumed block by block) refuses masks other than the causal one with fused kernels, patches
`scaled_dot_product_attention` for the whole process and is called a prototype. DeepSpeed's Ulysses (arXiv 2309.14509)
cuts the heads: no more context ranks than each tensor-parallel rank has key/value heads.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from megaxf.models.attention import cache_mask
from megaxf.models.decoder import SelfAttention
from megaxf.parallel.collectives import all_gather
from megaxf.parallel.mesh import Axis
from megaxf.parallel.transient import Transient


def apply_context(model: Any, axis: Axis) -> None:
    """Let a family's Model work on this rank's columns (`own_columns`) of rows that the axis shares."""
    if axis.size == 1:
        return
    # Here, and not at the function: it brings the compiler, which costs a second and is wanted by few.
    attend = torch.compiler.disable(attend_over)
    model.places = partial(own_places, axis=axis)
    model.make_mask = partial(own_views, axis=axis)
    for layer in model.layers:
        # What is recomputed as a whole lives as short as the gathered keys: gathering them once more saves nothing.
        (own,) = (module for module in layer.modules() if isinstance(module, SelfAttention))
        own.attend = partial(attend, axis=axis, attention=own.attend, keep=layer.recompute == "full")


def own_columns(batch: Any, axis: Axis) -> Any:
    """This rank's columns of whole rows.

    batch: a NamedTuple with tokens, labels, positions (or None), all [rows, seq]. They become [rows, seq/ranks]; other
    fields stay: document_ids have to, as the mask needs those of all keys.
    Raises ValueError where 2 x ranks does not divide the sequence.
    """
    seq = batch.tokens.shape[1]
    if axis.size == 1:
        return batch
    if seq % (2 * axis.size):
        raise ValueError(f"a row of {seq} tokens cannot be cut into 2 chunks for each of {axis.size} context ranks")
    places = own_places(seq // axis.size, axis=axis, device=batch.tokens.device)
    cut = {name: getattr(batch, name) for name in ("tokens", "labels", "positions")}
    return batch._replace(**{name: whole[:, places] for name, whole in cut.items() if whole is not None})


def own_places(seq: int, *, axis: Axis, device: torch.device | str | None = None) -> torch.Tensor:
    """Where the `seq` tokens of this rank stand in their row."""
    chunks = [torch.arange(start, stop, device=device) for start, stop in _chunks(seq, axis)]
    return torch.cat(chunks)


class View(NamedTuple):
    """What one chunk of queries sees: keys first to last - 1 of the row, causally or as the mask says."""

    first: int
    last: int
    mask: torch.Tensor | None
    """[1 or batch, 1, seq/2, last - first], True where visible."""


def own_views(
    seq: int,
    *,
    axis: Axis,
    window: int | None = None,
    document_ids: torch.Tensor | None = None,
    device: torch.device | str | None = None,
) -> tuple[View, ...]:
    """As megaxf.models.attention.causal_mask, for this rank's `seq` tokens against the keys of the whole row.

    document_ids: [batch, seq * ranks]
    """
    views = []
    for start, stop in _chunks(seq, axis):
        first = 0 if window is None else max(0, start - window + 1)
        mask: Any = None
        if document_ids is not None or (window is not None and window < stop):
            queries, keys = (torch.arange(begin, stop, device=device)[None] for begin in (start, first))
            mask = cache_mask(queries, keys, window)
        if document_ids is not None:
            mask = mask & (document_ids[:, None, start:stop, None] == document_ids[:, None, None, first:stop])
        views.append(View(first, stop, mask))
    return tuple(views)


def attend_over(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    mask: tuple[View, ...],
    axis: Axis,
    attention: Callable[..., torch.Tensor],
    keep: bool,
) -> torch.Tensor:
    """Attention of this rank's queries over the keys and values of all ranks.

    q: [batch, seq/ranks, heads, head_dim]; k, v: [batch, seq/ranks, kv_heads, head_dim]; mask: from `own_views`.
    attention: as megaxf.models.attention.attention.
    keep: whether the gathered keys and values are kept for the backward pass.
    Returns the shape of q.
    """
    row = _Gather.apply(torch.stack((k, v)), axis)
    # Evaluation keeps nothing.
    if keep or not row.requires_grad:
        return torch.cat(_attend(q, row, mask, attention), dim=1)
    transient = Transient(row, partial(_gather, axis=axis))
    with transient:
        return transient.join(_attend(q, row, mask, attention))


def _attend(
    q: torch.Tensor, row: torch.Tensor, views: tuple[View, ...], attention: Callable[..., torch.Tensor]
) -> list[torch.Tensor]:
    """What each chunk of queries finds in the keys and values of the row."""
    chunks = zip(q.chunk(2, dim=1), views, strict=True)
    return [attention(queries, *row[:, :, view.first : view.last], mask=view.mask) for queries, view in chunks]


def _chunks(seq: int, axis: Axis) -> tuple[tuple[int, int], tuple[int, int]]:
    """The places [start, stop) of this rank's two chunks."""
    size = seq // 2
    low, high = axis.rank * size, (2 * axis.size - 1 - axis.rank) * size
    return (low, low + size), (high, high + size)


class _Gather(torch.autograd.Function):
    """The shares [2, batch, seq/ranks, ...] of keys and values -> the row [2, batch, seq, ...]."""

    @staticmethod
    def forward(ctx: Any, share: torch.Tensor, axis: Axis) -> torch.Tensor:
        ctx.axis = axis
        ctx.save_for_backward(share)
        return _gather(share, axis)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor, None]:
        ours = _to_shares(gradient, ctx.axis.size)
        parts = torch.empty_like(ours)
        # A reduce-scatter of the same volume, but one that does not add in bf16.
        with ctx.axis.message(ours.device):
            dist.all_to_all_single(parts, ours, group=ctx.axis.group)
        exact = torch.promote_types(gradient.dtype, torch.float32)
        return parts.sum(0, dtype=exact).to(gradient.dtype), None


def _gather(share: torch.Tensor, axis: Axis) -> torch.Tensor:
    shares = share.new_empty(axis.size * share.shape[0], *share.shape[1:])
    with axis.message(share.device):
        all_gather(shares, share, group=axis.group)
    return _to_row(shares.unflatten(0, (axis.size, -1)))


def _to_row(shares: torch.Tensor) -> torch.Tensor:
    """[ranks, 2, batch, seq/ranks, ...] -> [2, batch, seq, ...] in the order of the row."""
    low, high = shares.movedim(0, 2).chunk(2, dim=3)
    return torch.cat((low, high.flip(2)), dim=2).flatten(2, 3)


def _to_shares(row: torch.Tensor, ranks: int) -> torch.Tensor:
    """The way back of `_to_row`."""
    low, high = row.unflatten(2, (2 * ranks, -1)).chunk(2, dim=2)
    return torch.cat((low, high.flip(2)), dim=3).movedim(2, 0).contiguous()
