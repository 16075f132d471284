"""Megatron-LM's indexed data sets: `.bin` with the ids, `.idx` with lengths, pointers and document boundaries.

The index, little-endian: 9 bytes MMIDIDX 0 0; u64 version 1; u8 code of the type; u64 sequences S; u64 documents + 1;
i32 lengths [S]; i64 pointers [S] in bytes; i64 first sequence of each document and, last, S; optional i8 modes [S].
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from data_pipeline.errors import DataError
from data_pipeline.format.dataset import Int64, TokenDataset
from data_pipeline.format.foreign.find import Options
from data_pipeline.format.pieces import Piece, groups

HELP = "Megatron-LM .bin and .idx"
SUFFIX = ".idx"

_MAGIC = b"MMIDIDX\x00\x00"
_HEADER = struct.Struct("<9sQBQQ")
_TYPES = {1: "uint8", 2: "int8", 3: "int16", 4: "int32", 5: "int64", 8: "uint16"}
_FLOATS = {6: "float64", 7: "float32"}
_BLOCK = 1 << 20
"""Documents of the index looked at in one go."""
_LONGEST = np.iinfo(np.int32).max


class _Index(NamedTuple):
    """The arrays of an .idx, mapped."""

    path: Path
    dtype: np.dtype[Any]
    lengths: NDArray[np.int32]
    pointers: Int64
    documents: Int64


def size(path: Path) -> int:
    """Bytes of ids in the .bin of an .idx."""
    return os.path.getsize(_bin(path))


def documents(path: Path, options: Options) -> Iterator[Piece]:
    """The documents of an .idx; the sequences of one are joined."""
    index = _read_index(path)
    if not len(index.lengths):
        return
    ids = np.memmap(_bin(path), index.dtype, mode="r").view(np.ndarray)
    for start in range(0, len(index.documents) - 1, _BLOCK):
        firsts = index.documents[start : start + _BLOCK + 1]
        low, high = int(firsts[0]), int(firsts[-1])
        lengths = index.lengths[low:high].astype(np.int64)
        starts = _starts(index, low, lengths, len(ids))
        ends = np.concatenate([[0], np.cumsum(lengths)])[firsts[1:] - low]
        for first, stop in groups(ends):
            some = slice(int(firsts[first]) - low, int(firsts[stop]) - low)
            before = ends[first - 1] if first else 0
            yield Piece(_gather(ids, starts[some], lengths[some]), np.diff(ends[first:stop], prepend=before))


def write_index(path: Path, dataset: TokenDataset, shard: int) -> None:
    """The .idx for a shard, whose .bin is Megatron's as it is: a sequence a document.

    Raises DataError for a document of more than 2^31 - 1 tokens.
    """
    itemsize = np.dtype(dataset.manifest.dtype).itemsize
    ends = dataset.document_ends(shard)
    lengths = np.diff(ends, prepend=0)
    if int(lengths.max()) > _LONGEST:
        raise DataError(f"Megatron stores lengths in 32 bits, and a document has {int(lengths.max()):,} tokens", path)
    # Megatron has no uint32: below 2^31 the bytes of int32 are the same.
    code = 8 if itemsize == 2 else 4
    count = len(lengths)
    with open(path, "xb") as file:
        file.write(_HEADER.pack(_MAGIC, 1, code, count, count + 1))
        for start in range(0, count, _BLOCK):
            file.write(lengths[start : start + _BLOCK].astype("<i4").tobytes())
        for start in range(0, count, _BLOCK):
            some = slice(start, start + _BLOCK)
            file.write(((ends[some] - lengths[some]) * itemsize).astype("<i8").tobytes())
        for start in range(0, count + 1, _BLOCK):
            file.write(np.arange(start, min(start + _BLOCK, count + 1), dtype="<i8").tobytes())
        file.flush()
        os.fsync(file.fileno())


def _bin(path: Path) -> Path:
    found = path.with_suffix(".bin")
    if not found.is_file():
        raise DataError(f"has no {found.name} beside it", path)
    return found


def _read_index(path: Path) -> _Index:
    total = path.stat().st_size
    with open(path, "rb") as file:
        head = file.read(_HEADER.size)
    if len(head) < _HEADER.size or not head.startswith(_MAGIC):
        raise DataError("is not an index of Megatron-LM: it does not begin with MMIDIDX", path)
    _, version, code, sequences, boundaries = _HEADER.unpack(head)
    if version != 1 or code not in _TYPES:
        kind = _FLOATS.get(code, f"code {code}")
        raise DataError(f"has version {version} and ids of type {kind}; version 1 and integers are read", path)
    expected = _HEADER.size + sequences * 12 + boundaries * 8
    if total not in (expected, expected + sequences):
        raise DataError(f"has {total} bytes, its header says {expected}; it was cut or changed: copy it again", path)
    if not sequences:
        return _Index(path, np.dtype(_TYPES[code]), *(np.zeros(0, kind) for kind in ("<i4", "<i8", "<i8")))
    # Mapped as bytes: the arrays begin at an odd place.
    data = np.memmap(path, np.uint8, mode="r", offset=0).view(np.ndarray)[_HEADER.size :]
    lengths = data[: sequences * 4].view("<i4")
    pointers = data[sequences * 4 : sequences * 12].view("<i8")
    documents = data[sequences * 12 :][: boundaries * 8].view("<i8")
    if total != expected and data[expected - _HEADER.size :].any():
        raise DataError("has sequences of several modes (images); only text is read", path)
    if not boundaries or documents[0] != 0 or documents[-1] != sequences or (np.diff(documents) < 0).any():
        raise DataError(f"does not say to which documents its {sequences} sequences belong", path)
    return _Index(path, np.dtype(_TYPES[code]).newbyteorder("<"), lengths, pointers, documents)


def _starts(index: _Index, first: int, lengths: Int64, tokens: int) -> Int64:
    """Where sequences begin, in tokens of the .bin; they must lie in it."""
    pointers = index.pointers[first : first + len(lengths)]
    starts = pointers // index.dtype.itemsize
    bad = np.flatnonzero(
        (lengths < 0) | (pointers % index.dtype.itemsize != 0) | (starts < 0) | (starts + lengths > tokens)
    )
    if len(bad):
        where = f"at byte {pointers[bad[0]]} with {lengths[bad[0]]} tokens"
        fault = f"sequence {first + bad[0]} lies {where}, outside the {tokens} tokens of {_bin(index.path).name}"
        raise DataError(f"{fault}; a file was cut, or the index was written with 32-bit pointers", index.path)
    return starts


def _gather(ids: NDArray[Any], starts: Int64, lengths: Int64) -> NDArray[Any]:
    """The ids of sequences, joined: a view where they follow one another, as they nearly always do."""
    if not len(starts):
        return ids[:0]
    if np.array_equal(starts[1:], starts[:-1] + lengths[:-1]):
        return ids[int(starts[0]) : int(starts[-1] + lengths[-1])]
    return np.concatenate([ids[start : start + length] for start, length in zip(starts, lengths, strict=True)])
