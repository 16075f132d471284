"""Hashes of files and of each MiB in them (xxh3, https://xxhash.com): against damage, not against forgery.

A MiB is 1 << 20 bytes from a multiple of it on; the last of a file may be shorter.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import xxhash
from numpy.typing import NDArray

MIB = 1 << 20
HASH_DTYPE = np.dtype("<u8")
"""Of a MiB: its xxh3_64."""

_READ = 16 * MIB


class Hashes(NamedTuple):
    """What identifies the bytes of a file."""

    whole: str
    """xxh3_128 in hexadecimal digits."""
    blocks: NDArray[np.uint64]
    """xxh3_64 of each MiB [ceil(size / MiB)]."""
    size: int


class Hasher:
    """Takes the bytes of a file in pieces of any size."""

    def __init__(self) -> None:
        self.size = 0
        self._whole = xxhash.xxh3_128()
        self._open = xxhash.xxh3_64()
        self._blocks: list[int] = []

    def update(self, data: memoryview) -> None:
        """Appends bytes."""
        self._whole.update(data)
        start = 0
        while start < len(data):
            stop = min(len(data), start + MIB - self.size % MIB)
            self._open.update(data[start:stop])
            self.size += stop - start
            start = stop
            if self.size % MIB == 0:
                self._blocks.append(self._open.intdigest())
                self._open.reset()

    def result(self) -> Hashes:
        """The hashes of what came so far."""
        last = [self._open.intdigest()] if self.size % MIB else []
        return Hashes(self._whole.hexdigest(), np.asarray([*self._blocks, *last], HASH_DTYPE), self.size)


def hash_file(path: Path, advance: Callable[[int], Any] = lambda size: None) -> Hashes:
    """Reads a whole file; `advance` hears of every piece of so many bytes."""
    hasher = Hasher()
    buffer = memoryview(bytearray(_READ))
    with open(path, "rb", buffering=0) as file:
        while size := file.readinto(buffer):
            hasher.update(buffer[:size])
            advance(size)
    return hasher.result()


def hash_bytes(data: bytes) -> str:
    """The xxh3_128 of bytes, in hexadecimal digits."""
    return xxhash.xxh3_128_hexdigest(data)
