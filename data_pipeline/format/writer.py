"""Writes shards, and whole shard folders in one process.

with DatasetWriter(folder, vocab_size=257, eod_id=256) as writer:
    writer.add("train", ids, lengths, text_bytes)
    writer.finish()
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from data_pipeline.errors import DataError
from data_pipeline.format.folder import Building
from data_pipeline.format.hashes import Hasher
from data_pipeline.format.manifest import (
    LENGTH_DTYPE,
    ORIGIN_DTYPE,
    Manifest,
    Shard,
    Source,
    Split,
    token_dtype,
    write_manifest,
    write_origins,
)

DEFAULT_SHARD_TOKENS = 100_000_000


class ShardWriter:
    """The files of one shard, hashed as they are written; under `*.part` names until `close`."""

    def __init__(self, folder: Path, name: str, dtype: np.dtype[Any]):
        self.name, self.dtype = name, dtype
        self.tokens = self.documents = 0
        self._folder = folder
        self._files: dict[str, _HashedFile] = {}

    def write(self, ids: NDArray[Any], lengths: NDArray[Any], origins: NDArray[Any] | None = None) -> None:
        """Appends documents: their ids joined, their lengths in tokens, their origins (ORIGIN_DTYPE) if known."""
        if self.documents and ("org" in self._files) != (origins is not None):
            raise DataError("the origin is known of some documents and not of others", self._folder / self.name)
        self._file("bin").write(ids.astype(self.dtype, copy=False))
        self._file("len").write(lengths.astype(LENGTH_DTYPE))
        if origins is not None:
            self._file("org").write(origins.astype(ORIGIN_DTYPE, copy=False))
        self.tokens += len(ids)
        self.documents += len(lengths)

    def close(self) -> Shard:
        """Puts the files on disk under their names, the .bin last; at least one document must be in it."""
        hasher = self._file("bin").hasher
        blocks = self._file("xxh")
        blocks.write(hasher.result().blocks)
        written = [ending for ending in ("len", "xxh", "org", "bin") if ending in self._files]
        hashes = {f"{ending}_xxh3_128": self._files[ending].close() for ending in written}
        self._files = {}
        return Shard(
            name=self.name,
            tokens=self.tokens,
            documents=self.documents,
            bytes=hasher.size,
            **hashes,
        )

    def abandon(self) -> None:
        """Removes what was written since the last `close`."""
        for file in self._files.values():
            file.abandon()
        self._files = {}

    def _file(self, ending: str) -> _HashedFile:
        if ending not in self._files:
            self._files[ending] = _HashedFile(self._folder / f"{self.name}.{ending}")
        return self._files[ending]


class _HashedFile:
    """A file opened for writing that knows the hashes of what went in."""

    def __init__(self, path: Path):
        self.path, self.part = path, path.with_name(path.name + ".part")
        self.hasher = Hasher()
        self._file: IO[bytes] = open(self.part, "wb")  # noqa: SIM115

    def write(self, array: NDArray[Any]) -> None:
        data = np.ascontiguousarray(array).view(np.uint8).data
        self._file.write(data)
        self.hasher.update(data)

    def close(self) -> str:
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        os.replace(self.part, self.path)
        return self.hasher.result().whole

    def abandon(self) -> None:
        self._file.close()
        self.part.unlink(missing_ok=True)


class DatasetWriter:
    """Takes documents in order and cuts them into shards of about `shard_tokens` tokens; no document crosses shards.

    A shard ends before the document that would take it past `shard_tokens`, unless it is empty.
    """

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
        self.vocab_size, self.eod_id, self.bos_id = vocab_size, eod_id, bos_id
        self.dtype = token_dtype(vocab_size)
        self.shard_tokens = shard_tokens
        self.largest_id = 0
        self._folder = Building(folder, overwrite)
        self.building = self._folder.path
        self._splits: dict[str, _SplitWriter] = {}

    def add(
        self,
        split: str,
        ids: NDArray[Any],
        lengths: NDArray[Any],
        text_bytes: int = 0,
        origins: NDArray[Any] | None = None,
    ) -> None:
        """Appends documents: their ids joined, each ended by EOD, and their lengths in tokens, EOD included.

        `origins` [documents] of ORIGIN_DTYPE, of all documents or of none. Raises DataError on a bad id or length.
        """
        if int(lengths.sum()) != len(ids):
            raise DataError(f"documents of {int(lengths.sum())} tokens were announced and {len(ids)} given")
        if not len(lengths):
            return
        largest = int(ids.max())
        if largest >= self.vocab_size or int(ids.min()) < 0:
            worst = largest if largest >= self.vocab_size else int(ids.min())
            raise DataError(f"token id {worst} is outside the vocabulary of {self.vocab_size}")
        self.largest_id = max(self.largest_id, largest)
        if split not in self._splits:
            self._splits[split] = _SplitWriter(self.building / split, self.dtype, self.shard_tokens)
        self._splits[split].add(ids, lengths, text_bytes, origins)

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
        origins: Sequence[str] | None = None,
    ) -> Manifest:
        """Closes the shards, writes the manifest and gives the folder its name; replaces an older one wholly.

        `origins`: the names that the `file` numbers of the documents' origins stand for.
        """
        manifest = Manifest(
            name=name or self._folder.folder.name,
            dtype=self.dtype.name,
            vocab_size=self.vocab_size,
            eod_id=self.eod_id,
            bos_id=self.bos_id,
            largest_id=self.largest_id,
            splits={name: self._splits[name].close() for name in sorted(self._splits)},
            tokenizer=dict(tokenizer or {}),
            sources=tuple(sources),
            settings=dict(settings or {}),
            origins_xxh3_128=None if origins is None else write_origins(self.building, list(origins)),
        )
        write_manifest(self.building, manifest)
        self._folder.finish()
        return manifest

    def __enter__(self) -> DatasetWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for split in self._splits.values():
            split.abandon()
        self._folder.__exit__(kind, error, trace)


class _SplitWriter:
    """The shards of one split, the last of them open."""

    def __init__(self, folder: Path, dtype: np.dtype[Any], shard_tokens: int):
        folder.mkdir()
        self.folder, self.dtype, self.shard_tokens = folder, dtype, shard_tokens
        self.documents = self.tokens = self.longest = self.text_bytes = 0
        self._shards: list[Shard] = []
        self._open: ShardWriter | None = None

    def add(self, ids: NDArray[Any], lengths: NDArray[Any], text_bytes: int, origins: NDArray[Any] | None) -> None:
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
                some = None if origins is None else origins[done:fit]
                shard.write(ids[before : int(ends[fit - 1])], lengths[done:fit], some)
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
            self._open.abandon()

    def _start(self) -> ShardWriter:
        self._open = ShardWriter(self.folder, shard_name(len(self._shards)), self.dtype)
        return self._open

    def _end(self) -> None:
        if self._open:
            self._shards.append(self._open.close())
            self._open = None


def shard_name(number: int) -> str:
    """What the shards of a split are called, in order."""
    return f"shard-{number:05d}"


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
