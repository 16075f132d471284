"""Token files of other libraries as a data set, without tokenising again: what `megaxf data import` does."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from data_pipeline.errors import DataError
from data_pipeline.format.foreign.find import Options, find, named
from data_pipeline.format.manifest import ORIGIN_DTYPE, Manifest, Source, token_dtype
from data_pipeline.format.pieces import Piece, cut_at_eod
from data_pipeline.format.writer import DatasetWriter
from data_pipeline.tokenizer.base import Tokenizer


@dataclass
class _Count:
    """What has come from one input so far."""

    name: str
    size: int
    documents: int = 0
    tokens: int = 0
    empties: int = 0
    longest: int = 0
    ends_added: int = 0
    digest: xxhash.xxh3_128 = field(default_factory=xxhash.xxh3_128)

    def source(self, split: str) -> Source:
        """Its entry in the manifest."""
        return Source(
            name=self.name,
            digest=self.digest.hexdigest(),
            input_bytes=self.size,
            text_bytes=0,
            documents={split: self.documents},
            tokens={split: self.tokens},
            empties=self.empties,
            errors={},
            longest=self.longest,
        )


class Import:
    """Finds the files of an import and brings their documents into a data set, in order, with bounded memory."""

    def __init__(self, inputs: Mapping[str, Sequence[str | Path]], options: Options, format_name: str | None = None):
        """`inputs`: split -> files or folders. Raises DataError where there is nothing to import."""
        self._options = options
        self._found = [(split, str(path), *find(Path(path), format_name)) for split in inputs for path in inputs[split]]
        self.size = sum(named(name).size(file) for _, _, name, files in self._found for file in files)
        """Bytes of ids in all files."""

    def run(
        self, writer: DatasetWriter, tokenizer: Tokenizer, name: str, advance: Callable[[int], Any] = lambda size: None
    ) -> Manifest:
        """Writes everything and finishes the data set. Raises DataError on ids that are not the tokenizer's."""
        tokenizer.save(writer.building / "tokenizer")
        origins: list[str] = []
        sources: list[Source] = []
        ends_added = 0
        for split, path, format_name, files in self._found:
            count = _Count(Path(path).name or path, sum(named(format_name).size(file) for file in files))
            for file in files:
                for piece in self._pieces(file, format_name, len(origins), tokenizer, count):
                    writer.add(split, piece.ids, piece.lengths, origins=piece.origins)
                    advance(piece.ids.nbytes)
                origins.append(str(file))
            if not count.documents:
                raise DataError("holds no tokens", path)
            sources.append(count.source(split))
            ends_added += count.ends_added
        return writer.finish(
            name=name,
            tokenizer={"kind": tokenizer.kind, "digest": tokenizer.digest, "eod_token": tokenizer.eod_token},
            sources=sources,
            settings={
                "imported": sorted({format_name for _, _, format_name, _ in self._found}),
                "cut_at_eod": self._options.cut_at_eod,
                "eod_added": ends_added,
                "shard_tokens": writer.shard_tokens,
            },
            origins=origins,
        )

    def _pieces(
        self, file: Path, format_name: str, number: int, tokenizer: Tokenizer, count: _Count
    ) -> Iterator[Piece]:
        """The documents of one file as a data set wants them, counted; `number` is the file's among the origins."""
        pieces = named(format_name).documents(file, self._options)
        if self._options.cut_at_eod:
            pieces = cut_at_eod((piece.ids for piece in pieces), tokenizer.eod_id, file)
        before = 0
        for piece in pieces:
            origins = np.zeros(len(piece.lengths), ORIGIN_DTYPE)
            origins["file"], origins["record"] = number, np.arange(before, before + len(piece.lengths))
            ids = _checked(piece, before, tokenizer, file)
            some = piece.lengths > 0
            ids, lengths, added = _ended(ids, piece.lengths[some], tokenizer.eod_id)
            _check_inner_ends(ids, lengths, origins[some], tokenizer, file)
            before += len(piece.lengths)
            count.empties += len(piece.lengths) - len(lengths)
            count.documents += len(lengths)
            count.tokens += len(ids)
            count.longest = max(count.longest, int(lengths.max(initial=0)))
            count.ends_added += added
            count.digest.update(ids.tobytes())
            yield Piece(ids, lengths, origins[some])


def _checked(piece: Piece, before: int, tokenizer: Tokenizer, file: Path) -> NDArray[Any]:
    """The ids in the type of the data set; they must be in the vocabulary."""
    if not len(piece.ids):
        return piece.ids.astype(token_dtype(tokenizer.vocab_size))
    low, high = int(piece.ids.min()), int(piece.ids.max())
    if low < 0 or high >= tokenizer.vocab_size:
        bad = low if low < 0 else high
        place = int(np.searchsorted(np.cumsum(piece.lengths), np.argmax(piece.ids == bad), side="right"))
        raise DataError(
            f"document {before + place} has token id {bad}, outside the vocabulary of {tokenizer.vocab_size}; "
            "name the tokenizer that made the ids, and check --dtype",
            file,
        )
    return piece.ids.astype(token_dtype(tokenizer.vocab_size), copy=False)


def _ended(ids: NDArray[Any], lengths: NDArray[np.int64], eod_id: int) -> tuple[NDArray[Any], NDArray[np.int64], int]:
    """Documents that end with EOD, to which it was added where it was missing; and how often that was."""
    ends = np.cumsum(lengths)
    bare = ids[ends - 1] != eod_id
    if not bare.any():
        return ids, lengths, 0
    return np.insert(ids, ends[bare], eod_id), lengths + bare, int(bare.sum())


def _check_inner_ends(
    ids: NDArray[Any], lengths: NDArray[np.int64], origins: NDArray[Any], tokenizer: Tokenizer, file: Path
) -> None:
    """Raises DataError unless EOD stands only at the ends of documents, where each has one."""
    found = np.flatnonzero(ids == tokenizer.eod_id) + 1
    if len(found) != len(lengths):
        ends = np.cumsum(lengths)
        first = found[np.argmax(found[: len(ends)] != ends)]
        record = int(origins["record"][np.searchsorted(ends, first)])
        raise DataError(
            f"document {record} has the end-of-document id {tokenizer.eod_id} inside; if documents were joined there, "
            "cut them with --documents eod, else name the right --eod-token",
            file,
        )
