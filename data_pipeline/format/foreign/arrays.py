"""Plain arrays of ids in one stream: numpy's `.npy`, or bytes without a header as OLMo, nanoGPT and others write them.

Nothing says where documents end but the end-of-document id.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from data_pipeline.errors import DataError
from data_pipeline.format.foreign.find import Options, integer_type
from data_pipeline.format.pieces import PIECE_TOKENS, Piece, cut_at_eod

HELP = "arrays of ids: .npy, or any file without a header (with --dtype)"
SUFFIX = ".npy"


def size(path: Path) -> int:
    """Bytes of a file."""
    return path.stat().st_size


def documents(path: Path, options: Options) -> Iterator[Piece]:
    """The stream, cut after each end-of-document id."""
    ids = _open(path, options)
    parts = (ids[start : start + PIECE_TOKENS] for start in range(0, len(ids), PIECE_TOKENS))
    return cut_at_eod(parts, options.eod_id, path)


def _open(path: Path, options: Options) -> NDArray[Any]:
    with open(path, "rb") as file:
        has_header = file.read(6) == b"\x93NUMPY"
    if has_header:
        try:
            ids = np.load(path, mmap_mode="r")
        except (ValueError, OSError) as error:
            raise DataError(f"cannot be read as .npy ({error})", path) from None
        integer_type(ids.dtype.name, path)
        if options.dtype not in (None, ids.dtype.name):
            raise DataError(f"has ids of type {ids.dtype.name}, not --dtype {options.dtype}", path)
        return ids.reshape(-1)
    if options.dtype is None:
        raise DataError("has no header that tells the type of its ids; use --dtype, for example uint16", path)
    dtype = np.dtype(integer_type(options.dtype, path)).newbyteorder("<")
    if path.stat().st_size % dtype.itemsize:
        raise DataError(f"has {path.stat().st_size} bytes, no whole number of {dtype.name}", path)
    return np.memmap(path, dtype, mode="r") if path.stat().st_size else np.zeros(0, dtype)
