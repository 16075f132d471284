"""A block of records to token ids: the work that is spread over processes."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from data_pipeline.format.manifest import token_dtype
from data_pipeline.sources.base import Block, Record
from data_pipeline.tokenizer.base import Tokenizer, load_tokenizer

FORGED = "the text encodes to the end-of-document token"


@dataclass(frozen=True)
class Encoding:
    """How documents become tokens; small, so that it travels with every block."""

    tokenizer_folder: Path
    tokenizer_digest: str
    validation_fraction: float
    add_bos: bool = False


@dataclass
class Documents:
    """Encoded documents of one split, joined."""

    ids: NDArray[Any]
    lengths: NDArray[Any]
    text_bytes: int


@dataclass
class EncodedBlock:
    """What became of a block."""

    size: int
    splits: dict[str, Documents] = field(default_factory=dict)
    hashes: bytes = b""
    """16 bytes for each document, in order."""
    empties: int = 0
    faults: list[Record] = field(default_factory=list)


def encode_block(encoding: Encoding, block: Block) -> EncodedBlock:
    """Encodes the documents of a block, each ended by the end-of-document token."""
    tokenizer = _tokenizer(encoding.tokenizer_folder, encoding.tokenizer_digest)
    result = EncodedBlock(block.size)
    texts, data = _usable_texts(block, result)
    chosen: dict[str, list[tuple[list[int], int]]] = {"train": [], "validation": []}
    hashes = []
    for index, ids in enumerate(tokenizer.encode_batch(texts)):
        digest = xxhash.xxh3_128_digest(data[index][1])
        if tokenizer.eod_id in ids:
            result.faults.append(Record(data[index][0], "", FORGED))
            continue
        hashes.append(digest)
        chosen[split_of(digest, encoding.validation_fraction)].append((ids, len(data[index][1])))
    for split, documents in chosen.items():
        if documents:
            result.splits[split] = _join(documents, tokenizer, encoding.add_bos)
    result.hashes = b"".join(hashes)
    return result


def split_of(digest: bytes, validation_fraction: float) -> str:
    """The split of a document by the hash of its text, so that equal documents are never on both sides."""
    return "validation" if _fraction(digest[:8]) < validation_fraction else "train"


def is_sampled(digest: bytes, share: float) -> bool:
    """Whether a document is in a sample of this share; independent of its split."""
    return _fraction(digest[8:]) < share


def usable(record: Record) -> bool:
    """Whether a record is a document: read without fault, and more than white space."""
    return not record.fault and bool(record.text) and not record.text.isspace()


def _fraction(eight_bytes: bytes) -> float:
    return int.from_bytes(eight_bytes, "big") / 2**64


def _usable_texts(block: Block, result: EncodedBlock) -> tuple[list[str], list[tuple[str, bytes]]]:
    """The texts of a block, and their places and bytes; counts what is left out."""
    texts, data = [], []
    for record in block.records():
        if record.fault:
            result.faults.append(record)
        elif not usable(record):
            result.empties += 1
        else:
            texts.append(record.text)
            data.append((record.place, record.text.encode()))
    return texts, data


def _join(documents: list[tuple[list[int], int]], tokenizer: Tokenizer, add_bos: bool) -> Documents:
    joined: list[int] = []
    lengths = []
    for ids, _ in documents:
        before = len(joined)
        if add_bos and tokenizer.bos_id is not None:
            joined.append(tokenizer.bos_id)
        joined += ids
        joined.append(tokenizer.eod_id)
        lengths.append(len(joined) - before)
    ids_array = np.asarray(joined, dtype=token_dtype(tokenizer.vocab_size))
    return Documents(ids_array, np.asarray(lengths, dtype=np.int64), sum(size for _, size in documents))


@lru_cache(maxsize=1)
def _tokenizer(folder: Path, digest: str) -> Tokenizer:
    """Opened once a process; the digest tells a new tokenizer in an old place from the old one."""
    return load_tokenizer(folder)
