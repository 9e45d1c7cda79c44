"""Shuffles that are functions of a key: any position in O(1), no generator of anyone touched.

Small sets get a true permutation (the stable argsort of a keyed 64-bit hash). Larger ones get a Feistel network (Luby
and Rackoff, "How to construct pseudorandom permutations from pseudorandom functions", 1988) on the smallest power of
two that holds them, with cycle walking (Black and Rogaway, "Ciphers with arbitrary finite domains", 2002) back into
[0, n).
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["SMALL", "Integers", "Words", "feistel", "hash_words", "random_words", "small_permutation", "words_from"]

Integers: TypeAlias = "NDArray[np.int64]"
Words: TypeAlias = "NDArray[np.uint64]"

SMALL = 65_536
"""Below so many rows a permutation is sorted and kept for the epoch; from here on nothing is kept."""

_ROUNDS = 8
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)


def words_from(label: str, *parts: object, count: int = 1) -> Words:
    """Return `count` (at most 8) keys, uint64, from a BLAKE2b hash of everything given.

    Parts are told apart by their text, so any int serves as a seed, also negative ones and those beyond 64 bits, and
    (seed 0, epoch 1) has nothing in common with (seed 1, epoch 0).
    """
    text = "\x1f".join([label, *map(str, parts)])
    digest = hashlib.blake2b(text.encode(), digest_size=8 * count, person=b"samplers").digest()
    return np.frombuffer(digest, dtype="<u8").astype(np.uint64)


def hash_words(values: Words, key: np.uint64) -> Words:
    """Hash each of `values` (uint64) under `key`: the SplitMix64 finaliser of Steele, Lea and Flood, 2014."""
    mixed = values * _GOLDEN
    mixed += key
    for shift, factor in ((30, _MIX_1), (27, _MIX_2)):
        mixed ^= mixed >> np.uint64(shift)
        mixed *= factor
    mixed ^= mixed >> np.uint64(31)
    return mixed


def random_words(n: int, keys: Words) -> Words:
    """Return n words, uint64, as good as random, chosen by two keys: word k depends on k and the keys alone."""
    return hash_words(hash_words(np.arange(n, dtype=np.uint64), keys[0]), keys[1])


def small_permutation(n: int, keys: Words) -> Integers:
    """Return a permutation of [0, n) as int64, chosen by two keys: O(n log n), for small n."""
    return np.argsort(random_words(n, keys), kind="stable")


def feistel(positions: Integers, n: int, keys: Words) -> Integers:
    """Map `positions` within [0, n) one to one into [0, n), int64, chosen by eight keys.

    Time and memory grow with the number of positions and not with n (1 <= n <= 2**62).
    """
    bits = max(2, (n - 1).bit_length())
    values = _rounds(positions.astype(np.uint64), bits, keys)
    bound = np.uint64(n)
    outside = np.flatnonzero(values >= bound)
    while outside.size:
        walked = _rounds(values[outside], bits, keys)
        values[outside] = walked
        outside = outside[walked >= bound]
    return values.astype(np.int64)


def _rounds(values: Words, bits: int, keys: Words) -> Words:
    """Eight rounds on [0, 2**bits); the halves may differ by one bit, so each round changes one in place."""
    low_bits = bits // 2
    high = values >> np.uint64(low_bits)
    low = values & np.uint64((1 << low_bits) - 1)
    for number in range(0, _ROUNDS, 2):
        low ^= _scramble(high, keys[number], low_bits)
        high ^= _scramble(low, keys[number + 1], bits - low_bits)
    high <<= np.uint64(low_bits)
    high |= low
    return high


def _scramble(half: Words, key: np.uint64, bits: int) -> Words:
    """Hash one half to `bits` bits: the round function, two multiplications whose upper bits are kept."""
    mixed = half ^ key
    mixed *= _MIX_1
    mixed ^= mixed >> np.uint64(32)
    mixed *= _MIX_2
    mixed >>= np.uint64(64 - bits)
    return mixed
