"""Reads a shard folder: one split as one long array of tokens, mapped from disk, with its document boundaries.

Offsets are global, 64-bit, and count tokens from the start of the split; shards follow one another in it.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from data_pipeline.errors import DataError
from data_pipeline.format.manifest import LENGTH_DTYPE, Manifest, Split, read_manifest

Int64 = NDArray[np.int64]


def open_dataset(folder: str | Path, split: str) -> TokenDataset:
    """One split of a shard folder, after a check that every file is there and has the size the manifest tells.

    Raises DataError that names the file, what was expected and what was found.
    """
    manifest = read_manifest(folder)
    if split not in manifest.splits:
        known = ", ".join(manifest.splits) or "none"
        raise DataError(f"has no {split} split (it has: {known}); see --validation-fraction of megaxf prepare", folder)
    check_sizes(Path(folder), manifest, split)
    return TokenDataset(Path(folder), split, manifest)


class TokenDataset:
    """The tokens and documents of one split. Files are mapped when first touched."""

    def __init__(self, folder: Path, split: str, manifest: Manifest):
        record = manifest.splits[split]
        self.folder, self.split, self.manifest = folder, split, manifest
        self.tokens = record.tokens
        self.documents = record.documents
        self.shards = record.shards
        self.shard_starts: Int64 = _starts([shard.tokens for shard in record.shards])
        self.document_starts: Int64 = _starts([shard.documents for shard in record.shards])
        self._maps: list[NDArray[Any] | None] = [None] * len(record.shards)
        self._ends: list[Int64 | None] = [None] * len(record.shards)

    def read(self, start: int, stop: int) -> NDArray[Any]:
        """Tokens [start, stop) as stored (uint16 or uint32), across shards if need be."""
        first = int(np.searchsorted(self.shard_starts, start, side="right")) - 1
        pieces = []
        while start < stop:
            base, end = int(self.shard_starts[first]), int(self.shard_starts[first + 1])
            pieces.append(self._tokens(first)[start - base : min(stop, end) - base])
            start, first = end, first + 1
        return pieces[0] if len(pieces) == 1 else np.concatenate(pieces)

    def gather(self, starts: Int64, length: int) -> Int64:
        """Rows [n, length]: row i holds the tokens from starts[i] on."""
        rows = np.empty((len(starts), length), dtype=np.int64)
        shards = np.searchsorted(self.shard_starts, starts, side="right") - 1
        inside = starts + length <= self.shard_starts[shards + 1]
        for i, (start, shard) in enumerate(zip(starts.tolist(), shards.tolist(), strict=True)):
            if inside[i]:
                local = start - int(self.shard_starts[shard])
                rows[i] = self._tokens(shard)[local : local + length]
            else:
                rows[i] = self.read(start, start + length)
        return rows

    def document_span(self, index: int) -> tuple[int, int]:
        """Where document `index` starts and ends, in tokens of the split; EOD is its last token."""
        if not 0 <= index < self.documents:
            raise DataError(f"has documents 0 to {self.documents - 1}, not {index}", self.folder / self.split)
        shard = int(np.searchsorted(self.document_starts, index, side="right")) - 1
        ends, local = self._document_ends(shard), index - int(self.document_starts[shard])
        return int(ends[local - 1]) if local else int(self.shard_starts[shard]), int(ends[local])

    def document(self, index: int) -> NDArray[Any]:
        """The tokens of one document, EOD included."""
        return self.read(*self.document_span(index))

    def boundaries(self, start: int, stop: int) -> Int64:
        """The offsets strictly between start and stop at which a new document begins."""
        first = int(np.searchsorted(self.shard_starts, start, side="right")) - 1
        last = int(np.searchsorted(self.shard_starts, stop, side="left")) - 1
        pieces = []
        for shard in range(first, last + 1):
            ends = self._document_ends(shard)
            low = np.searchsorted(ends, start, side="right")
            high = np.searchsorted(ends, stop, side="left")
            pieces.append(ends[low:high])
        return pieces[0] if len(pieces) == 1 else np.concatenate(pieces)

    def _tokens(self, shard: int) -> NDArray[Any]:
        mapped = self._maps[shard]
        if mapped is None:
            path = self.folder / self.split / f"{self.shards[shard].name}.bin"
            # A plain array on the map: slicing it is twice as fast as slicing np.memmap.
            mapped = np.memmap(path, dtype=np.dtype(self.manifest.dtype).newbyteorder("<"), mode="r").view(np.ndarray)
            self._maps[shard] = mapped
        return mapped

    def _document_ends(self, shard: int) -> Int64:
        """Global offset of the end of each document of a shard, summed when first asked for (8 bytes a document)."""
        ends = self._ends[shard]
        if ends is None:
            path = self.folder / self.split / f"{self.shards[shard].name}.len"
            ends = np.cumsum(np.fromfile(path, dtype=LENGTH_DTYPE), dtype=np.int64)
            if int(ends[-1]) != self.shards[shard].tokens:
                raise DataError(
                    f"adds up to {int(ends[-1])} tokens, the manifest says {self.shards[shard].tokens}", path
                )
            ends += self.shard_starts[shard]
            self._ends[shard] = ends
        return ends


def check_sizes(folder: str | Path, manifest: Manifest, split: str) -> None:
    """Raises DataError if a file of the split is missing or cut, or if the manifest contradicts itself."""
    folder = Path(folder)
    record = manifest.splits[split]
    itemsize = np.dtype(manifest.dtype).itemsize
    for unit in ("tokens", "documents"):
        total = sum(getattr(shard, unit) for shard in record.shards)
        if total != getattr(record, unit):
            raise DataError(f"{split} has {getattr(record, unit)} {unit}, its shards {total}", folder / "manifest.json")
    for shard in record.shards:
        if shard.bytes != shard.tokens * itemsize:
            raise DataError(f"{shard.name}: {shard.tokens} tokens in {shard.bytes} bytes", folder / "manifest.json")
        _check_file(folder / split / f"{shard.name}.bin", shard.bytes)
        _check_file(folder / split / f"{shard.name}.len", shard.documents * LENGTH_DTYPE.itemsize)


def verify(folder: str | Path) -> int:
    """Reads every shard and compares hashes and lengths with the manifest; returns the bytes read.

    Raises DataError naming the first file that differs.
    """
    folder = Path(folder)
    manifest = read_manifest(folder)
    checked = 0
    for name, split in manifest.splits.items():
        check_sizes(folder, manifest, name)
        for shard in split.shards:
            checked += _check_hash(folder / name / f"{shard.name}.bin", shard.bin_xxh3_128)
            checked += _check_hash(folder / name / f"{shard.name}.len", shard.len_xxh3_128)
        _check_documents(TokenDataset(folder, name, manifest), split)
    return checked


def _check_documents(dataset: TokenDataset, split: Split) -> None:
    """Every document must end with EOD, and EOD stand nowhere else."""
    eod = dataset.manifest.eod_id
    for index, shard in enumerate(split.shards):
        tokens, ends = dataset._tokens(index), dataset._document_ends(index) - dataset.shard_starts[index]
        if not np.array_equal(np.flatnonzero(tokens == eod) + 1, ends):
            path = dataset.folder / dataset.split / f"{shard.name}.bin"
            raise DataError("has end-of-document tokens elsewhere than at the ends of its documents", path)


def _check_file(path: Path, expected: int) -> None:
    try:
        found = path.stat().st_size
    except FileNotFoundError:
        raise DataError("is missing, though the manifest lists it; build or copy the data set again", path) from None
    if found != expected:
        raise DataError(
            f"has {found} bytes, the manifest says {expected}; it was cut or changed: build or copy it again", path
        )


def _check_hash(path: Path, expected: str) -> int:
    digest, size = xxhash.xxh3_128(), 0
    with open(path, "rb") as file:
        while block := file.read(1 << 24):
            digest.update(block)
            size += len(block)
    if digest.hexdigest() != expected:
        raise DataError(f"has hash {digest.hexdigest()}, the manifest says {expected}; its content was changed", path)
    return size


def _starts(counts: list[int]) -> Int64:
    return np.concatenate([[0], np.cumsum(np.asarray(counts, dtype=np.int64))]).astype(np.int64)
