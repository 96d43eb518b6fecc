"""Hashes of blocks set against Dynamo's released binary, where it is installed."""

from __future__ import annotations

import importlib.util
import random

import numpy as np
import pytest

from service.block_hashes import HashOptions, block_hashes

pytestmark = pytest.mark.skipif(importlib.util.find_spec("dynamo") is None, reason="ai-dynamo-runtime is not installed")


def test_equal_to_dynamo() -> None:
    """Random ids in blocks of every size, with and without names."""
    from dynamo._core import compute_block_hash_for_seq

    rng = random.Random(0)
    for i in range(300):
        ids = [rng.randrange(1 << rng.choice([8, 17, 32])) for _ in range(rng.randrange(200))]
        size = rng.choice([1, 2, 15, 16, 32, 64])
        lora, salt = rng.choice([None, "lora é"]), rng.choice([None, f"salt {i}"])
        options = HashOptions("dynamo", size, lora, salt)
        found = block_hashes(np.array(ids, "<u4").tobytes(), options, "").block_hashes
        theirs = compute_block_hash_for_seq(ids, size, lora_name=lora, cache_namespace=salt)
        assert [int(value) % (1 << 64) for value in found] == [value % (1 << 64) for value in theirs]
