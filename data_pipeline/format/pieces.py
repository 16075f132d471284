"""Documents in order, some at a time: what merging, cutting anew, importing and exporting go through.

Memory is bounded by PIECE_TOKENS and the longest document.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from data_pipeline.errors import DataError
from data_pipeline.format.dataset import Int64, TokenDataset
from data_pipeline.format.manifest import ORIGIN_DTYPE, UNKNOWN_FILE

PIECE_TOKENS = 1 << 22
MOST_TOKENS = 1 << 30
"""A document beyond this is taken for a stream whose ends are not found."""


class Piece(NamedTuple):
    """Some whole documents."""

    ids: NDArray[Any]
    """Of all documents, joined."""
    lengths: Int64
    """Tokens of each document."""
    origins: NDArray[Any] | None = None
    """Of each document (ORIGIN_DTYPE)."""


def groups(ends: Int64) -> Iterator[tuple[int, int]]:
    """Ranges of documents of about PIECE_TOKENS tokens, at least one document each, from where each ends."""
    start = 0
    while start < len(ends):
        before = int(ends[start - 1]) if start else 0
        stop = max(start + 1, int(np.searchsorted(ends, before + PIECE_TOKENS, side="right")))
        yield start, stop
        start = stop


def pieces_of(dataset: TokenDataset) -> Iterator[Piece]:
    """The documents of a split, with their origins where the set knows any."""
    for shard in range(len(dataset.shards)):
        ends = dataset.document_ends(shard)
        tokens, origins = dataset.shard_tokens(shard), _origins(dataset, shard)
        for start, stop in groups(ends):
            first = int(ends[start - 1]) if start else 0
            lengths = np.diff(ends[start:stop], prepend=first)
            yield Piece(tokens[first : ends[stop - 1]], lengths, None if origins is None else origins[start:stop])


def cut_at_eod(streams: Iterable[NDArray[Any]], eod_id: int, path: Path) -> Iterator[Piece]:
    """Documents of a stream of ids that comes in arrays cut anywhere: each ends with EOD, but perhaps the last.

    Raises DataError, for which `path` is, where no end is found for too long.
    """
    rest: list[NDArray[Any]] = []
    waiting = 0
    for ids in streams:
        ends = np.flatnonzero(ids == eod_id) + 1
        if len(ends):
            whole = np.concatenate([*rest, ids[: ends[-1]]])
            yield Piece(whole, np.diff(ends + waiting, prepend=0))
            rest, waiting, ids = [], 0, ids[ends[-1] :]
        rest.append(ids)
        waiting += len(ids)
        if waiting > MOST_TOKENS:
            raise DataError(
                f"has no end-of-document id {eod_id} in {waiting:,} tokens: the wrong tokenizer or type?", path
            )
    if waiting:
        yield Piece(np.concatenate(rest), np.asarray([waiting]))


def _origins(dataset: TokenDataset, shard: int) -> NDArray[Any] | None:
    if dataset.shards[shard].org_xxh3_128 is not None:
        return np.memmap(dataset.files.path(shard, "org"), ORIGIN_DTYPE, mode="r")
    if dataset.manifest.origins_xxh3_128 is None:
        return None
    unknown = np.zeros(dataset.shards[shard].documents, ORIGIN_DTYPE)
    unknown["file"] = UNKNOWN_FILE
    return unknown
