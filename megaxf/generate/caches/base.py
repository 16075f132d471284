"""Rows that come and go, and the memory of their layers."""

from __future__ import annotations

import torch

from megaxf.generate.errors import GenerateError

Pair = tuple[torch.Tensor, torch.Tensor]
"""Keys and values."""


class RowCache:
    """What the kinds share: rows that come and go. A layer's memory is taken when its first key comes."""

    def __init__(self, rows: int, length: int) -> None:
        """rows: the most at a time. length: the most tokens of a row."""
        self.capacity, self.length = rows, length
        self.count = 0
        """Rows there are now."""
        self.rows = slice(0, 0)
        """Those that the next forward pass is about."""
        self._layers: dict[int, Pair] = {}

    @property
    def nbytes(self) -> int:
        """Memory of all layers."""
        return sum(part.nbytes for pair in self._layers.values() for part in pair)

    def add(self, count: int) -> None:
        """Empty rows behind the last."""
        self.count += count

    def remove(self, row: int) -> None:
        """Forget a row; the last one takes its place."""
        self.count -= 1
        if row != self.count:
            for part in (part for pair in self._layers.values() for part in pair):
                part[row] = part[self.count]

    def reserve(self, positions: torch.Tensor) -> int | torch.Tensor | None:
        """See the protocol."""
        raise NotImplementedError

    def update(self, layer_index: int, k: torch.Tensor, v: torch.Tensor) -> Pair:
        """See the protocol."""
        raise NotImplementedError

    def _check(self, last: int) -> None:
        if last >= self.length:
            raise GenerateError(f"the cache was made for {self.length} tokens and got one at position {last}")

    def _layer(self, layer_index: int, like: torch.Tensor, slots: int) -> Pair:
        """Keys and values [rows, kv_heads, slots, head_dim] of a layer, zeros at first."""
        if layer_index not in self._layers:
            shape = (self.capacity, like.shape[2], slots, like.shape[3])
            self._layers[layer_index] = like.new_zeros(shape), like.new_zeros(shape)
        return self._layers[layer_index]

    def _present(self, part: torch.Tensor) -> torch.Tensor:
        """The rows of a layer's memory that the forward pass is about, as `part[self.rows]` in half the time."""
        return part.narrow(0, self.rows.start, self.rows.stop - self.rows.start)
