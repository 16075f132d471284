"""What a backward pass can make again, or finds elsewhere, is not kept for it.

row = Gather.apply(share)                         # an autograd function that saves its one input
with Transient(row, make) as transient:           # make(share) gives the row again
    parts = [attention(q, row), ...]              # keep q, but of the row only where their pieces of it lie
    out = transient.join(parts)                   # and the parts as pieces of what they were joined to
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch


class Piece(NamedTuple):
    """A view of the tensor that is made again."""

    size: torch.Size
    stride: tuple[int, ...]
    offset: int | torch.SymInt


class Kept:
    """A tensor that an operation has saved; at the end what the hooks outside made of it."""

    def __init__(self, value: Any) -> None:
        self.value = value


class Transient(torch.autograd.graph.saved_tensors_hooks):
    """Inside, autograd keeps what operations save, but for views of one tensor, which the backward pass makes again.

    It is made once for all operations inside, and let go after the last of them has had it.
    """

    def __init__(self, tensor: torch.Tensor, make: Callable[[torch.Tensor], torch.Tensor]) -> None:
        """tensor: the output of an autograd function that has saved its one input; make: that input -> the output."""
        super().__init__(self._pack, self._unpack)
        self._storage, self._make = tensor.untyped_storage().data_ptr(), make
        self._source: Any = tensor.grad_fn
        self._pieces = self._left = 0
        self._again: torch.Tensor | None = None
        self._kept: list[Kept] = []
        # Of nested hooks torch calls the innermost only; recomputation and measurements outside have to see the rest.
        self._outer = torch._C._autograd._top_saved_tensors_default_hooks(False)

    def __exit__(self, *args: object) -> None:
        super().__exit__(*args)
        for kept in self._kept if self._outer else ():
            kept.value = self._outer[0](kept.value)
        self._kept = []

    def join(self, parts: list[torch.Tensor]) -> torch.Tensor:
        """torch.cat of attention's outputs [batch, seq, heads, head_dim] along seq, which takes the place of those
        that attention has saved as [batch, heads, seq, head_dim]."""
        joined = torch.cat(parts, dim=1)
        pieces = joined.detach().split([part.shape[1] for part in parts], dim=1)
        for part, piece in zip(parts, pieces, strict=True):
            saved = part.transpose(1, 2)
            for kept in self._kept:
                if kept.value.data_ptr() == saved.data_ptr() and kept.value.stride() == saved.stride():
                    kept.value = piece.transpose(1, 2)
        return joined

    def _pack(self, tensor: torch.Tensor) -> Piece | Kept:
        if tensor.untyped_storage().data_ptr() == self._storage:
            self._pieces += 1
            return Piece(tensor.size(), tensor.stride(), tensor.storage_offset())
        self._kept.append(Kept(tensor))
        return self._kept[-1]

    def _unpack(self, kept: Piece | Kept) -> torch.Tensor:
        if isinstance(kept, Kept):
            return self._outer[1](kept.value) if self._outer else kept.value
        if self._again is None:
            self._again, self._left = self._make(*self._source.saved_tensors), self._pieces
        piece = self._again.as_strided(*kept)
        self._left -= 1
        if self._left == 0:
            self._again = None
        return piece
