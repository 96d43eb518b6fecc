"""The decoding kernel compiled for a host: the same as its twin in NumPy at every size and border."""

from __future__ import annotations

import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gpu_core import decode_layout as layout
from gpu_core.decode_context import SEARCHED_ON_HOST, DecodeContext
from gpu_core.decode_tables import DecodeTables, decode_plain
from gpu_core.layout import TILE_IDS as TILE
from gpu_core.shim import compiler
from gpu_core.shim.decoding import HostDecodeDevice

pytestmark = pytest.mark.skipif(compiler() is None, reason="no C++ compiler")
COUNTS = (0, 1, 3, 31, 32, 33, 255, TILE - 1, TILE, TILE + 1, 5 * TILE + 7)
LENGTHS = (0, 1, 2, 3, 4, 5, 8, 11, 12, 13, 15, 16, 17, 31, 32, 33, 127, 128, 129, 1000, 9000)


def tables_of(entries: list[bytes], special: set[int]) -> DecodeTables:
    """Tables of these entries."""
    pieces = np.zeros((len(entries), 4), dtype=np.uint32)
    pool = bytearray()
    for i, entry in enumerate(entries):
        if len(entry) > layout.INLINE:
            pieces[i, 0] = len(pool)
            pool += entry
        else:
            pieces[i, :3] = np.frombuffer(entry.ljust(layout.INLINE, b"\0"), "<u4")
        pieces[i, 3] = len(entry) | (layout.SPECIAL if i in special else 0)
    return DecodeTables(pieces, np.frombuffer(bytes(pool), np.uint8), None, 0)


def random_tables(rng: random.Random, lengths: tuple[int, ...]) -> DecodeTables:
    """Entries of these lengths, some of them special; the first bytes tell them apart."""
    return tables_of([rng.randbytes(length) for length in lengths], set(rng.sample(range(len(lengths)), 3)))


def context_of(device: HostDecodeDevice, tables: DecodeTables, n_bytes: int = 1 << 20) -> DecodeContext:
    """Room for 6 tiles of ids and for many sequences."""
    arena = layout.arrange_decoding(6 * TILE, n_bytes, 3000)
    (memory,) = device.decode_memories(tables, arena, 1)
    return DecodeContext(memory, arena)


def launch(context: DecodeContext, ids: np.ndarray[Any, Any], starts: np.ndarray[Any, Any], flags: int) -> None:
    """One launch on memory that holds a pattern."""
    context.bytes[:] = 0xA5
    context.sequence_bytes[:] = 0xA5A5A5A5
    context.ids[:] = 0xFFFFFFFF
    context.ids[: len(ids)] = ids
    context.sequence_starts[: len(starts)] = starts
    context.launch(len(ids), len(starts) - 1, flags)
    assert context.poll(1)


def test_structs_are_laid_out_alike(shim_cache: Path) -> None:
    """Sizes, offsets and constants of the compiled source are those of `gpu_core.decode_layout`."""
    expected = [layout.DECODE_KERNEL.threads, TILE, layout.STAGE, layout.INLINE, layout.SPECIAL]
    expected += [layout.LENGTH, layout.FLAG_SKIP_SPECIAL]
    structs = (layout.DECODE_TABLES, layout.DECODE_BATCH, layout.DECODE_JOB)
    for struct in (*structs, layout.DECODE_COMPLETION, layout.DECODE_CONTROL):
        fields: Mapping[str, Any] = struct.fields or {}
        expected += [struct.itemsize, *(fields[name][1] for name in struct.names or ())]
    assert HostDecodeDevice(shim_cache).layout_numbers() == expected


@pytest.mark.parametrize("backwards", [False, True])
def test_bytes_are_the_twins(shim_cache: Path, backwards: bool) -> None:
    """Every number of ids and sequences, long and short entries, in both orders of threads, on the same memory."""
    rng = random.Random(1)
    tables = random_tables(rng, LENGTHS[:-2] * 3)
    context = context_of(HostDecodeDevice(shim_cache, backwards=backwards), tables)
    for n_ids in COUNTS * 2:
        ids = np.array([rng.randrange(len(tables.pieces) + 5) for _ in range(n_ids)], dtype=np.uint32)
        n_sequences = rng.choice((1, 2, SEARCHED_ON_HOST, SEARCHED_ON_HOST + 1, 500, 3000))
        borders = sorted(rng.choice((0, n_ids, rng.randrange(n_ids + 1))) for _ in range(n_sequences - 1))
        starts = np.array([0, *borders, n_ids], dtype=np.uint32)
        for flags in (0, layout.FLAG_SKIP_SPECIAL):
            launch(context, ids, starts, flags)
            data, places = decode_plain(tables, ids, starts, bool(flags))
            assert context.n_bytes() == len(data)
            np.testing.assert_array_equal(context.bytes[: len(data)], data)
            assert (context.bytes[len(data) :] == 0xA5).all()
            np.testing.assert_array_equal(context.sequence_bytes[: len(starts)], places)
            assert (context.sequence_bytes[len(starts) :] == 0xA5A5A5A5).all()


@pytest.mark.parametrize("length", LENGTHS)
def test_entries_of_one_length(shim_cache: Path, length: int) -> None:
    """A tile of equal entries: each byte is in its place, however far from borders of items and stages."""
    rng = random.Random(length)
    tables = tables_of([rng.randbytes(length) for _ in range(5)], set())
    context = context_of(HostDecodeDevice(shim_cache), tables, n_bytes=16 << 20)
    n_ids = min(TILE + 9, 300_000 // max(1, length))
    ids = np.array([rng.randrange(5) for _ in range(n_ids)], dtype=np.uint32)
    starts = np.array([0, n_ids // 3, n_ids], dtype=np.uint32)
    launch(context, ids, starts, 0)
    data, places = decode_plain(tables, ids, starts, False)
    assert data.tobytes() == b"".join(_entry(tables, i) for i in ids)
    np.testing.assert_array_equal(context.bytes[: len(data)], data)
    np.testing.assert_array_equal(context.sequence_bytes[:3], places)


@pytest.mark.parametrize("n_bytes", [16, 32, 4096, 8192, 8208])
def test_what_does_not_fit_is_counted(shim_cache: Path, n_bytes: int) -> None:
    """Nothing is written behind the capacity, what lies before it is right, and the number of bytes is that of all."""
    rng = random.Random(7)
    tables = random_tables(rng, (3, 5, 7, 12, 13, 40))
    context = context_of(HostDecodeDevice(shim_cache), tables, n_bytes)
    ids = np.array([rng.randrange(6) for _ in range(2 * TILE)], dtype=np.uint32)
    launch(context, ids, np.array([0, len(ids)], dtype=np.uint32), 0)
    data, places = decode_plain(tables, ids, np.array([0, len(ids)], dtype=np.uint32), False)
    assert context.n_bytes() == len(data) == places[1]
    np.testing.assert_array_equal(context.bytes, data[:n_bytes])


def _entry(tables: DecodeTables, i: int) -> bytes:
    length = int(tables.pieces[i, 3]) & layout.LENGTH
    first = int(tables.pieces[i, 0])
    return tables.pool[first : first + length].tobytes() if length > 12 else tables.pieces[i].tobytes()[:length]
