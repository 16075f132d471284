"""Keys and values of a sliding window."""

from __future__ import annotations

import torch

from megaxf.generate.caches.base import Pair
from megaxf.generate.caches.static import StaticCache
from megaxf.models.attention import extent

NOWHERE = 1 << 40
"""Position of an empty slot: beyond every query."""


class SlidingCache(StaticCache):
    """Position p lies in slot p mod window.

    A pass of several tokens goes over what the ring held before, followed by its own tokens, of which the ring then
    keeps the last. Such passes are of rows of equal length.
    """

    def __init__(self, rows: int, length: int, window: int) -> None:
        super().__init__(rows, length, min(length, window))
        self._held: torch.Tensor | None = None
        """Where a pass goes beyond the end of the ring: the places of what it held before."""

    def reserve(self, positions: torch.Tensor) -> int | torch.Tensor | None:
        """See the protocol."""
        (first, last), seq = extent(positions), positions.shape[1]
        self._held = None
        if seq > 1 and last - first >= seq:
            raise ValueError("a sliding cache takes several tokens of rows of equal length only")
        if last < self._slots:
            return super().reserve(positions)
        self._check(last)
        slots = torch.arange(min(first if seq > 1 else last + 1, self._slots), device=positions.device)
        if seq > 1:
            self._held = slots
            newest = positions[:1, :1] - 1
            self._places = positions[0, -self._slots :] % self._slots
            return torch.cat([newest - (newest - slots) % self._slots, positions[:1]], dim=1)
        self._used = self._slots
        place = last % self._slots
        self._places = slice(place, place + 1) if first == last else positions % self._slots
        if first >= self._slots - 1:
            return None
        held = positions - (positions - slots) % self._slots
        return torch.where(held >= 0, held, NOWHERE)

    def update(self, layer_index: int, k: torch.Tensor, v: torch.Tensor) -> Pair:
        """See the protocol."""
        if self._held is None:
            return super().update(layer_index, k, v)
        result = []
        for part, new in zip(self._layer(layer_index, k, self._slots), (k, v), strict=True):
            ring = self._present(part)
            result.append(torch.cat([ring[:, :, : len(self._held)].transpose(1, 2), new], dim=1))
            ring[:, :, self._places] = new[:, -self._slots :].transpose(1, 2)
        return result[0], result[1]
