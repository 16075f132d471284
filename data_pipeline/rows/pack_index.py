"""The rows of a packing, kept beside the shards: an index, so that the sequence length stays free.

    <split>/<shard>.pack-2048     the rows of one shard for S = 2048 (packing bos_fit: .pack-bos-2048)
    <split>/pack-2048.json        written last: the rows of every shard; a packing without it is not complete

A shard's file, all little-endian: the header below, u64 firsts[rows + 1], u64 starts[pieces], u32 lengths[pieces] (see
`best_fit.Packed`). Some 16 bytes for a row of 2048 tokens and 12 for a document. It is made by `megaxf data pack` or by
the first run that asks for it, from the lengths of the documents alone.
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import NamedTuple

import numpy as np
import orjson
import xxhash

from data_pipeline.errors import DataError
from data_pipeline.format.dataset import TokenDataset
from data_pipeline.format.manifest import LENGTH_DTYPE, write_whole
from data_pipeline.rows.best_fit import Packed, pack_best_fit
from data_pipeline.rows.bos_fit import pack_bos_fit

ENDINGS = {"best_fit": "pack", "bos_fit": "pack-bos"}
PACKERS = {"best_fit": pack_best_fit, "bos_fit": pack_bos_fit}

_HEADER = struct.Struct("<8sQQQQ16sQ")
"""Magic, version, sequence length, rows, pieces, xxh3_128 of the shard's .len, xxh3_64 of what follows the header."""
_MAGIC, _VERSION = b"MXFPACK\0", 1


class Summary(NamedTuple):
    """What a packing holds, over all shards of a split."""

    rows: list[int]
    """[shards]"""
    tokens: list[int]
    """In the rows of each shard [shards], those that two rows share counted twice; the rest of the rows is padding."""
    thrown_away: list[int]
    """In no row [shards]."""


def file_ending(packing: str, sequence_length: int) -> str:
    """What a shard's index is called behind the name of the shard."""
    return f"{ENDINGS[packing]}-{sequence_length}"


class PackJob(NamedTuple):
    """One shard to pack; small, since it goes to other processes."""

    lengths: Path
    """The shard's .len."""
    digest: str
    """Its xxh3_128."""
    sequence_length: int
    packing: str
    output: Path


def pack_shard(job: PackJob) -> list[int]:
    """Makes the index of one shard; gives its rows, the tokens in them and the tokens that are thrown away."""
    documents = np.fromfile(job.lengths, LENGTH_DTYPE).astype(np.int64)
    packed = PACKERS[job.packing](documents, job.sequence_length)
    parts = ((packed.firsts, "<u8"), (packed.starts, "<u8"), (packed.lengths, "<u4"))
    body = b"".join(array.astype(kind).tobytes() for array, kind in parts)
    rows, pieces, origin = len(packed.firsts) - 1, len(packed.starts), bytes.fromhex(job.digest)
    header = (_MAGIC, _VERSION, job.sequence_length, rows, pieces, origin, xxhash.xxh3_64_intdigest(body))
    write_whole(job.output, _HEADER.pack(*header) + body)
    thrown = int(np.maximum(documents - job.sequence_length - 1, 0).sum()) if job.packing == "bos_fit" else 0
    return [rows, int(packed.lengths.sum()), thrown]


def read_pack(path: Path, len_xxh3_128: str, sequence_length: int) -> Packed:
    """The index of a shard, as views of its mapped file. Raises DataError where it is damaged or of other data."""
    data = np.memmap(path, np.uint8, mode="r").view(np.ndarray)
    if len(data) < _HEADER.size:
        raise DataError(f"has {len(data)} bytes, its header alone {_HEADER.size}; delete it to have it made anew", path)
    magic, version, length, rows, pieces, origin, digest = _HEADER.unpack(data[: _HEADER.size].tobytes())
    body = data[_HEADER.size :]
    if (magic, version, length) != (_MAGIC, _VERSION, sequence_length):
        raise DataError(f"is not version {_VERSION} of a pack index for sequence_length {sequence_length}", path)
    if origin.hex() != len_xxh3_128:
        raise DataError("was made from other documents than those beside it; delete it to have it made anew", path)
    if len(body) != 8 * (rows + 1 + pieces) + 4 * pieces or xxhash.xxh3_64_intdigest(body.data) != digest:
        raise DataError("is damaged: its content is not what its header says; delete it to have it made anew", path)
    firsts, starts, lengths = np.split(body, [8 * (rows + 1), 8 * (rows + 1 + pieces)])
    return Packed(firsts.view("<i8"), starts.view("<i8"), lengths.view("<u4"))


def read_summary(path: Path, dataset: TokenDataset) -> Summary | None:
    """The summary of a packing; None where there is none, or one of another state of the data set."""
    try:
        record = orjson.loads(path.read_bytes())
    except FileNotFoundError:
        return None
    except orjson.JSONDecodeError as error:
        raise DataError(f"is not JSON ({error}); delete it to have it made anew", path) from None
    if record.pop("manifest") != dataset.manifest.digest:
        return None
    return Summary(**record)


def write_summary(path: Path, dataset: TokenDataset, summary: Summary) -> None:
    """Completes a packing."""
    write_whole(path, orjson.dumps({"manifest": dataset.manifest.digest, **summary._asdict()}))
