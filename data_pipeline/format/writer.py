"""Writes a shard folder, whole or not at all.

    with DatasetWriter(folder, vocab_size=257, eod_id=256) as writer:
        writer.add("train", ids, lengths, text_bytes)
        writer.finish()

Everything goes to a sibling folder `<name>.building`, which takes the final name in one rename at the end. A build that
is killed leaves only that sibling; the next build of the same name removes it.
"""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from data_pipeline.errors import DataError
from data_pipeline.format.manifest import (
    LENGTH_DTYPE,
    Manifest,
    Shard,
    Source,
    Split,
    is_dataset,
    token_dtype,
    write_manifest,
)

DEFAULT_SHARD_TOKENS = 100_000_000


class DatasetWriter:
    """Takes documents in order and cuts them into shards of about `shard_tokens` tokens; no document crosses shards."""

    def __init__(
        self,
        folder: str | Path,
        *,
        vocab_size: int,
        eod_id: int,
        bos_id: int | None = None,
        shard_tokens: int = DEFAULT_SHARD_TOKENS,
        overwrite: bool = False,
    ):
        self.folder = Path(os.path.abspath(folder))
        self.building = self.folder.with_name(self.folder.name + ".building")
        self.vocab_size, self.eod_id, self.bos_id = vocab_size, eod_id, bos_id
        self.dtype = token_dtype(vocab_size)
        self.shard_tokens = shard_tokens
        self.largest_id = 0
        check_output(self.folder, overwrite)
        self._lock = _claim(self.building)
        self._splits: dict[str, _SplitWriter] = {}
        self._finished = False

    def add(self, split: str, ids: NDArray[Any], lengths: NDArray[Any], text_bytes: int = 0) -> None:
        """Appends documents: their ids joined, each ended by EOD, and their lengths in tokens, EOD included."""
        if int(lengths.sum()) != len(ids):
            raise DataError(f"documents of {int(lengths.sum())} tokens were announced and {len(ids)} given")
        if not len(lengths):
            return
        largest = int(ids.max())
        if largest >= self.vocab_size or int(ids.min()) < 0:
            raise DataError(f"token id {largest} is outside the vocabulary of {self.vocab_size}")
        self.largest_id = max(self.largest_id, largest)
        if split not in self._splits:
            self._splits[split] = _SplitWriter(self.building / split, self.dtype, self.shard_tokens)
        self._splits[split].add(ids, lengths, text_bytes)

    def counts(self) -> dict[str, tuple[int, int]]:
        """Documents and tokens so far, by split."""
        return {name: (split.documents, split.tokens) for name, split in self._splits.items()}

    def finish(
        self,
        *,
        name: str = "",
        tokenizer: Mapping[str, str] | None = None,
        sources: Iterable[Source] = (),
        settings: Mapping[str, Any] | None = None,
    ) -> Manifest:
        """Closes the shards, writes the manifest and gives the folder its name; replaces an older one wholly."""
        manifest = Manifest(
            name=name or self.folder.name,
            dtype=self.dtype.name,
            vocab_size=self.vocab_size,
            eod_id=self.eod_id,
            bos_id=self.bos_id,
            largest_id=self.largest_id,
            splits={name: self._splits[name].close() for name in sorted(self._splits)},
            tokenizer=dict(tokenizer or {}),
            sources=tuple(sources),
            settings=dict(settings or {}),
        )
        write_manifest(self.building, manifest)
        _replace(self.building, self.folder)
        self._finished = True
        return manifest

    def __enter__(self) -> DatasetWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for split in self._splits.values():
            split.abandon()
        if not self._finished:
            shutil.rmtree(self.building, ignore_errors=True)
        os.close(self._lock)


