"""What a shard folder says about itself: the `megaxf-tokens/1` format.

    manifest.json                 written last: a folder without it is not a data set
    origins.json                  optional list of the files that documents came from, in the order of the input
    tokenizer/                    the files of the tokenizer that made the ids
    train/shard-00000.bin         raw little-endian token ids; every document ends with the end-of-document (EOD) id
    train/shard-00000.len         the length of each document in tokens, EOD included, as little-endian uint32
    train/shard-00000.xxh         xxh3_64 of each MiB of the .bin, as little-endian uint64
    train/shard-00000.org         optional, 12 bytes a document: its file in origins.json, its record in that file
    validation/...                the same

Ids take 2 bytes when the full vocabulary, added tokens counted, has at most 65,536 entries, else 4. The manifest holds
no date and no machine, so that the same input gives the same bytes.
"""

from __future__ import annotations

import gc
import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import orjson

from data_pipeline.errors import DataError
from data_pipeline.format.hashes import HASH_DTYPE, MIB, hash_bytes

FORMAT = "megaxf-tokens/1"
MANIFEST = "manifest.json"
TOKENIZER_FILES = ("tokenizer.json", "tokenizer.model", "tokenizer_config.json", "megaxf.json")
ORIGINS = "origins.json"
LENGTH_DTYPE = np.dtype("<u4")
ORIGIN_DTYPE = np.dtype([("file", "<u4"), ("record", "<u8")])
"""Number of the file in origins.json; number of the line or row in that file, from 0."""
UNKNOWN_FILE = 0xFFFFFFFF
"""Stands for the file of a document whose origin is not known, in a set where others are."""


