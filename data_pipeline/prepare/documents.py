"""What is kept of each document between the steps: 40 bytes, so that nothing need be held in memory.

The split of a document follows from the hash of its text, so that equal documents are never on both sides.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

DOCUMENT_DTYPE = np.dtype(
    [
        ("high", "<u8"),
        ("low", "<u8"),
        ("text_bytes", "<u8"),
        ("record", "<u8"),
        ("length", "<u4"),
        ("file", "<u4"),
    ]
)
"""Halves of the xxh3_128 of the text; bytes of UTF-8; number of the record in its unit, from 0; tokens with the marks
at the edges; number of the file among the origins."""


def hash_texts(data: Sequence[bytes]) -> NDArray[Any]:
    """[documents, 2] the halves of the xxh3_128 of each text, the high one first."""
    digests = b"".join(map(xxhash.xxh3_128_digest, data))
    return np.frombuffer(digests, ">u8").reshape(-1, 2).astype(np.uint64)


def hash_bytes_of(documents: NDArray[Any]) -> bytes:
    """The hashes of documents as xxhash writes them, 16 bytes each, joined."""
    halves = np.stack([documents["high"], documents["low"]], axis=1)
    return halves.astype(">u8").tobytes()


def in_split(documents: NDArray[Any], split: str, validation_fraction: float) -> NDArray[np.bool_]:
    """[documents] whether each is in the split."""
    validation: NDArray[np.bool_] = documents["high"].astype(np.float64) / 2.0**64 < validation_fraction
    return validation if split == "validation" else ~validation


def split_of(digest: bytes, validation_fraction: float) -> str:
    """The split of one document by the 16 bytes of its hash."""
    return "validation" if _fraction(digest[:8]) < validation_fraction else "train"


def is_sampled(digest: bytes, share: float) -> bool:
    """Whether a document is in a sample of this share; independent of its split."""
    return _fraction(digest[8:]) < share


def _fraction(eight_bytes: bytes) -> float:
    return int.from_bytes(eight_bytes, "big") / 2**64
