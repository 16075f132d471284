"""Keys and values in memory of a fixed size."""

from __future__ import annotations

import torch

from megaxf.generate.caches.base import Pair, RowCache
from megaxf.models.attention import extent


class StaticCache(RowCache):
    """Slot p of a row holds position p."""

    def __init__(self, rows: int, length: int, slots: int | None = None) -> None:
        super().__init__(rows, length)
        self._slots = length if slots is None else slots
        self._used = 0
        self._places: slice | torch.Tensor = slice(0, 0)
        """Slots of the new tokens: those of every row, or [batch, seq]."""

    def reserve(self, positions: torch.Tensor) -> int | torch.Tensor | None:
        """See the protocol."""
        first, last = extent(positions)
        self._check(last)
        self._used = last + 1
        alike = self._used - first == positions.shape[1]
        self._places = slice(first, self._used) if alike else positions
        return self._used

    def update(self, layer_index: int, k: torch.Tensor, v: torch.Tensor) -> Pair:
        """See the protocol."""
        keys, values = (self._present(part) for part in self._layer(layer_index, k, self._slots))
        self._write(keys, k)
        self._write(values, v)
        return keys.narrow(2, 0, self._used).transpose(1, 2), values.narrow(2, 0, self._used).transpose(1, 2)

    def _write(self, held: torch.Tensor, new: torch.Tensor) -> None:
        """Put new [batch, seq, kv_heads, head_dim] into their slots of held [batch, kv_heads, slots, head_dim]."""
        if isinstance(self._places, slice):  # as `held[:, :, places] = `, with half the calls for a token
            held.narrow(2, self._places.start, new.shape[1]).copy_(new.transpose(1, 2))
        else:
            held[torch.arange(len(new), device=new.device)[:, None], :, self._places] = new
