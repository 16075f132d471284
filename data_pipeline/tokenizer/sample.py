"""The documents that a tokenizer is trained on: a bounded sample, the same on every machine."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import xxhash

from data_pipeline.prepare.encode import is_sampled, split_of, usable
from data_pipeline.sources.base import BLOCK_BYTES, Part

_READ_FACTOR = 8
"""At most about this many times the sample is read, so that the size of the whole does not matter."""


def sample_documents(parts: Sequence[Part], sample_bytes: int, validation_fraction: float) -> list[str]:
    """About `sample_bytes` of text, at least one document if there is any; never a validation document.

    Parts are visited in the order of a hash of their numbers, and only the beginning of each is read where the whole is
    much larger than the sample. Documents are chosen by the hash of their text. Faulty records are left for later.
    """
    total = sum(part.size for part in parts)
    share = min(1.0, sample_bytes / max(1, min(total, _READ_FACTOR * sample_bytes)))
    most_of_a_part = max(BLOCK_BYTES, _READ_FACTOR * sample_bytes // max(1, len(parts)))
    chosen: list[str] = []
    spare: str | None = None
    size = 0
    for index in sorted(range(len(parts)), key=lambda index: xxhash.xxh3_64_intdigest(str(index).encode())):
        for text in _beginning(parts[index], most_of_a_part):
            data = text.encode()
            digest = xxhash.xxh3_128_digest(data)
            if split_of(digest, validation_fraction) != "train":
                continue
            spare = spare or text
            if is_sampled(digest, share):
                chosen.append(text)
                size += len(data)
            if size >= sample_bytes:
                return chosen
    return chosen or ([spare] if spare else [])


def _beginning(part: Part, most: int) -> Iterable[str]:
    read = 0
    for block in part.blocks():
        yield from (record.text for record in block.records() if usable(record))
        read += block.size
        if read >= most:
            return
