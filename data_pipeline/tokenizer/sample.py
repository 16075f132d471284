"""The documents that a tokenizer is trained on: a bounded sample, the same on every machine."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import xxhash

from data_pipeline.prepare.documents import is_sampled, split_of
from data_pipeline.sources.base import BLOCK_BYTES, Unit

_READ_FACTOR = 8
"""At most about this many times the sample is read, so that the size of the whole does not matter."""


def sample_documents(units: Sequence[Unit], sample_bytes: int, validation_fraction: float) -> list[str]:
    """About `sample_bytes` of text, at least one document if there is any; never a validation document.

    Units are visited in the order of a hash of their numbers, and only the beginning of each is read where the whole is
    much larger than the sample. Documents are chosen by the hash of their text. Faulty records are left for later.
    """
    total = sum(unit.size for unit in units)
    share = min(1.0, sample_bytes / max(1, min(total, _READ_FACTOR * sample_bytes)))
    most_of_a_unit = max(BLOCK_BYTES, _READ_FACTOR * sample_bytes // max(1, len(units)))
    chosen: list[str] = []
    spare: str | None = None
    size = 0
    for index in sorted(range(len(units)), key=lambda index: xxhash.xxh3_64_intdigest(str(index).encode())):
        for text in _beginning(units[index], most_of_a_unit):
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


def _beginning(unit: Unit, most: int) -> Iterable[str]:
    read = 0
    for texts in unit.read():
        yield from (text for text in texts.texts if text and not text.isspace())
        read += texts.size
        if read >= most:
            return
