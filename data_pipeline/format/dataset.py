"""Reads a shard folder: one split as one long array of tokens, mapped from disk, with its document boundaries.

Offsets are global, 64-bit, and count tokens from the start of the split; shards follow one another in it.
"""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import orjson
from numpy.typing import NDArray

from data_pipeline.errors import DataError
from data_pipeline.format.files import LocalFiles, Quarantined, ShardFiles, check_sizes
from data_pipeline.format.manifest import (
    LENGTH_DTYPE,
    ORIGIN_DTYPE,
    ORIGINS,
    TOKENIZER_FILES,
    UNKNOWN_FILE,
    Manifest,
    read_manifest,
)
from data_pipeline.format.recent import Recent
from data_pipeline.stream.cache import CachedFiles, open_store
from data_pipeline.stream.options import CacheOptions
from data_pipeline.stream.store import is_url

Int64 = NDArray[np.int64]

_MAPS = 8192
"""Shards mapped at a time: Linux allows a process 65,530 maps in all."""

_ENDS = 1 << 25
"""Documents whose ends are kept at a time: 200 to 256 MiB."""


_COMPACT = 1 << 32
"""What does not fit into four bytes."""


class Ends(NamedTuple):
    """The ends of the documents of a shard, and a table to find them by their place.

    Of four bytes each, unless a shard has 2**32 tokens: every row of a batch looks at other places of other shards.
    """

    ends: array[int]
    """[documents] from the start of the shard; the last is its end."""
    firsts: array[int]
    """Of each stretch of 2**bits tokens, and of the one behind the last: the first document that ends in it."""
    bits: int
    """A stretch is as long as one to two documents on average."""


def open_dataset(folder: str | Path, split: str, cache: CacheOptions | None = None) -> TokenDataset:
    """One split of a shard folder, or with `cache` of one in a store (`s3://bucket/folder`, any URL of fsspec).

    Reads the manifest and nothing else, however many shards there are.
    Each file is checked against the manifest when it is first read; `check_sizes` looks at all of them before a run.
    Raises DataError that names the file, what was expected and what was found.
    """
    if is_url(folder):
        if cache is None:
            raise DataError("is in a store, and is read through a cache on this machine; name a cache folder", folder)
        store, manifest = open_store(str(folder), cache)
        check_split(folder, split, manifest)
        return TokenDataset(store.url, split, manifest, CachedFiles(store, manifest, split, cache))
    manifest = read_manifest(folder)
    check_split(folder, split, manifest)
    return TokenDataset(folder, split, manifest, LocalFiles(folder, split, manifest))


def check_split(folder: str | Path, split: str, manifest: Manifest) -> None:
    """Raises DataError unless the data set has this split."""
    if split not in manifest.splits:
        known = ", ".join(manifest.splits) or "none"
        raise DataError(f"has no {split} split (it has: {known}); see --validation-fraction of megaxf prepare", folder)


