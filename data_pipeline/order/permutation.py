"""The order of the rows of an epoch: a keyed permutation that is computed, not stored.

A Feistel network on just enough bits for the number of rows, with a strong 64-bit mixing function (the finaliser of
splitmix64, doi 10.1145/2660193.2660195) and cycle walking: an output beyond the last row is put through again until
it falls inside. Any position of any epoch costs the same, so resuming costs nothing.
"""

from __future__ import annotations

import hashlib

import numpy as np
from numpy.typing import NDArray

ROUNDS = 6


def epoch_keys(seed: int, source: str, epoch: int) -> NDArray[np.uint64]:
    """The round keys [ROUNDS] of one epoch of one source."""
    digest = hashlib.blake2b(f"{seed}\0{source}\0{epoch}".encode(), digest_size=8 * ROUNDS).digest()
    return np.frombuffer(digest, dtype="<u8").astype(np.uint64)


def permute(indices: NDArray[np.int64], rows: int, keys: NDArray[np.uint64]) -> NDArray[np.int64]:
    """Maps each index in [0, rows) to a row; over all indices each row comes exactly once."""
    bits = max(2, (rows - 1).bit_length())
    values = _encrypt(indices.astype(np.uint64), bits, keys)
    limit = np.uint64(rows)
    while (outside := np.flatnonzero(values >= limit)).size:
        values[outside] = _encrypt(values[outside], bits, keys)
    return values.astype(np.int64)


def _encrypt(values: NDArray[np.uint64], bits: int, keys: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """One pass of the network over numbers of `bits` bits; the halves differ by one bit when that is odd."""
    low_bits, high_bits = bits // 2, bits - bits // 2
    low, high = values & _mask(low_bits), values >> np.uint64(low_bits)
    for key in keys:
        # The halves change places, and so do their widths.
        low, high = high ^ (_mix(low ^ key) & _mask(high_bits)), low
        low_bits, high_bits = high_bits, low_bits
    return (high << np.uint64(low_bits)) | low


def _mask(bits: int) -> np.uint64:
    return np.uint64((1 << bits) - 1)


def _mix(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))
