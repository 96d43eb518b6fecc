"""Hash tables for the device: every key lies in one of two slots, so a probe is two independent loads and no loop.

A key is a few 32-bit words. Each of its slots is the high part of a sum of products with odd numbers that the seed
decides (multiply-shift hashing); `kernels/hash.cuh` does the same. Keys are placed many at a time: each takes a slot,
whoever is pushed out goes to its other slot, until nobody moves.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Words = NDArray[np.uint32]

MAX_LOAD = 0.45
"""Two-slot tables fill without trouble below one half."""


@dataclass(frozen=True, slots=True)
class Placement:
    """Where each key went."""

    seed: int
    shift: int
    """32 - the number of bits of a slot number."""
    owner: NDArray[np.int64]
    """Index of the key in each slot, -1 = empty."""


def factors(seed: int) -> list[int]:
    """Eight odd 32-bit numbers: four for the first slot of a key, four for the second."""
    state, result = seed, []
    for _ in range(8):
        # The finalizer of SplitMix64, by Steele, Lea and Flood.
        state = (state + 0x9E3779B97F4A7C15) & 0xFFFFFFFFFFFFFFFF
        mixed = ((state ^ state >> 30) * 0xBF58476D1CE4E5B9) & 0xFFFFFFFFFFFFFFFF
        mixed = ((mixed ^ mixed >> 27) * 0x94D049BB133111EB) & 0xFFFFFFFFFFFFFFFF
        result.append((mixed ^ mixed >> 31) & 0xFFFFFFFF | 1)
    return result


def hash_bytes(text: bytes) -> int:
    """64-bit polynomial hash over 4-byte words, the last one padded with zeros.

    The length itself is compared beside it.
    """
    value = 0
    for at in range(0, len(text), 4):
        value = (value * 0x9E3779B97F4A7C15 + int.from_bytes(text[at : at + 4], "little") + 1) & 0xFFFFFFFFFFFFFFFF
    return value


def slots_of(keys: Words, seed: int, shift: int) -> NDArray[np.int64]:
    """The two slots of each key, shape (2, n), for keys of shape (n, up to 4)."""
    numbers, n_words = factors(seed), keys.shape[1]
    rows = []
    for first in (0, 4):
        products = keys * np.array(numbers[first : first + n_words], dtype=np.uint32)
        rows.append(products.sum(axis=1, dtype=np.uint32) >> np.uint32(shift))
    return np.stack(rows).astype(np.int64)


def seeds() -> Iterator[int]:
    """Seeds to try, in order; 64 failures in a row do not happen below `MAX_LOAD`."""
    return iter(range(1, 65))


def n_slots(n_keys: int, max_load: float = MAX_LOAD) -> int:
    """Slots of a table for `n_keys`: the smallest power of two that keeps the load under `max_load`."""
    return 1 << max(4, int(n_keys / max_load).bit_length())


def place(keys: Words, seed: int, max_load: float = MAX_LOAD) -> Placement | None:
    """Put every key into one of its slots; None when this seed does not work out."""
    n = len(keys)
    size = n_slots(n, max_load)
    shift = 33 - size.bit_length()
    slots = slots_of(keys, seed, shift)
    owner = np.full(size, -1, dtype=np.int64)
    side = np.zeros(n, dtype=np.int8)
    waiting = np.arange(n)
    for _round in range(500):
        if not len(waiting):
            return Placement(seed, shift, owner)
        target = slots[side[waiting], waiting]
        evicted = owner[target]
        owner[target] = waiting
        lost = waiting[owner[target] != waiting]
        pushed = np.unique(evicted[evicted >= 0])
        waiting = np.concatenate((lost, pushed))
        side[waiting] ^= 1
    return None
