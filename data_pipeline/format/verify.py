"""Reads every byte of a data set and compares it with the hashes, and what the bytes mean with one another."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from data_pipeline.format.files import Fault, raise_faults, size_faults
from data_pipeline.format.hashes import HASH_DTYPE, MIB, Hashes, hash_bytes, hash_file
from data_pipeline.format.manifest import (
    LENGTH_DTYPE,
    ORIGIN_DTYPE,
    ORIGINS,
    UNKNOWN_FILE,
    Manifest,
    Shard,
)
from data_pipeline.format.place import Folder, Place

Advance = Callable[[int], Any]

_THREADS = 8
"""Hashing and reading leave Python's lock; more threads than cores keep a shared file system busy."""

_BLOCKS_NAMED = 8
_SCAN = 1 << 22
"""Tokens looked at in one go."""


class Verified(NamedTuple):
    """What a check of a data set has found."""

    bytes: int
    """Read."""
    faults: list[Fault]
    """All of them, in the order of the manifest."""


def verify(folder: str | Path, advance: Advance = lambda size: None) -> int:
    """Reads all of a data set and returns the bytes read. Raises DataError that names every fault."""
    found = find_faults(Folder(folder), advance)
    raise_faults(found.faults)
    return found.bytes


def bytes_to_read(manifest: Manifest) -> int:
    """The bytes that `find_faults` reads of an undamaged data set."""
    shards = (shard for split in manifest.splits.values() for shard in split.shards)
    return sum(shard.file_size(ending) for shard in shards for ending in shard.file_hashes())


def find_faults(place: Place, advance: Advance = lambda size: None) -> Verified:
    """Reads all of a data set; `advance` hears of bytes from several threads. Raises DataError for a bad manifest only.

    Sizes, the hash of each file and of each MiB, the lengths and EODs of documents, their origins, and files that the
    manifest does not list.
    """
    manifest = place.manifest()
    faults, origins = _check_origins(place, manifest)
    checked = 0
    for split, record in manifest.splits.items():
        faults += _listing_faults(place, manifest, split)
        known = {shard.bin_xxh3_128: shard.name for shard in record.shards}
        check = partial(_check_shard, place, split, manifest, known, origins, advance)
        with ThreadPoolExecutor(_THREADS) as pool:
            for size, found in pool.map(check, record.shards):
                checked += size
                faults += found
    return Verified(checked, faults)


def _listing_faults(place: Place, manifest: Manifest, split: str) -> list[Fault]:
    """What the names and sizes of the files tell."""
    sizes = place.sizes(split)
    return size_faults(place.name, manifest, split, sizes) + list(_strangers(place.name, sizes, manifest, split))


def _check_origins(place: Place, manifest: Manifest) -> tuple[list[Fault], int | None]:
    """Faults of origins.json, and the number of names in it; None where that cannot be told."""
    if manifest.origins_xxh3_128 is None:
        return [], 0
    import orjson

    path = f"{place.name}/{ORIGINS}"
    try:
        with place.files("", [ORIGINS]) as folder:
            data = (folder / ORIGINS).read_bytes()
    except OSError as error:
        return [Fault(path, f"cannot be read ({error.strerror}), though the manifest lists it")], None
    if hash_bytes(data) != manifest.origins_xxh3_128:
        return [Fault(path, _differs(hash_bytes(data), manifest.origins_xxh3_128))], None
    return [], len(orjson.loads(data))


def _strangers(name: str, sizes: Mapping[str, int], manifest: Manifest, split: str) -> Iterator[Fault]:
    """Files of the split that are nobody's: of an older build, of a copy that went wrong. Packed rows may lie there."""
    listed = {shard.name: shard.file_hashes() for shard in manifest.splits[split].shards}
    for file in sorted(sizes):
        stem, _, ending = file.partition(".")
        packed = ending.startswith("pack-") if stem in listed else file.startswith("pack-")
        if ending not in listed.get(stem, {}) and not packed:
            yield Fault(
                f"{name}/{split}/{file}", "does not belong to this data set: the manifest does not list it; remove it"
            )


def _check_shard(
    place: Place,
    split: str,
    manifest: Manifest,
    known: dict[str, str],
    origins: int | None,
    advance: Advance,
    shard: Shard,
) -> tuple[int, list[Fault]]:
    """Bytes read of one shard, and what is wrong with it beyond the sizes of its files."""
    with place.files(split, [f"{shard.name}.{ending}" for ending in shard.file_hashes()]) as folder:
        size, faults = _check_files(folder, manifest, known, origins, advance, shard)
    return size, [fault._replace(path=f"{place.name}/{split}/{Path(fault.path).name}") for fault in faults]


