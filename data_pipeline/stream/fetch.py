"""Brings one file from a store to the disk in pieces, each compared with its hash before it is written."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import xxhash
from numpy.typing import NDArray

from data_pipeline.format.hashes import MIB, hash_bytes
from data_pipeline.stream.store import Store

_PIECE = 8 * MIB
"""Bytes of one request: large enough for object stores, small enough to be asked for again."""


class Expected(NamedTuple):
    """What a file must be: its size, and what is wrong with the `piece` bytes of it that start at an offset."""

    size: int
    piece: int
    fault: Callable[[int, bytes], str | None]


def expected_blocks(size: int, hashes: NDArray[Any]) -> Expected:
    """A file of which the xxh3_64 of each MiB is known, [ceil(size / MiB)]."""

    def fault(start: int, data: bytes) -> str | None:
        view = memoryview(data)
        for number in range(start // MIB, -(-(start + len(data)) // MIB)):
            begin = number * MIB - start
            found = xxhash.xxh3_64_intdigest(view[begin : begin + MIB])
            if found != int(hashes[number]):
                return f"MiB {number} has xxh3_64 {found:016x}, expected {int(hashes[number]):016x}"
        return None

    return Expected(size, _PIECE, fault)


def expected_whole(size: int, digest: str | None) -> Expected:
    """A small file of which the xxh3_128 is known, or nothing but the size: it comes in one piece."""

    def fault(start: int, data: bytes) -> str | None:
        found = hash_bytes(data)
        return None if digest in (None, found) else f"it has xxh3_128 {found}, expected {digest}"

    return Expected(size, max(size, 1), fault)


def local_fault(path: Path, expected: Expected) -> str | None:
    """What is wrong with a file on the disk, None if it is as expected."""
    size = path.stat().st_size
    if size != expected.size:
        return f"it has {size} bytes, expected {expected.size}"
    with open(path, "rb", buffering=0) as file:
        for start in range(0, size, expected.piece):
            if fault := expected.fault(start, file.read(min(expected.piece, size - start))):
                return fault
    return None


def download(store: Store, name: str, part: Path, expected: Expected, connections: int) -> None:
    """Fills `part`, a file of full size, with `connections` requests at a time.

    Raises DamageError and DataError as `Store.read`, OSError as the disk does.
    """
    handle = os.open(part, os.O_WRONLY)

    def bring(start: int) -> None:
        stop = min(start + expected.piece, expected.size)
        data = memoryview(store.read(name, start, stop, lambda data: expected.fault(start, data)))
        while data:
            written = os.pwrite(handle, data, stop - len(data))
            data = data[written:]

    try:
        with ThreadPoolExecutor(connections) as pool:
            for _ in pool.map(bring, range(0, expected.size, expected.piece)):
                pass
    finally:
        os.close(handle)
