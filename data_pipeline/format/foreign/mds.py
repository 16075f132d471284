"""MosaicML's MDS: `index.json` and shards of samples, one column of which holds ids.

A shard, little-endian: u32 samples n; u32 offsets [n + 1] of samples in the file; a description; the samples, each of
which has a u32 size for every column without a fixed one, then the columns.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import orjson
from numpy.typing import NDArray

from data_pipeline.errors import DataError
from data_pipeline.format.foreign.find import Options, integer_type
from data_pipeline.format.pieces import PIECE_TOKENS, Piece

HELP = "MosaicML streaming MDS with a column of ids (its folder or index.json)"
SUFFIX = "index.json"

_USUAL = ("tokens", "input_ids")
_CODES = {8: "uint8", 9: "int8", 16: "uint16", 17: "int16", 32: "uint32", 33: "int32", 64: "uint64", 65: "int64"}
"""The byte before an array that says its type, where the column does not."""


def size(path: Path) -> int:
    """Bytes of the samples of an index."""
    return sum(shard["raw_data"]["bytes"] for shard in _shards(path))


def documents(path: Path, options: Options) -> Iterator[Piece]:
    """The samples, each as a document."""
    for shard in _shards(path):
        column = _column(path, shard, options)
        encoding = shard["column_encodings"][column]
        samples: list[NDArray[Any]] = []
        waiting = 0
        for sample in _samples(path.parent, shard):
            samples.append(_ids(_value(sample, shard["column_sizes"], column), encoding, path, options))
            waiting += len(samples[-1])
            if waiting >= PIECE_TOKENS:
                yield Piece(np.concatenate(samples), np.asarray([len(ids) for ids in samples]))
                samples, waiting = [], 0
        if samples:
            yield Piece(np.concatenate(samples), np.asarray([len(ids) for ids in samples]))


def _shards(path: Path) -> list[dict[str, Any]]:
    try:
        found = orjson.loads(path.read_bytes())
        shards: list[dict[str, Any]] = found["shards"]
        formats = {(found["version"], shard["format"]) for shard in shards}
    except (ValueError, LookupError, TypeError) as error:
        raise DataError(f"is not an index of MDS shards ({error})", path) from None
    if formats - {(2, "mds")}:
        raise DataError(f"has shards of version and format {formats}; version 2 of mds is read", path)
    return shards


def _column(path: Path, shard: dict[str, Any], options: Options) -> int:
    """The number of the column of ids: the one that was named, else one of the usual names."""
    names: list[str] = shard["column_names"]
    wanted = (options.column,) if options.column else _USUAL
    found = [names.index(name) for name in wanted if name in names]
    if len(found) != 1:
        raise DataError(f"has columns {', '.join(names)}; say with --column which one holds the ids", path)
    return found[0]


def _samples(folder: Path, shard: dict[str, Any]) -> Iterator[NDArray[np.uint8]]:
    """The bytes of each sample of a shard."""
    name, count = shard["raw_data"]["basename"], shard["samples"]
    data = _content(folder, shard)
    begin = 4 * (count + 2)
    if len(data) != shard["raw_data"]["bytes"] or len(data) < begin or int(data[:4].view("<u4")[0]) != count:
        raise DataError(f"has {len(data)} bytes, or other samples than its index says; copy it again", folder / name)
    offsets = data[4:begin].view("<u4").astype(np.int64)
    if int(offsets[0]) < begin or int(offsets[-1]) != len(data) or (np.diff(offsets) < 0).any():
        raise DataError("has samples outside the file; it was changed: copy it again", folder / name)
    yield from (data[start:stop] for start, stop in zip(offsets[:-1].tolist(), offsets[1:].tolist(), strict=True))


def _content(folder: Path, shard: dict[str, Any]) -> NDArray[np.uint8]:
    raw = folder / shard["raw_data"]["basename"]
    if raw.is_file():
        return np.memmap(raw, np.uint8, mode="r").view(np.ndarray)
    packed = shard["zip_data"] and folder / shard["zip_data"]["basename"]
    if not packed or not packed.is_file():
        raise DataError("is missing, though the index lists it; copy the data set again", raw)
    if not str(shard["compression"]).startswith("zstd"):
        raise DataError(f"is compressed as {shard['compression']}; only zstd is read: unpack it first", packed)
    import zstandard

    try:
        data = zstandard.ZstdDecompressor().decompress(packed.read_bytes(), shard["raw_data"]["bytes"])
    except zstandard.ZstdError as error:
        raise DataError(f"cannot be unpacked ({error}); copy it again", packed) from None
    return np.frombuffer(data, np.uint8)


def _value(sample: NDArray[np.uint8], fixed: list[int | None], column: int) -> NDArray[np.uint8]:
    """The bytes of one column of a sample."""
    heads = 4 * sum(1 for size in fixed if not size)
    told = iter(sample[:heads].view("<u4").tolist())
    sizes = [size or next(told) for size in fixed]
    start = heads + sum(sizes[:column])
    return sample[start : start + sizes[column]]


def _ids(data: NDArray[np.uint8], encoding: str, path: Path, options: Options) -> NDArray[Any]:
    """The array in the bytes of a column: a type and a shape where the encoding does not name them, then the ids."""
    kind, *told = encoding.split(":")
    if kind == "bytes" and options.dtype:
        return data.view(np.dtype(integer_type(options.dtype, path)).newbyteorder("<"))
    if kind != "ndarray":
        advice = "; say with --dtype of which type the ids are (llm-foundry wrote int64)" if kind == "bytes" else ""
        raise DataError(f"has its ids encoded as {encoding}, not as ndarray{advice}", path)
    start = 0
    if not told:
        told, start = [_CODES.get(int(data[0]), f"code {data[0]}")], 1
    dtype = np.dtype(integer_type(told[0], path)).newbyteorder("<")
    if len(told) < 2:
        # A byte with the number of dimensions and the width of their sizes, then the sizes.
        start += 1 + (data[start] >> 2) * (1 << (data[start] & 3))
    return data[start:].view(dtype)
