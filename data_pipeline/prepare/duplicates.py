"""Exact duplicates among all documents: of those with one hash, the first in the order of the input stays.

Hashes are dealt by their highest bits into piles of some 16 million, so that each pile fits in memory (some 80 bytes
a document, 1.3 GB) and is sorted alone, by one process. On disk it takes 24 bytes a document for a while, and a byte
a document for the result: 10^10 documents take 250 GB and 600 piles. Two different texts of one xxh3_128 would be
taken for one; among 10^10 documents that happens with a chance below 10^-18.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from data_pipeline.prepare.workers import Workers

PILE = 1 << 24
_MOST_PILES = 512  # each is an open file while hashes are dealt
_DTYPE = np.dtype([("high", "<u8"), ("low", "<u8"), ("document", "<u8")])


def mark_duplicates(
    hashed: Iterable[NDArray[Any]], documents: int, path: Path, workers: Workers, pile: int = PILE
) -> None:
    """Writes a byte a document, in order: 1 where an earlier one has the same hash, else 0.

    hashed: arrays with the fields `high` and `low`, in the order of the input, `documents` in all.
    """
    piles = path.with_name(path.name + ".piles")
    shutil.rmtree(piles, ignore_errors=True)
    piles.mkdir()
    part = path.with_name(path.name + ".part")
    with open(part, "wb") as file:
        file.truncate(documents)
    if documents:
        count = min(_MOST_PILES, -(-documents // pile))
        _deal(hashed, piles, count)
        for _ in workers.map(partial(_mark, part), [piles / str(index) for index in range(count)]):
            pass
    shutil.rmtree(piles)
    part.rename(path)


def read_marks(path: Path, start: int, count: int) -> NDArray[np.bool_]:
    """[count] whether each document from number `start` on is a duplicate."""
    return np.fromfile(path, np.uint8, count, offset=start).astype(bool)


def _deal(hashed: Iterable[NDArray[Any]], folder: Path, count: int) -> None:
    first = 0
    with ExitStack() as stack:
        files = [stack.enter_context(open(folder / str(index), "wb")) for index in range(count)]
        for unit in hashed:
            entries = np.empty(len(unit), _DTYPE)
            entries["high"], entries["low"] = unit["high"], unit["low"]
            entries["document"] = np.arange(first, first + len(unit))
            first += len(unit)
            # The top 32 bits, spread evenly over the piles.
            piles = (entries["high"] >> np.uint64(32)) * np.uint64(count) >> np.uint64(32)
            entries = entries[np.argsort(piles, kind="stable")]
            ends = np.cumsum(np.bincount(piles.astype(np.int64), minlength=count))
            for file, part in zip(files, np.split(entries, ends[:-1]), strict=True):
                file.write(part.tobytes())


def _mark(marks: Path, pile: Path) -> None:
    """Marks the duplicates of one pile; others mark other bytes of the same file."""
    entries = np.fromfile(pile, _DTYPE)
    if len(entries):
        high, low = entries["high"].copy(), entries["low"].copy()
        order = np.lexsort((low, high))  # stable: equal ones stay in the order of the input
        high, low = high[order], low[order]
        same = (high[1:] == high[:-1]) & (low[1:] == low[:-1])
        out = np.memmap(marks, np.uint8, "r+")
        out[entries["document"][order[1:][same]]] = 1
        out.flush()
    pile.unlink()
