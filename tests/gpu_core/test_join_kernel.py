"""The joining kernel compiled for a host: the same as its twin for pieces of all kinds, and what the structs say."""

from __future__ import annotations

import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gpu_core import join_layout as layout
from gpu_core.layout import COMPLETION, EPOCH_SHIFT, FLAG_IDS, FLAG_TOKEN_STARTS
from gpu_core.shim import PATTERN, compiler
from gpu_core.shim.joining import HostJoin
from gpu_core.twin_join import EncodedPieces, join_pieces
from tests.gpu_core.join_pieces import random_pieces

pytestmark = pytest.mark.skipif(compiler() is None, reason="no C++ compiler")


def check(join: HostJoin, pieces: EncodedPieces, flags: int = FLAG_IDS | FLAG_TOKEN_STARTS) -> None:
    """One launch against the twin."""
    got, expected = join(pieces, flags), join_pieces(pieces)
    assert got.piece_tokens.tolist() == expected.piece_tokens.tolist()
    assert got.reports.tolist() == expected.reports.tolist()
    nothing = [PATTERN] * len(expected.ids)
    assert got.ids.tolist() == (expected.ids.tolist() if flags & FLAG_IDS else nothing)
    assert got.token_starts.tolist() == (expected.token_starts.tolist() if flags & FLAG_TOKEN_STARTS else nothing)
    assert join.completion["epoch"] == join.epoch
    assert join.completion["n_tokens"] == len(expected.ids)
    assert bool(join.completion["any_flagged"]) == bool(expected.reports.any())


@pytest.mark.parametrize("backwards", [False, True])
def test_same_as_the_twin(shim_cache: Path, backwards: bool) -> None:
    """Whatever number of pieces and documents, launch after launch on the same memory."""
    join, rng = HostJoin(shim_cache, backwards=backwards), random.Random(1)
    for n_documents, n_pieces in ((1, 1), (1, 2), (1, 7), (1, 8), (1, 9), (3, 5), (20, 1), (2, 300), (400, 2), (1, 30)):
        for strange in (0.0, 0.02, 0.3):
            check(join, random_pieces(rng, n_documents, n_pieces, strange))


def test_only_what_is_asked_for_is_written(shim_cache: Path) -> None:
    """Counts come without ids, and ids without token starts."""
    join, rng = HostJoin(shim_cache), random.Random(2)
    for flags in (0, FLAG_IDS, FLAG_TOKEN_STARTS):
        check(join, random_pieces(rng, 3, 20, 0.05), flags)


def test_a_common_token_has_a_place_an_end_and_an_id(shim_cache: Path) -> None:
    """Tokens that agree in two of the three are not common; the report says where the piece before has a token."""
    cases = ((5, 144, 148, True), (9, 144, 148, False), (5, 144, 149, False), (5, 143, 148, False))
    for token, at, end, is_common in cases:
        pieces = EncodedPieces(
            ids=np.array([1, 2, 5, 3, 7, token, 8], np.uint32),
            token_starts=np.array([0, 90, 116, 120, 128, at, end], np.uint32),
            tokens=np.array([0, 4, 7], np.uint32),
            starts=np.array([0, 128, 328], np.uint32),
            # 28 bytes are in both: 116 of the first is 144 of the second.
            places=np.array([0, 100], np.uint32),
            reasons=np.zeros(2, np.uint32),
        )
        check(HostJoin(shim_cache), pieces)
        joined = HostJoin(shim_cache)(pieces)
        if is_common:
            assert (joined.ids.tolist(), joined.token_starts.tolist()) == ([1, 2, 5, 8], [0, 90, 116, 120])
        assert joined.reports.tolist() == [0, 0 if is_common else layout.NO_SEAM | 10 << layout.SHIFT_AT]


def test_structs_and_constants(shim_cache: Path) -> None:
    """Host and device agree."""
    fields: list[int] = []
    for dtype in (layout.JOIN_BATCH, layout.JOIN_JOB, COMPLETION):
        offsets: Mapping[str, Any] = dtype.fields or {}
        fields += [dtype.itemsize, *(offsets[name][1] for name in dtype.names or ())]
    constants = [layout.JOIN_KERNEL.threads, layout.PIECES, layout.SEARCHED, FLAG_IDS, FLAG_TOKEN_STARTS, EPOCH_SHIFT]
    constants += [layout.REFUSED, layout.NO_SEAM, layout.SHIFT_AT]
    assert HostJoin(shim_cache).layout_numbers() == [*constants, *fields]


def test_memory_is_small() -> None:
    """A tenth of a byte for each byte of capacity, and room for what is cut."""
    for capacity in (4096, 1 << 20, 16 << 20):
        assert sum(buffer.n_bytes for buffer in layout.join_memory(capacity)) <= capacity // 8
    assert layout.fits(2048, 64, 4096, 512)
    assert not layout.fits(2049, 64, 4096, 512)
    assert not layout.fits(2048, 65, 4096, 512)
    assert not layout.fits(2048, 64, 4096, 32)
