"""Hashes of blocks set against Dynamo's released binary and its selection service, where they are installed."""

from __future__ import annotations

import asyncio
import importlib.util
import random
from typing import Any

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


def test_dynamo_selects_by_hashes() -> None:
    """Its selection service takes our hashes in the place of ids, and knows the same blocks by them."""
    from dynamo._core import SelectionService

    ids = list(range(1, 65))
    hashes = block_hashes(np.array(ids, "<u4").tobytes(), HashOptions("dynamo", 16), "")
    by_hashes = {
        "model_name": "m",
        "block_hashes": hashes.block_hashes,
        "sequence_hashes": hashes.sequence_hashes,
        "isl_tokens": hashes.n_ids,
    }
    # Nobody listens there: the worker's events are not needed.
    worker = {"worker_id": 1, "model_name": "m", "block_size": 16, "endpoint": "http://127.0.0.1:1"}

    async def n_blocks(selector: Any, request: Any) -> Any:
        return (await selector.select(request))["potential_decode_blocks"]

    async def select() -> None:
        selector = SelectionService(indexer_threads=1)
        await selector.upsert_worker({**worker, "kv_events_endpoint": "tcp://127.0.0.1:9"})
        await selector.select_and_reserve({"model_name": "m", "token_ids": ids, "selection_id": "first"})
        assert await n_blocks(selector, {"model_name": "m", "token_ids": ids}) == 4
        assert await n_blocks(selector, by_hashes) == 4
        assert await n_blocks(selector, {"model_name": "m", "token_ids": ids[::-1]}) == 8
        selector.shutdown()

    asyncio.run(select())
