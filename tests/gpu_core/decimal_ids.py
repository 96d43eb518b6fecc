"""Ids of documents that nobody's tokenizer made: for the decimal kernel and its twin."""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Words = NDArray[np.uint32]
EDGES: tuple[int, ...] = (
    0,
    1,
    9,
    10,
    11,
    99,
    100,
    101,
    999,
    1000,
    9999,
    10_000,
    99_999,
    100_000,
    999_999,
    1_000_000,
    9_999_999,
)
EDGES += (10_000_000, 99_999_999, 100_000_000, 999_999_999, 1_000_000_000, 4_294_967_295)


def ids_of_lengths(rng: random.Random, lengths: Sequence[int]) -> tuple[Words, Words]:
    """Ids of documents with so many each, of all numbers of digits, and where each document's begin."""
    n = sum(lengths)
    tops = [rng.choice((10, 100, 1000, 10_000, 130_000, 130_000, 10**6, 2**32)) for _ in range(8)]
    ids = [rng.choice(EDGES) if rng.random() < 0.05 else rng.randrange(rng.choice(tops)) for _ in range(n)]
    return np.array(ids, dtype=np.uint32), np.cumsum([0, *lengths]).astype(np.uint32)
