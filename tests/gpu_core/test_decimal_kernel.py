"""The decimal kernel compiled for a host: the same text as its twin and as orjson, and what the structs say."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest

from gpu_core import decimal_layout as layout
from gpu_core.layout import COMPLETION, workspace
from gpu_core.layout import TILE_IDS as TILE
from gpu_core.shim import PATTERN_BYTE, compiler
from gpu_core.shim.decimals import HostDecimals
from gpu_core.twin_decimal import decimal_text
from tests.gpu_core.decimal_ids import EDGES, Words, ids_of_lengths

pytestmark = pytest.mark.skipif(compiler() is None, reason="no C++ compiler")


def check(kernel: HostDecimals, ids: Words, document_tokens: Words, room: int | None = None) -> None:
    """One launch against the twin; without a room, there is exactly enough."""
    text, starts = decimal_text(ids, document_tokens)
    room = len(text) if room is None else room
    got = kernel(ids, document_tokens, room, any_flagged=len(ids) & 1)
    written = min(room, len(text))
    assert got.text[:written] == text[:written]
    assert got.text[written:] == bytes([PATTERN_BYTE]) * (room - written)
    assert got.document_decimals.tolist() == starts.tolist()
    assert got.ids.tolist() == ids.tolist()
    assert got.document_tokens.tolist() == document_tokens.tolist()
    assert kernel.completion.item() == (kernel.epoch, len(ids), len(ids) & 1)


def test_the_twin_writes_what_orjson_writes() -> None:
    """Of each document, but for the brackets and the comma behind its last id."""
    ids, tokens = ids_of_lengths(random.Random(1), [len(EDGES), 0, 5, 1, 0])
    ids[: len(EDGES)] = EDGES
    text, starts = decimal_text(ids, tokens)
    for document in range(len(tokens) - 1):
        own = ids[tokens[document] : tokens[document + 1]]
        expected = orjson.dumps(own, option=orjson.OPT_SERIALIZE_NUMPY)
        assert b"[" + text[starts[document] : starts[document + 1]][:-1] + b"]" == expected


@pytest.mark.parametrize("backwards", [False, True])
def test_same_as_the_twin(shim_cache: Path, backwards: bool) -> None:
    """Whatever number of ids and documents, launch after launch on the same memory."""
    kernel, rng = HostDecimals(shim_cache, backwards=backwards), random.Random(2)
    shapes: list[Sequence[int]] = [[], [0], [1], [0, 0, 3, 0], [33] * 40, [100_000], [1] * 3000, [0] * 2000, [5000, 0]]
    shapes += [[n] for n in (31, 32, 33, TILE - 1, TILE, TILE + 1, 2 * TILE, 5 * TILE - 1)]
    for lengths in [*shapes, *shapes[::-1]]:
        check(kernel, *ids_of_lengths(rng, lengths))


def test_every_number_of_digits(shim_cache: Path) -> None:
    """The smallest and the largest of each, and the longest text that a tile can have."""
    kernel = HostDecimals(shim_cache)
    for ids in (EDGES, [4_294_967_295] * (TILE + 5), [0] * (TILE + 5)):
        check(kernel, np.array(ids, dtype=np.uint32), np.array([0, len(ids)], dtype=np.uint32))


def test_documents_that_end_at_each_place_around_a_tile(shim_cache: Path) -> None:
    """Borders before, at and behind the end of a block, with empty documents there."""
    kernel, rng = HostDecimals(shim_cache), random.Random(3)
    for border in range(TILE - 3, TILE + 4):
        for rest in (0, 1, TILE - 1, TILE, 2 * TILE - border):
            check(kernel, *ids_of_lengths(rng, [border, 0, 0, rest, 0]))


def test_text_beyond_the_room_is_counted(shim_cache: Path) -> None:
    """Nothing is written behind it; where documents begin is right all the same."""
    kernel, rng = HostDecimals(shim_cache), random.Random(4)
    ids, tokens = ids_of_lengths(rng, [700] * 6)
    n_bytes = len(decimal_text(ids, tokens)[0])
    for room in (0, 1, 15, 16, 17, 127, 128, 5000, n_bytes // 2, n_bytes - 1, n_bytes + 40):
        check(kernel, ids, tokens, room)


def test_structs_and_constants(shim_cache: Path) -> None:
    """Host and device agree."""
    fields: list[int] = []
    for dtype in (layout.DECIMAL_BATCH, layout.DECIMAL_JOB, layout.DECIMAL_CONTROL, COMPLETION):
        offsets: Mapping[str, Any] = dtype.fields or {}
        fields += [dtype.itemsize, *(offsets[name][1] for name in dtype.names or ())]
    constants = [layout.DECIMAL_KERNEL.threads, TILE, layout.MAX_TEXT]
    assert HostDecimals(shim_cache).layout_numbers() == [*constants, *fields]


def test_memory_is_small() -> None:
    """Device memory stays within 24 bytes for each byte of capacity; pinned memory for text is 2 of them."""
    for capacity in (4096, 1 << 20, 16 << 20):
        own = sum(buffer.n_bytes for buffer in layout.decimal_memory(capacity))
        assert own <= capacity // 64
        all_of_it = own + sum(buffer.n_bytes for buffer in workspace(capacity, capacity // 8, token_starts=True))
        assert all_of_it <= 24 * capacity
        decimals, _document_decimals = layout.decimal_results(capacity, 1)
        assert decimals.n_bytes == 2 * capacity
