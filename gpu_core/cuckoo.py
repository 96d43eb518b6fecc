"""Hash tables for the device: every key lies in one of two slots, so a probe is two independent loads and no loop.

Both slot numbers come from one 64-bit hash; the kernels repeat `slots_of` in `kernels/hash.cuh`. Keys are placed many
at a time: each takes a slot, whoever is pushed out goes to its other slot, until nobody moves.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Hashes = NDArray[np.uint64]

FIRST = np.uint64(0x9E3779B97F4A7C15)
SECOND = np.uint64(0xC2B2AE3D27D4EB4F)
MAX_LOAD = 0.45
"""Two-slot tables fill without trouble below one half."""


@dataclass(frozen=True, slots=True)
class Placement:
    """Where each key went."""

    seed: int
    mask: int
    """Number of slots - 1; the number of slots is a power of two."""
    owner: NDArray[np.int64]
    """Index of the key in each slot, -1 = empty."""


def hash_key(words: NDArray[np.uint32], seed: int) -> Hashes:
    """Hash of 16-byte keys, shape (n, 4): two 32x32 -> 64 bit products (the NH sum)."""
    w = words.astype(np.uint64)
    s = [np.uint64((seed * factor) & 0xFFFFFFFF) for factor in (0x9E3779B1, 0x85EBCA77, 0xC2B2AE3D, 0x27D4EB2F)]
    m = np.uint64(0xFFFFFFFF)
    return ((w[:, 0] + s[0]) & m) * ((w[:, 1] + s[1]) & m) + ((w[:, 2] + s[2]) & m) * ((w[:, 3] + s[3]) & m)


def hash_pair(left: NDArray[np.uint64], right: NDArray[np.uint64], seed: int) -> Hashes:
    """Hash of two ids."""
    return (left << np.uint64(32) | right) ^ (np.uint64(seed) * np.uint64(0x85EBCA77))


def hash_bytes(text: bytes, seed: int) -> int:
    """64-bit polynomial hash over 4-byte words, the last one padded with zeros.

    The length itself is compared beside it.
    """
    value = seed
    for at in range(0, len(text), 4):
        value = (value * 0x9E3779B97F4A7C15 + int.from_bytes(text[at : at + 4], "little") + 1) & 0xFFFFFFFFFFFFFFFF
    return value


def slots_of(hashes: Hashes, mask: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The two slots of each hash."""
    mixed = hashes * FIRST
    first = (mixed >> np.uint64(32)).astype(np.int64) & mask
    second = (((mixed ^ (mixed >> np.uint64(29))) * SECOND) >> np.uint64(32)).astype(np.int64) & mask
    return first, second


def seeds() -> Iterator[int]:
    """Seeds to try, in order; 64 failures in a row do not happen below `MAX_LOAD`."""
    return iter(range(1, 65))


def n_slots(n_keys: int) -> int:
    """Slots of a table for `n_keys`: the smallest power of two that keeps the load under `MAX_LOAD`."""
    return 1 << max(4, int(n_keys / MAX_LOAD).bit_length())


def place(hashes: Hashes, seed: int) -> Placement | None:
    """Put every key into one of its slots; None when this seed does not work out."""
    n = len(hashes)
    mask = n_slots(n) - 1
    slots = np.stack(slots_of(hashes, mask))
    owner = np.full(mask + 1, -1, dtype=np.int64)
    side = np.zeros(n, dtype=np.int8)
    waiting = np.arange(n)
    for _round in range(500):
        if not len(waiting):
            return Placement(seed, mask, owner)
        target = slots[side[waiting], waiting]
        evicted = owner[target]
        owner[target] = waiting
        lost = waiting[owner[target] != waiting]
        pushed = np.unique(evicted[evicted >= 0])
        waiting = np.concatenate((lost, pushed))
        side[waiting] ^= 1
    return None
