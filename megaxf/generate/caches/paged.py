"""Keys and values in blocks of a few tokens, taken as rows grow (arXiv 2309.06180)."""

from __future__ import annotations

import torch

from megaxf.generate.caches.base import Pair, RowCache
from megaxf.models.attention import extent

BLOCK = 16
"""Tokens of a block."""
GROWTH = 1.25
"""The pool becomes at least so many times larger when it is short: growing copies it."""


class PagedCache(RowCache):
    """A pool of blocks that all rows share; slot p of a row is in block p / 16 of its table.

    A layer's blocks are laid side by side for attention, and dropped again: that is the price of the memory saved.
    """

    def __init__(self, rows: int, length: int) -> None:
        super().__init__(rows, length)
        self._tables: list[list[int]] = []
        self._free: list[int] = []
        self._blocks = 0
        self._used = 0
        self._table = self._places = torch.empty(0)
        """Blocks of each row of the pass [batch, blocks], and slots of its tokens in the pool [batch x seq]."""

    def add(self, count: int) -> None:
        """Empty rows behind the last."""
        super().add(count)
        self._tables += [[] for _ in range(count)]

    def remove(self, row: int) -> None:
        """Give a row's blocks back; the last row takes its place."""
        self.count -= 1
        self._free += self._tables[row]
        self._tables[row] = self._tables[-1]
        self._tables.pop()

    def reserve(self, positions: torch.Tensor) -> int:
        """See the protocol."""
        last = extent(positions)[1]
        self._check(last)
        self._used = last + 1
        tables = self._tables[self.rows]
        for table, end in zip(tables, positions[:, -1].tolist(), strict=True):
            table += self._take(end // BLOCK + 1 - len(table))
        width = last // BLOCK + 1
        padded = [table + [0] * (width - len(table)) for table in tables]
        self._table = torch.tensor(padded, device=positions.device)
        self._places = (self._table.gather(1, positions // BLOCK) * BLOCK + positions % BLOCK).flatten()
        return self._used

    def update(self, layer_index: int, k: torch.Tensor, v: torch.Tensor) -> Pair:
        """See the protocol."""
        result = []
        for pool, new in zip(self._pool(layer_index, k), (k, v), strict=True):
            pool.flatten(0, 1)[self._places] = new.flatten(0, 1)
            result.append(pool[self._table].flatten(1, 2)[:, : self._used])
        return result[0], result[1]

    def _take(self, count: int) -> list[int]:
        """Free blocks, of a larger pool where they do not suffice."""
        if count > len(self._free):
            larger = max(self._blocks + count - len(self._free), int(GROWTH * self._blocks))
            self._free += range(self._blocks, larger)
            self._blocks = larger
        return [self._free.pop() for _ in range(count)]

    def _pool(self, layer_index: int, like: torch.Tensor) -> Pair:
        """Keys and values [blocks, 16, kv_heads, head_dim] of a layer."""
        pool = self._layers.get(layer_index) or (like.new_zeros(0, BLOCK, *like.shape[2:]),) * 2
        short = self._blocks - len(pool[0])
        if short:
            more = like.new_zeros(short, BLOCK, *like.shape[2:])
            pool = self._layers[layer_index] = torch.cat([pool[0], more]), torch.cat([pool[1], more])
        return pool
