"""Several data sets of one tokenizer as one: the shards keep their bytes and get new numbers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import orjson

from data_pipeline.errors import DataError
from data_pipeline.format.files import raise_faults, size_faults
from data_pipeline.format.folder import Building, link_file
from data_pipeline.format.hashes import hash_file
from data_pipeline.format.manifest import (
    ORIGIN_DTYPE,
    ORIGINS,
    UNKNOWN_FILE,
    Manifest,
    Shard,
    Split,
    read_manifest,
    write_manifest,
    write_origins,
    write_whole,
)
from data_pipeline.format.reshard import copy_tokenizer
from data_pipeline.format.writer import shard_name

_SAME = ("tokenizer", "vocab_size", "eod_id", "bos_id", "dtype")


def merge(
    folders: Sequence[str | Path],
    output: str | Path,
    name: str = "",
    copy: bool = False,
    overwrite: bool = False,
    advance: Callable[[int], Any] = lambda size: None,
) -> Manifest:
    """Writes one data set at `output` with the documents of each folder, in order; returns its manifest.

    copy: no hard links to the files of the folders. Raises DataError when the sets do not fit or files are missing.
    """
    paths = [Path(folder) for folder in folders]
    manifests = [read_manifest(path) for path in paths]
    _check(paths, manifests)
    with Building(output, overwrite) as building:
        names: list[str] = []
        shards: dict[str, list[Shard]] = {split: [] for manifest in manifests for split in manifest.splits}
        for path, manifest in zip(paths, manifests, strict=True):
            for split, record in manifest.splits.items():
                (building.path / split).mkdir(exist_ok=True)
                for shard in record.shards:
                    old = path / split / shard.name
                    new = building.path / split / shard_name(len(shards[split]))
                    shards[split].append(_take(old, shard, new, len(names), copy))
                    advance(shard.bytes)
            if manifest.origins_xxh3_128 is not None:
                names += orjson.loads((path / ORIGINS).read_bytes())
        copy_tokenizer(paths[0], building.path)
        known = any(manifest.origins_xxh3_128 is not None for manifest in manifests)
        merged = Manifest(
            name=name or building.folder.name,
            **{key: getattr(manifests[0], key) for key in _SAME},
            largest_id=max(manifest.largest_id for manifest in manifests),
            splits={split: _total(split, manifests, shards[split]) for split in sorted(shards)},
            sources=tuple(source for manifest in manifests for source in manifest.sources),
            settings={"merged": [{"name": one.name, "digest": one.digest, **one.settings} for one in manifests]},
            origins_xxh3_128=write_origins(building.path, names) if known else None,
        )
        write_manifest(building.path, merged)
        building.finish()
        return merged


def _check(paths: Sequence[Path], manifests: Sequence[Manifest]) -> None:
    if not paths:
        raise DataError("there is nothing to merge; name one or more data sets")
    for path, manifest in zip(paths, manifests, strict=True):
        for key in _SAME:
            ours, theirs = getattr(manifests[0], key), getattr(manifest, key)
            if ours != theirs:
                raise DataError(f"has {key} {theirs}, but {paths[0]} has {ours}; a set has one tokenizer", path)
    every = zip(paths, manifests, strict=True)
    raise_faults([fault for path, one in every for split in one.splits for fault in size_faults(path, one, split)])


def _take(old: Path, shard: Shard, new: Path, files_before: int, copy: bool) -> Shard:
    """Gives a shard's files their new name; its origins count the files of the sets before it.

    old, new: the files without their endings.
    """
    record = shard._replace(name=new.name)
    for ending in shard.file_hashes():
        source, target = old.with_name(f"{old.name}.{ending}"), new.with_name(f"{new.name}.{ending}")
        if ending == "org" and files_before:
            record = record._replace(org_xxh3_128=_shift_origins(source, shard, target, files_before))
        else:
            link_file(source, target, copy)
    return record


def _shift_origins(path: Path, shard: Shard, new: Path, files_before: int) -> str:
    """Writes the origins with later file numbers; they are checked first, else damage would get a good hash."""
    found = hash_file(path).whole
    if found != shard.org_xxh3_128:
        raise DataError(f"has hash {found}, the manifest says {shard.org_xxh3_128}; its content was changed", path)
    origins = np.fromfile(path, ORIGIN_DTYPE)
    origins["file"][origins["file"] != UNKNOWN_FILE] += files_before
    write_whole(new, origins.tobytes())
    return hash_file(new).whole


def _total(split: str, manifests: Sequence[Manifest], shards: Sequence[Shard]) -> Split:
    parts = [manifest.splits[split] for manifest in manifests if split in manifest.splits]
    return Split(
        tokens=sum(part.tokens for part in parts),
        documents=sum(part.documents for part in parts),
        longest=max(part.longest for part in parts),
        text_bytes=sum(part.text_bytes for part in parts),
        shards=tuple(shards),
    )