class TokenDataset:
    """The tokens and documents of one split. A shard is mapped when first touched."""

    def __init__(self, folder: str | Path, split: str, manifest: Manifest, files: ShardFiles):
        record = manifest.splits[split]
        self.folder, self.split, self.manifest, self.files = folder, split, manifest, files
        self.tokens = record.tokens
        self.documents = record.documents
        self.shards = record.shards
        self.shard_starts: Int64 = _starts([shard.tokens for shard in record.shards])
        self.shard_starts_list: list[int] = self.shard_starts.tolist()
        """For one place at a time."""
        self.document_starts: Int64 = _starts([shard.documents for shard in record.shards])
        self.dtype = np.dtype(manifest.dtype).newbyteorder("<")
        """Of the tokens as stored."""
        self.maps: Recent[NDArray[Any]] = Recent(_MAPS, lambda tokens: 1, self._map)
        """All tokens of a shard by its number, see `shard_tokens`: rows are looked up without a call."""
        self.ends: Recent[Ends] = Recent(_ENDS, lambda found: len(found.ends), self._open_ends)
        """Of a shard by its number: rows are looked up without a call."""
        self._origins: list[str] | None = None

    def read(self, start: int, stop: int) -> NDArray[Any]:
        """Tokens [start, stop) as stored (uint16 or uint32), across shards if need be."""
        first = self._shard_at(start)
        pieces = []
        while start < stop:
            base, end = int(self.shard_starts[first]), int(self.shard_starts[first + 1])
            pieces.append(self.shard_tokens(first)[start - base : min(stop, end) - base])
            start, first = end, first + 1
        return pieces[0] if len(pieces) == 1 else np.concatenate(pieces)

    def document_span(self, index: int) -> tuple[int, int]:
        """Where document `index` starts and ends, in tokens of the split; EOD is its last token."""
        shard, local = self._place(index)
        ends, base = self.ends[shard].ends, self.shard_starts_list[shard]
        return base + ends[local - 1] if local else base, base + ends[local]

    def document(self, index: int) -> NDArray[Any]:
        """The tokens of one document, EOD included."""
        return self.read(*self.document_span(index))

    def boundaries(self, start: int, stop: int) -> Int64:
        """The offsets strictly between start and stop at which a new document begins."""
        last = int(np.searchsorted(self.shard_starts, stop, side="left")) - 1
        pieces = []
        for shard in range(self._shard_at(start), last + 1):
            ends, base = self.ends[shard].ends, self.shard_starts_list[shard]
            inside = ends[bisect_right(ends, start - base) : bisect_left(ends, stop - base)]
            pieces.append(np.asarray(inside, np.int64) + base)
        return pieces[0] if len(pieces) == 1 else np.concatenate(pieces)

    def origin(self, index: int) -> tuple[str, int] | None:
        """The file that a document came from and the number of its line or row there, from 0; None where not known."""
        shard, local = self._place(index)
        if self.shards[shard].org_xxh3_128 is None:
            return None
        path = self.files.path(shard, "org")
        record = np.fromfile(path, ORIGIN_DTYPE, count=1, offset=local * ORIGIN_DTYPE.itemsize)[0]
        if record["file"] == UNKNOWN_FILE:
            return None
        names = self.origin_names()
        if record["file"] >= len(names):
            raise DataError(f"document {index} is from file {record['file']}, {ORIGINS} has {len(names)}", path)
        return names[record["file"]], int(record["record"])

    def origin_names(self) -> list[str]:
        """The files that documents came from, in the order of their numbers; none where origins are not known."""
        if self._origins is None:
            known = self.manifest.origins_xxh3_128 is not None
            self._origins = list(orjson.loads(self.files.common(ORIGINS).read_bytes())) if known else []
        return self._origins

    def shard_tokens(self, shard: int) -> NDArray[Any]:
        """All tokens of a shard, a read-only view of the mapped file; of a shard that is out, EOD again and again."""
        return self.maps[shard]

    def need(self, shards: Sequence[int], now: int = 1) -> None:
        """Says which shards are read next, in this order, the first `now` of them together for one batch.

        Lets go of maps of others where files come from a store: a dropped file keeps its disk space while it is mapped.
        """
        for shard in self.files.need(shards, now):
            self.maps.drop(shard)

    def tokenizer_folder(self) -> Path:
        """A folder on this machine with the files of the tokenizer."""
        return self.files.folder("tokenizer", TOKENIZER_FILES)

    def check_sizes(self) -> None:
        """Raises DataError that names the files of the split that are missing or cut."""
        found = self.files.sizes()
        if found is not None:
            check_sizes(self.folder, self.manifest, self.split, found)

    def _map(self, shard: int) -> NDArray[Any]:
        try:
            path = self.files.path(shard, "bin")
        except Quarantined:
            return np.broadcast_to(self.dtype.type(self.manifest.eod_id), self.shards[shard].tokens)
        # A plain array on the map: slicing it is twice as fast as slicing np.memmap.
        return np.memmap(path, dtype=self.dtype, mode="r").view(np.ndarray)

    def document_ends(self, shard: int) -> Int64:
        """The end of each document of a shard, from the start of the shard."""
        return np.asarray(self.ends[shard].ends, np.int64)

    def document_at(self, token: int) -> int:
        """The number of the document that this token of the split is of."""
        shard = self._shard_at(token)
        local = bisect_right(self.ends[shard].ends, token - self.shard_starts_list[shard])
        return int(self.document_starts[shard]) + local

    def _open_ends(self, shard: int) -> Ends:
        path, tokens = self.files.path(shard, "len"), self.shards[shard].tokens
        ends: Int64 = np.cumsum(np.fromfile(path, dtype=LENGTH_DTYPE), dtype=np.int64)
        if int(ends[-1]) != tokens:
            raise DataError(f"adds up to {int(ends[-1])} tokens, the manifest says {tokens}", path)
        bits = (tokens // len(ends)).bit_length()
        firsts = np.searchsorted(ends, np.arange((tokens >> bits) + 2) << bits)
        return Ends(_compact(ends, tokens), _compact(firsts, len(ends)), bits)

    def _shard_at(self, start: int) -> int:
        return int(np.searchsorted(self.shard_starts, start, side="right")) - 1

    def _place(self, index: int) -> tuple[int, int]:
        """The shard of a document and its number there."""
        if not 0 <= index < self.documents:
            raise DataError(f"has documents 0 to {self.documents - 1}, not {index}", f"{self.folder}/{self.split}")
        shard = int(np.searchsorted(self.document_starts, index, side="right")) - 1
        return shard, index - int(self.document_starts[shard])


def _compact(numbers: Int64, largest: int) -> array[int]:
    kind = "I" if largest < _COMPACT else "Q"
    return array(kind, numbers.astype(kind).tobytes())


def _starts(counts: list[int]) -> Int64:
    return np.concatenate([[0], np.cumsum(np.asarray(counts, dtype=np.int64))]).astype(np.int64)