class _SplitWriter:
    """The shards of one split, the last of them open."""

    def __init__(self, folder: Path, dtype: np.dtype[Any], shard_tokens: int):
        folder.mkdir()
        self.folder, self.dtype, self.shard_tokens = folder, dtype, shard_tokens
        self.documents = self.tokens = self.longest = self.text_bytes = 0
        self._shards: list[Shard] = []
        self._open: _ShardWriter | None = None

    def add(self, ids: NDArray[Any], lengths: NDArray[Any], text_bytes: int) -> None:
        lengths = lengths.astype(np.int64)
        if int(lengths.max()) > np.iinfo(LENGTH_DTYPE).max or int(lengths.min()) < 1:
            raise DataError(f"a document has {int(lengths.max())} tokens; lengths from 1 to 4,294,967,295 are possible")
        ends = np.cumsum(lengths)
        done = 0
        while done < len(lengths):
            shard = self._open or self._start()
            before = int(ends[done - 1]) if done else 0
            # As many whole documents as fit, but at least one in an empty shard.
            fit = int(np.searchsorted(ends, before + self.shard_tokens - shard.tokens, side="right"))
            fit = max(fit, done + 1) if shard.tokens == 0 else fit
            if fit > done:
                shard.write(ids[before : int(ends[fit - 1])], lengths[done:fit])
                done = fit
            if done < len(lengths):
                self._end()
        self.documents += len(lengths)
        self.tokens += len(ids)
        self.longest = max(self.longest, int(lengths.max()))
        self.text_bytes += text_bytes

    def close(self) -> Split:
        self._end()
        return Split(self.tokens, self.documents, self.longest, self.text_bytes, tuple(self._shards))

    def abandon(self) -> None:
        if self._open:
            self._open.close()

    def _start(self) -> _ShardWriter:
        self._open = _ShardWriter(self.folder, f"shard-{len(self._shards):05d}", self.dtype)
        return self._open

    def _end(self) -> None:
        if self._open:
            self._shards.append(self._open.close())
            self._open = None


class _ShardWriter:
    """One open pair of files, hashed as they are written."""

    def __init__(self, folder: Path, name: str, dtype: np.dtype[Any]):
        self.name, self.dtype = name, dtype
        self.tokens = self.documents = 0
        self._bin = _HashedFile(folder / f"{name}.bin")
        self._len = _HashedFile(folder / f"{name}.len")

    def write(self, ids: NDArray[Any], lengths: NDArray[Any]) -> None:
        self._bin.write(ids.astype(self.dtype, copy=False))
        self._len.write(lengths.astype(LENGTH_DTYPE))
        self.tokens += len(ids)
        self.documents += len(lengths)

    def close(self) -> Shard:
        hashes = self._bin.close(), self._len.close()
        return Shard(self.name, self.tokens, self.documents, self.tokens * self.dtype.itemsize, *hashes)


class _HashedFile:
    """A file opened for writing that knows the xxh3_128 of what went in."""

    def __init__(self, path: Path):
        self._file: IO[bytes] = open(path, "xb")  # noqa: SIM115
        self._hash = xxhash.xxh3_128()

    def write(self, array: NDArray[Any]) -> None:
        data = np.ascontiguousarray(array).view(np.uint8).data
        self._file.write(data)
        self._hash.update(data)

    def close(self) -> str:
        if not self._file.closed:
            self._file.flush()
            os.fsync(self._file.fileno())
            self._file.close()
        return self._hash.hexdigest()


def write_documents(
    folder: str | Path, splits: Mapping[str, Iterable[Sequence[int]]], *, vocab_size: int, eod_id: int, **options: Any
) -> Manifest:
    """A shard folder from lists of token ids, to each of which EOD is added: `{"train": [[1, 2], [3]]}`."""
    with DatasetWriter(folder, vocab_size=vocab_size, eod_id=eod_id, **options) as writer:
        for split, documents in splits.items():
            for ids in documents:
                array = np.asarray([*ids, eod_id], dtype=np.int64)
                writer.add(split, array, np.asarray([len(array)]), text_bytes=0)
        return writer.finish()


def check_output(folder: Path, overwrite: bool) -> None:
    """Raises DataError when building at this place would mix with or destroy something; call it before any work."""
    if not folder.exists() or (folder.is_dir() and not any(folder.iterdir())):
        return
    if not is_dataset(folder):
        raise DataError("exists and is not a data set, so it will not be replaced; choose another --output", folder)
    if not overwrite:
        raise DataError("already holds a data set; use --overwrite to replace it, or another --output", folder)


def _claim(building: Path) -> int:
    """Makes the folder to build in and locks it; a left-over of a killed build is removed, a live one is respected."""
    building.parent.mkdir(parents=True, exist_ok=True)
    building.mkdir(exist_ok=True)
    handle = os.open(building, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(handle)
        raise DataError("another build is writing here; wait for it or choose another --output", building) from None
    for child in building.iterdir():
        shutil.rmtree(child) if child.is_dir() else child.unlink()
    return handle


def _replace(building: Path, folder: Path) -> None:
    old = folder.with_name(folder.name + ".old")
    shutil.rmtree(old, ignore_errors=True)
    if folder.exists():
        os.rename(folder, old)
    os.rename(building, folder)
    shutil.rmtree(old, ignore_errors=True)
