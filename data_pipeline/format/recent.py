"""Keeps what was made last, up to a total size."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar

Value = TypeVar("Value")


class Recent(Generic[Value]):
    """Values by number; the one put first goes first when all together have more than `limit`, but never the last."""

    def __init__(self, limit: int, size: Callable[[Value], int]):
        self._limit, self._size = limit, size
        self._values: dict[int, Value] = {}
        self._total = 0
        self.get = self._values.get
        """The value of a number, None where it is not kept. The dictionary's own method: it is called for every row."""

    def put(self, number: int, value: Value) -> Value:
        """Keeps a value and gives it back."""
        self.drop(number)
        self._values[number] = value
        self._total += self._size(value)
        while self._total > self._limit and len(self._values) > 1:
            self.drop(next(iter(self._values)))
        return value

    def drop(self, number: int) -> None:
        """Forgets a value; a map on a file is given up once no one else uses it."""
        if number in self._values:
            self._total -= self._size(self._values.pop(number))