class Shard(NamedTuple):
    """The files of one name: how much is in them, and the xxh3_128 of each. A tuple, since there may be 100,000."""

    name: str
    tokens: int
    documents: int
    bytes: int
    """Of the .bin."""
    bin_xxh3_128: str
    len_xxh3_128: str
    xxh_xxh3_128: str
    org_xxh3_128: str | None = None
    """None where the origins of the documents are not known."""

    def file_hashes(self) -> dict[str, str]:
        """The hash of each file, by the ending of its name."""
        known = {"bin": self.bin_xxh3_128, "len": self.len_xxh3_128, "xxh": self.xxh_xxh3_128}
        return known if self.org_xxh3_128 is None else {**known, "org": self.org_xxh3_128}

    def file_size(self, ending: str) -> int:
        """Bytes of the file with this ending, one of those in `file_hashes`."""
        if ending == "bin":
            return self.bytes
        if ending == "xxh":
            return -(-self.bytes // MIB) * HASH_DTYPE.itemsize
        return self.documents * {"len": LENGTH_DTYPE, "org": ORIGIN_DTYPE}[ending].itemsize


@dataclass(frozen=True)
class Split:
    """Train or validation: totals over its shards. `longest` is in tokens, `text_bytes` in bytes of UTF-8."""

    tokens: int
    documents: int
    longest: int
    text_bytes: int
    shards: tuple[Shard, ...]


@dataclass(frozen=True)
class Source:
    """One input of the build. `digest` is a hash of its documents in order, whatever file format held them."""

    name: str
    digest: str
    input_bytes: int
    text_bytes: int
    documents: dict[str, int]
    """Documents in each split."""
    tokens: dict[str, int]
    """Tokens in each split, EOD included."""
    empties: int
    errors: dict[str, int]
    """Bad records left out, by reason."""
    duplicates: int = 0
    """Documents left out, since an earlier one of any source has the same text."""
    filtered: dict[str, int] = field(default_factory=dict)
    """Records left out by the length filters, by reason."""
    longest: int = 0
    """Tokens of the longest document."""


@dataclass(frozen=True)
class Manifest:
    """The whole of manifest.json."""

    name: str
    dtype: str
    vocab_size: int
    eod_id: int
    bos_id: int | None
    largest_id: int
    splits: dict[str, Split]
    tokenizer: dict[str, str] = field(default_factory=dict)
    sources: tuple[Source, ...] = ()
    settings: dict[str, Any] = field(default_factory=dict)
    origins_xxh3_128: str | None = None
    """Of origins.json, None where there is none."""
    format: str = FORMAT

    @cached_property
    def digest(self) -> str:
        """The sha256 of manifest.json, and through the shard hashes of every token."""
        return hashlib.sha256(self.to_json()).hexdigest()

    def to_json(self) -> bytes:
        """The text of manifest.json: indented, but for the shards, which come last and take a line each."""
        record = {part.name: getattr(self, part.name) for part in fields(self)}
        record["splits"] = {name: vars(split) | {"shards": len(split.shards)} for name, split in self.splits.items()}
        head = orjson.dumps(record, option=orjson.OPT_INDENT_2)
        rows = {name: [tuple(shard) for shard in split.shards] for name, split in self.splits.items()}
        return head[:-2] + b',\n  "shards": ' + orjson.dumps(rows).replace(b"],[", b"],\n[") + b"\n}\n"


def token_dtype(vocab_size: int) -> np.dtype[Any]:
    """The narrowest type that holds every id of a full vocabulary of this size."""
    return np.dtype("<u2") if vocab_size <= 1 << 16 else np.dtype("<u4")


def is_dataset(folder: str | Path) -> bool:
    """Whether the folder holds a manifest of this format, of whatever version."""
    try:
        found = orjson.loads((Path(folder) / MANIFEST).read_bytes())
    except (OSError, ValueError):
        return False
    return isinstance(found, dict) and str(found.get("format", "")).startswith("megaxf-tokens/")


def read_manifest(folder: str | Path) -> Manifest:
    """The manifest of a local shard folder. Raises DataError when it is missing, damaged or of another version."""
    path = Path(folder) / MANIFEST
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        raise DataError(_why_missing(path.parent), path.parent) from None
    except OSError as error:
        raise DataError(f"cannot be read as a manifest ({error}); build the data set again", path) from None
    return parse_manifest(data, path)


def parse_manifest(data: bytes, path: str | Path) -> Manifest:
    """The manifest in the bytes of a manifest.json; `path` is for messages. Raises DataError as `read_manifest`."""
    with _no_collection():
        try:
            found = orjson.loads(data)
        except ValueError as error:
            raise DataError(f"cannot be read as a manifest ({error}); build the data set again", path) from None
        version = found.get("format") if isinstance(found, dict) else None
        if version != FORMAT:
            raise DataError(f"has format {version!r}, and this version reads {FORMAT!r}; build it again", path)
        try:
            shards = found.pop("shards")
            splits = {
                name: Split(**record | {"shards": tuple(map(Shard._make, shards.pop(name)))})
                for name, record in found.pop("splits").items()
            }
            sources = tuple(Source(**record) for record in found.pop("sources"))
            manifest = Manifest(splits=splits, sources=sources, **found)
            # These bytes are what to_json gives: 100,000 shards need not be written out again for their hash.
            vars(manifest)["digest"] = hashlib.sha256(data).hexdigest()
            return manifest
        except (KeyError, TypeError, AttributeError) as error:
            raise DataError(f"is not a complete manifest ({error}); build the data set again", path) from None


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Writes manifest.json in one move, after everything that it describes is on disk."""
    write_whole(folder / MANIFEST, manifest.to_json())


def write_origins(folder: Path, origins: list[str]) -> str:
    """Writes origins.json and gives its xxh3_128 for the manifest."""
    data = orjson.dumps(origins, option=orjson.OPT_INDENT_2)
    write_whole(folder / ORIGINS, data)
    return hash_bytes(data)


def write_whole(path: Path, data: bytes) -> None:
    """Writes a small file so that a kill at any moment leaves the old one or the new one; so does a full disk."""
    temporary = path.with_name(path.name + ".part")
    try:
        with open(temporary, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise


@contextmanager
def _no_collection() -> Iterator[None]:
    """Python's search for cycles off: 100,000 new tuples would set it off again and again, for twice the time."""
    before = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if before:
            gc.enable()


def _why_missing(folder: Path) -> str:
    if not folder.exists():
        return "does not exist; make it with `megaxf prepare INPUT --output DIR`"
    return f"is not a data set: no {MANIFEST} (a build that was stopped leaves none); make it with `megaxf prepare`"
