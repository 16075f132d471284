"""Datatrove's token files: `.ds` with the ids, `.ds.index` with the end of each document in tokens (u64).

`.ds.metadata` is text; its first line ends with a bar and the bytes of an id. `.ds.loss` is not read.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from data_pipeline.errors import DataError
from data_pipeline.format.foreign.find import Options, integer_type
from data_pipeline.format.pieces import PIECE_TOKENS, Piece, groups

HELP = "datatrove .ds with .ds.index"
SUFFIX = ".ds"


def size(path: Path) -> int:
    """Bytes of a .ds file."""
    return path.stat().st_size


def documents(path: Path, options: Options) -> Iterator[Piece]:
    """The documents that the index tells; without need for one where they are to be cut at EOD."""
    dtype = np.dtype(_type(path, options)).newbyteorder("<")
    if path.stat().st_size % dtype.itemsize:
        raise DataError(f"has {path.stat().st_size} bytes, no whole number of {dtype.name}", path)
    if not path.stat().st_size:
        return
    ids = np.memmap(path, dtype, mode="r").view(np.ndarray)
    if options.cut_at_eod:
        yield from (_whole(ids[start : start + PIECE_TOKENS]) for start in range(0, len(ids), PIECE_TOKENS))
        return
    index = path.with_name(f"{path.name}.index")
    if not index.is_file():
        raise DataError(f"has no {index.name} beside it; use --documents eod to cut it at end-of-document ids", path)
    ends = np.fromfile(index, "<u8").astype(np.int64)
    if not len(ends) or int(ends[-1]) != len(ids) or (np.diff(ends, prepend=0) < 0).any():
        last = int(ends[-1]) if len(ends) else 0
        raise DataError(f"ends at token {last}, {path.name} has {len(ids)}; one of them was cut or changed", index)
    for first, stop in groups(ends):
        before = int(ends[first - 1]) if first else 0
        yield Piece(ids[before : ends[stop - 1]], np.diff(ends[first:stop], prepend=before))


def _whole(ids: np.ndarray) -> Piece:
    return Piece(ids, np.asarray([len(ids)]))


def _type(path: Path, options: Options) -> str:
    if options.dtype:
        return integer_type(options.dtype, path)
    metadata = path.with_name(f"{path.name}.metadata")
    try:
        width = metadata.read_text(encoding="utf-8").split("\n")[0].rsplit("|", 1)[1]
        return {"2": "uint16", "4": "uint32"}[width]
    except (OSError, ValueError, LookupError):
        raise DataError(f"no {metadata.name} tells the type of its ids; use --dtype uint16 or uint32", path) from None
