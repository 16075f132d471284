"""Keeps what was made last, up to a total size."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

Value = TypeVar("Value")


class Recent(dict[int, Value]):
    """Values by number, made when first asked for: `recent[number]`.

    The one made first goes first when all together have more than `limit`, but never the last.
    """

    def __init__(self, limit: int, size: Callable[[Value], int], make: Callable[[int], Value]):
        super().__init__()
        self._limit, self._size, self._make = limit, size, make
        self._total = 0

    def __missing__(self, number: int) -> Value:
        value = self[number] = self._make(number)
        self._total += self._size(value)
        while self._total > self._limit and len(self) > 1:
            self.drop(next(iter(self)))
        return value

    def drop(self, number: int) -> None:
        """Forgets a value; a map on a file is given up once no one else uses it."""
        if number in self:
            self._total -= self._size(self.pop(number))
