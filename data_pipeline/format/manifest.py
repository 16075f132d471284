"""What a shard folder says about itself: the `megaxf-tokens/1` format.

    manifest.json                 written last: a folder without it is not a data set
    train/shard-00000.bin         raw little-endian token ids; every document ends with the end-of-document (EOD) id
    train/shard-00000.len         the length of each document in tokens, EOD included, as little-endian uint32
    validation/...                the same
    tokenizer/                    the files of the tokenizer that made the ids

Ids take 2 bytes when the full vocabulary, added tokens counted, has at most 65,536 entries, else 4. The manifest holds
no date and no machine, so that the same input gives the same bytes.
"""

from __future__ import annotations

import hashlib
import json
import os
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from data_pipeline.errors import DataError

FORMAT = "megaxf-tokens/1"
MANIFEST = "manifest.json"
LENGTH_DTYPE = np.dtype("<u4")


@dataclass(frozen=True)
class Shard:
    """One pair of files: `<name>.bin` and `<name>.len`."""

    name: str
    tokens: int
    documents: int
    bytes: int
    bin_xxh3_128: str
    len_xxh3_128: str


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
    """Records left out, by reason."""


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
    format: str = FORMAT

    @property
    def digest(self) -> str:
        """A hash of everything above, and through the shard hashes of every token."""
        return hashlib.sha256(self.to_json().encode()).hexdigest()

    def to_json(self) -> str:
        """The text of manifest.json."""
        return json.dumps(asdict(self), indent=1, ensure_ascii=False) + "\n"


def token_dtype(vocab_size: int) -> np.dtype[Any]:
    """The narrowest type that holds every id of a full vocabulary of this size."""
    return np.dtype("<u2") if vocab_size <= 1 << 16 else np.dtype("<u4")


def is_dataset(folder: str | Path) -> bool:
    """Whether the folder holds a manifest of this format, of whatever version."""
    try:
        found = json.loads((Path(folder) / MANIFEST).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(found, dict) and str(found.get("format", "")).startswith("megaxf-tokens/")


def read_manifest(folder: str | Path) -> Manifest:
    """The manifest of a shard folder. Raises DataError when it is missing, damaged or of another version."""
    path = Path(folder) / MANIFEST
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise DataError(_why_missing(path.parent), path.parent) from None
    except (OSError, ValueError) as error:
        raise DataError(f"cannot be read as a manifest ({error}); build the data set again", path) from None
    version = found.get("format") if isinstance(found, dict) else None
    if version != FORMAT:
        raise DataError(f"has format {version!r}, and this version reads {FORMAT!r}; build it again", path)
    try:
        splits = {name: _split(record) for name, record in found.pop("splits").items()}
        sources = tuple(Source(**record) for record in found.pop("sources"))
        return Manifest(splits=splits, sources=sources, **found)
    except (KeyError, TypeError, AttributeError) as error:
        raise DataError(f"is not a complete manifest ({error}); build the data set again", path) from None


def write_manifest(folder: Path, manifest: Manifest) -> None:
    """Writes manifest.json in one move, after everything that it describes is on disk."""
    temporary = folder / (MANIFEST + ".part")
    with open(temporary, "w", encoding="utf-8") as file:
        file.write(manifest.to_json())
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, folder / MANIFEST)


def _split(record: dict[str, Any]) -> Split:
    shards = tuple(Shard(**shard) for shard in record.pop("shards"))
    return Split(shards=shards, **record)


def _why_missing(folder: Path) -> str:
    if not folder.exists():
        return "does not exist; make it with `megaxf prepare INPUT --output DIR`"
    return f"is not a data set: no {MANIFEST} (a build that was stopped leaves none); make it with `megaxf prepare`"
