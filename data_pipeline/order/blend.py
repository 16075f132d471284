"""Which source a sample comes from, by weight: a function of the sample's position alone.

The sources are the leaves of a binary tree. A node that has handed out n samples has given round(n x share) of them to
its left child (Bresenham's line), so the next one goes left exactly when that number grows. Nothing is drawn at random
and nothing is stored: every prefix is within a few samples of its weights, at any position up to 2^63.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

_LOW = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)


class Blend:
    """Deals samples to sources in proportion to weights from 0 up (any scale: only ratios count)."""

    def __init__(self, weights: Sequence[float]):
        self.sources = len(weights)
        self._share: list[int] = []
        """Per node, the left child's part of its samples, as a fraction of 2^64."""
        self._children: list[tuple[int, int]] = []
        """Per node, two children: a node's number, or -1 - source for a leaf."""
        self._root = self._build([Fraction(weight) for weight in weights], 0)
        self._shares = np.asarray(self._share or [0], dtype=np.uint64)
        self._table = np.asarray(self._children or [(0, 0)], dtype=np.int64)

    def locate(self, positions: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """For each position of the run: its source, and how many samples that source gave before it."""
        node = np.full(len(positions), self._root, dtype=np.int64)
        count = positions.astype(np.uint64)
        while (inner := np.flatnonzero(node >= 0)).size:
            share, n = self._shares[node[inner]], count[inner]
            left = _portion(n, share)
            goes_left = _portion(n + np.uint64(1), share) > left
            count[inner] = np.where(goes_left, left, n - left)
            node[inner] = self._table[node[inner], np.where(goes_left, 0, 1)]
        return -1 - node, count.astype(np.int64)

    def counts(self, samples: int) -> list[int]:
        """How many of the first `samples` samples come from each source."""
        totals = [0] * self.sources
        open_nodes = [(self._root, samples)]
        while open_nodes:
            node, n = open_nodes.pop()
            if node < 0:
                totals[-1 - node] = n
                continue
            left = (n * self._share[node] + (1 << 63)) >> 64
            open_nodes += [(self._children[node][0], left), (self._children[node][1], n - left)]
        return totals

    def _build(self, weights: list[Fraction], first: int) -> int:
        """Adds the tree over these weights, which belong to sources first, first + 1, ...; returns its root."""
        if len(weights) == 1:
            return -1 - first
        node, middle = len(self._share), len(weights) // 2
        # Sources of weight 0 give nothing; a subtree of them is never entered.
        share = sum(weights[:middle], Fraction(0)) / (sum(weights, Fraction(0)) or 1)
        self._share.append(min(round(share * (1 << 64)), (1 << 64) - 1))
        self._children.append((0, 0))
        self._children[node] = self._build(weights[:middle], first), self._build(weights[middle:], first + middle)
        return node


def _portion(count: NDArray[np.uint64], share: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """round(count x share / 2^64), exactly, from 32-bit halves."""
    count_high, count_low = count >> _HALF, count & _LOW
    share_high, share_low = share >> _HALF, share & _LOW
    low = count_low * share_low
    middle = count_high * share_low + (low >> _HALF)
    middle_low = count_low * share_high + (middle & _LOW)
    whole = count_high * share_high + (middle >> _HALF) + (middle_low >> _HALF)
    # The top bit of the fraction that is left decides about rounding up.
    return whole + ((middle_low >> np.uint64(31)) & np.uint64(1))
