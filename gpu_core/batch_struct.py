"""The struct `Batch` of an execution context: where its kernel finds all that it reads and writes. No CuPy here."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpu_core.arena import Arena
from gpu_core.layout import BATCH, CHUNK, FETCHED, MAX_FETCHERS
from gpu_core.transfer import Transfer

_TOLD = ("header", "completion", "reasons")
_INPUTS = ("header", "document_starts", "text")
_RESULTS = ("ids", "token_starts", "document_tokens")


def batch_struct(arena: Arena, base: Mapping[str, int], capacity: int, transfer: Transfer, turn: int) -> NDArray[Any]:
    """Of one transfer; `base` has the device addresses of the blocks `pinned` and `device`, `capacity` is in bytes.

    Replays that fetch text take turns (0, 1) with two places for their header.
    """
    blocks = {"pinned": arena.pinned, "device": arena.device}

    def address(place: str, name: str) -> int:
        return blocks[place].address(base[place], name)

    where = dict.fromkeys(arena.device.offsets, "device")
    where |= dict.fromkeys(_TOLD, "pinned")
    if transfer.text == "mapped":
        where |= dict.fromkeys(_INPUTS, "pinned")
    if transfer.results == "mapped":
        where |= dict.fromkeys(_RESULTS, "pinned")
    batch = np.zeros((), dtype=BATCH)
    for name, place in where.items():
        batch[name] = address(place, name)
    if transfer.text == "fetched":
        batch["n_fetchers"] = min(MAX_FETCHERS, -(-capacity // CHUNK))
        batch["far_text"] = address("pinned", "text")
        batch["far_document_starts"] = address("pinned", "document_starts")
        half = MAX_FETCHERS * FETCHED.itemsize
        places = [address("device", "fetched") + half * k for k in (turn, 1 - turn)]
        batch["fetched"], batch["next_fetched"] = places
    return batch
