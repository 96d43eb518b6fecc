"""Decoding on a device against the reference: texts of batches that were encoded, and of random ids."""

from __future__ import annotations

import random
from typing import Any

import numpy as np

from gpu_core.decoder import DecodeOptions, load_decoder
from tests.gpu_core.device_data import Ids, Reference

CAPACITIES = (1 << 20, 5000)
"""One launch for nearly everything, and several for what is not small."""


def wrong_texts(
    data: bytes, device: Any, reference: Reference, batches: list[list[Ids]], rng: random.Random
) -> tuple[int, list[str]]:
    """How many texts the `DecodeDevice` was compared on, and a line about each that differs."""
    n_compared, wrong = 0, []
    decoders = [load_decoder(data, device, DecodeOptions(capacity_ids=n)) for n in CAPACITIES]
    n_ids = len(decoders[0].tables.pieces) + 10
    shapes = [(1, 1), (1, 5000), (31, 40), (32, 40), (33, 40), (500, 20), (1, 40_000)]
    generated = [[np.array(rng.choices(range(n_ids), k=n), np.uint32) for _ in range(k)] for k, n in shapes]
    for batch in [*batches, *generated]:
        for skips in (False, True):
            expected = reference.tokenizer.decode_batch([ids.tolist() for ids in batch], skip_special_tokens=skips)
            for decoder in decoders:
                decoding = decoder.decode(batch, skip_special_tokens=skips)
                n_compared += len(batch)
                wrong += [
                    f"decode: sequence {i} of {len(batch)} ({len(batch[i])} ids), skip {skips}"
                    for i, text in enumerate(expected)
                    if decoding.text(i) != text
                ]
                decoding.release()
    return n_compared, wrong
