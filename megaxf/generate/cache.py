"""Keys and values of the tokens so far, in tensors of a fixed size. The protocol is megaxf.models.attention.Cache.

Without a window, slot p of a row holds position p. With a window of w keys, position p lies in slot p mod (w - 1 + c),
where c is the most tokens that one forward pass brings: as many slots as the first of them still sees, and no more.
Rows may differ in length: padding behind a row's end lies beyond its queries and is overwritten, or outside of their
window.
"""

from __future__ import annotations

import torch

from megaxf.generate.errors import GenerateError

NOWHERE = 1 << 40
"""Position of an empty slot: beyond every query."""


class KVCache:
    """The cache of one batch.

    layers, kv_heads, head_dim: of the model. batch: rows. length: the longest row, in tokens, the new ones counted.
    window: keys that a query sees, None for all. chunk: the most tokens of one forward pass.
    Memory: 2 x layers x batch x slots x kv_heads x head_dim elements; slots is `length`, or less with a window.
    """

    def __init__(
        self,
        *,
        layers: int,
        batch: int,
        length: int,
        kv_heads: int,
        head_dim: int,
        window: int | None,
        chunk: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self.slots = length if window is None else min(length, window - 1 + chunk)
        self._wraps = self.slots < length
        self._length, self._chunk = length, chunk
        shape = (layers, batch, self.slots, kv_heads, head_dim)
        self._keys = torch.zeros(shape, dtype=dtype, device=device)
        self._values = torch.zeros(shape, dtype=dtype, device=device)
        self._rows = torch.arange(batch, device=device)[:, None]
        self._places = self._rows
        self._used = 0

    def reserve(self, positions: torch.Tensor) -> int | torch.Tensor:
        """Choose the slots of new tokens at positions [batch, seq]; see the protocol."""
        last = int(positions.max())
        if last >= self._length or positions.shape[1] > self._chunk:
            raise GenerateError(
                f"the cache was made for {self._length} tokens, {self._chunk} at a time, and got "
                f"{positions.shape[1]} up to position {last}"
            )
        self._places = positions % self.slots
        if not self._wraps:
            self._used = last + 1
            return self._used
        self._used = self.slots
        newest = positions[:, -1:]
        held = newest - (newest - torch.arange(self.slots, device=positions.device)) % self.slots
        return torch.where(held >= 0, held, NOWHERE)

    def update(self, layer_index: int, k: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Store a layer's new k and v [batch, seq, kv_heads, head_dim], give all; see the protocol."""
        keys, values = self._keys[layer_index], self._values[layer_index]
        keys[self._rows, self._places] = k
        values[self._rows, self._places] = v
        return keys[:, : self._used], values[:, : self._used]