def _check_files(
    folder: Path, manifest: Manifest, known: dict[str, str], origins: int | None, advance: Advance, shard: Shard
) -> tuple[int, list[Fault]]:
    paths = {ending: folder / f"{shard.name}.{ending}" for ending in shard.file_hashes()}
    found = {ending: hash_file(path, advance) for ending, path in paths.items() if path.is_file()}
    size = sum(hashes.size for hashes in found.values())
    good = {ending for ending in found if found[ending].whole == shard.file_hashes()[ending]}
    faults = []
    for ending in found.keys() - good:
        for message in _why_different(shard, ending, found[ending], known, paths if "xxh" in good else {}):
            faults.append(Fault(str(paths[ending]), message))
    if not faults and len(good) == len(paths):
        faults = list(_check_content(paths, manifest, shard, origins))
    return size, sorted(faults)


def _why_different(
    shard: Shard, ending: str, found: Hashes, known: dict[str, str], paths: dict[str, Path]
) -> Iterator[str]:
    """What to say of a file whose hash is not the manifest's: swapped, or the MiBs that differ, or only that."""
    if ending == "bin" and found.whole in known:
        yield f"has the content of {known[found.whole]}.bin: were files swapped, or copied under a wrong name?"
    elif ending == "bin" and paths and found.size == shard.bytes:
        expected = np.fromfile(paths["xxh"], HASH_DTYPE)
        bad = np.flatnonzero(expected != found.blocks).tolist()
        for block in bad[:_BLOCKS_NAMED]:
            last = min((block + 1) * MIB, found.size) - 1
            hashes = f"{found.blocks[block]:016x}, {paths['xxh'].name} says {expected[block]:016x}"
            yield f"MiB {block} (bytes {block * MIB} to {last}) has hash {hashes}; its content was changed"
        if len(bad) > _BLOCKS_NAMED:
            yield f"differs in {len(bad) - _BLOCKS_NAMED} more MiBs"
        if not bad:
            yield _differs(found.whole, shard.bin_xxh3_128)
    elif found.size == shard.file_size(ending):
        yield _differs(found.whole, shard.file_hashes()[ending])


def _differs(found: str, expected: str) -> str:
    return f"has hash {found}, the manifest says {expected}; its content was changed"


def _check_content(paths: dict[str, Path], manifest: Manifest, shard: Shard, origins: int | None) -> Iterator[Fault]:
    """Faults that the writer has made: every file is as it was written."""
    lengths = np.fromfile(paths["len"], LENGTH_DTYPE)
    ends = np.cumsum(lengths, dtype=np.int64)
    if not len(ends) or int(ends[-1]) != shard.tokens or int(lengths.min()) == 0:
        total = int(ends[-1]) if len(ends) else 0
        yield Fault(str(paths["len"]), f"adds up to {total} tokens, the manifest says {shard.tokens}")
        return
    dtype = np.dtype(manifest.dtype).newbyteorder("<")
    tokens = np.memmap(paths["bin"], dtype, mode="r").view(np.ndarray)
    if fault := _check_tokens(tokens, ends, manifest):
        yield Fault(str(paths["bin"]), fault)
    if "org" in paths and origins is not None:
        files = np.fromfile(paths["org"], ORIGIN_DTYPE)["file"]
        files = files[files != UNKNOWN_FILE]
        if len(files) and int(files.max()) >= origins:
            yield Fault(str(paths["org"]), f"names file {int(files.max())}, {ORIGINS} has {origins}")


def _check_tokens(tokens: NDArray[Any], ends: NDArray[np.int64], manifest: Manifest) -> str | None:
    """Every document must end with EOD, and EOD stand nowhere else; no id may be beyond the largest of the manifest."""
    for start in range(0, len(tokens), _SCAN):
        piece = tokens[start : start + _SCAN]
        low, high = np.searchsorted(ends, [start, start + len(piece)], side="right")
        if not np.array_equal(np.flatnonzero(piece == manifest.eod_id) + 1 + start, ends[low:high]):
            return "has end-of-document tokens elsewhere than at the ends of its documents"
        if int(piece.max()) > manifest.largest_id:
            return f"has token id {int(piece.max())}, the manifest says {manifest.largest_id} is the largest"
    return None
