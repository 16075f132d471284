"""The order of the rows of an epoch: a keyed permutation that is computed, not stored.

A Feistel network on just enough bits for the number of rows, with a strong 64-bit mixing function (the finaliser of
splitmix64, doi 10.1145/2660193.2660195) and cycle walking: an output beyond the last row is put through again until
it falls inside. Any position of any epoch costs the same, so resuming costs nothing.
"""

from __future__ import annotations

import hashlib

import numpy as np
from numpy.typing import NDArray

Int64 = NDArray[np.int64]
UInt64 = NDArray[np.uint64]

ROUNDS = 6
"""Four would be twice as fast and pass for large numbers of rows, but are visibly unfair for fewer than a hundred."""


def epoch_keys(seed: int, source: str, epoch: int) -> UInt64:
    """The round keys [ROUNDS] of one epoch of one source."""
    digest = hashlib.blake2b(f"{seed}\0{source}\0{epoch}".encode(), digest_size=8 * ROUNDS).digest()
    return np.frombuffer(digest, dtype="<u8").astype(np.uint64)


def part_keys(keys: UInt64, parts: Int64) -> UInt64:
    """Round keys [ROUNDS, n] of numbered parts of an epoch, each of which is permuted by itself."""
    return keys[:, None] ^ _mix(parts.astype(np.uint64) + np.uint64(1))


def permute(indices: Int64, rows: int | Int64, keys: UInt64) -> Int64:
    """Maps each index in [0, rows) to a row; over all indices each row comes exactly once.

    With `rows` [n] and `keys` [ROUNDS, n] each of the n indices is put through a permutation of its own.
    """
    limit = np.asarray(rows, dtype=np.uint64)
    # Exact below 2^53 rows; beyond, a bit too many does no harm.
    bits = np.maximum(np.frexp((limit - np.uint64(1)).astype(np.float64))[1], 2).astype(np.uint64)
    values = _encrypt(indices.astype(np.uint64), bits, keys)
    while (outside := np.flatnonzero(values >= limit)).size:
        if limit.ndim:
            values[outside] = _encrypt(values[outside], bits[outside], keys[:, outside])
        else:
            values[outside] = _encrypt(values[outside], bits, keys)
    return values.astype(np.int64)


def _encrypt(values: UInt64, bits: UInt64, keys: UInt64) -> UInt64:
    """One pass of the network over numbers of `bits` bits; the halves differ by one bit when that is odd."""
    low_bits = bits >> np.uint64(1)
    low_mask, high_mask = _mask(low_bits), _mask(bits - low_bits)
    low, high = values & low_mask, values >> low_bits
    for key in keys:
        # The halves change places, and so do their widths.
        low, high = high ^ (_mix(low ^ key) & high_mask), low
        low_mask, high_mask = high_mask, low_mask
    # An even number of rounds: the widths are as they were.
    return (high << low_bits) | low


def _mask(bits: UInt64) -> UInt64:
    return (np.uint64(1) << bits) - np.uint64(1)


def _mix(values: UInt64) -> UInt64:
    mixed = values ^ (values >> np.uint64(30))
    mixed *= np.uint64(0xBF58476D1CE4E5B9)
    mixed ^= mixed >> np.uint64(27)
    mixed *= np.uint64(0x94D049BB133111EB)
    mixed ^= mixed >> np.uint64(31)
    return mixed
