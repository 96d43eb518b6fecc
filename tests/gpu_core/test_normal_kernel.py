"""The normalizing kernel compiled for a host: the same as its twin, and with `encode` behind it the reference's ids."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from tokenizers import normalizers

from gpu_core import normal_layout as layout
from gpu_core import normal_tables
from gpu_core.classes import NOT_NORMAL
from gpu_core.layout import EPOCH_SHIFT, FLAG_IDS, FLAG_NORMAL_FORM, HEADER, REASON_NOT_NORMAL, workspace
from gpu_core.shim import PATTERN_BYTE, HostPipeline, compiler
from gpu_core.shim.normalizing import HostNormal, HostNormalPipeline
from gpu_core.twin_normal import normalize
from tests.data import FULL, corpus_windows, families
from tests.gpu_core.conftest import Bench
from tests.gpu_core.marked_texts import LITERALS, random_document, random_marked_text

pytestmark = pytest.mark.skipif(compiler() is None, reason="no C++ compiler")
TILE, SUM_FLAGGED = layout.TILE, 1 << 63
BORDERS = (TILE - layout.HALO, TILE, 2 * TILE)
FAMILIES = [f for f in families() if f in {"split_bpe", "qwen3"} | ({"qwen2_5"} if FULL else set())]


@pytest.fixture(scope="module", params=[False, True], ids=["forwards", "backwards"])
def kernel(request: pytest.FixtureRequest, shim_cache: Path) -> HostNormal:
    """One context for all tests: launch after launch on the same memory."""
    return HostNormal(shim_cache, LITERALS, 1 << 16, backwards=request.param)


def check(kernel: HostNormal, documents: Sequence[bytes], room: int = 1 << 16, flags: int = FLAG_IDS) -> None:
    """One launch against the twin, and what it leaves for the next replay."""
    got, expected = kernel(documents, room, flags), normalize(documents, LITERALS, room)
    assert got.text == expected.text
    assert got.starts.tolist() == expected.starts.tolist()
    assert got.flagged == expected.flagged
    header = (kernel.epoch, len(expected.text), len(documents), flags | FLAG_NORMAL_FORM, 0)
    assert kernel.header.item() == header
    assert kernel.encode_sums.item() == (SUM_FLAGGED if any(expected.flagged) else 0)
    untouched = kernel.text[len(expected.text) if expected.text else room :]
    assert not documents or (untouched == PATTERN_BYTE).all() or not any(documents)


def test_same_as_the_twin(kernel: HostNormal) -> None:
    """Documents of all kinds, one or many, from a byte to several tiles."""
    rng = random.Random(1)
    for n_parts in (0, 1, 2, 5, 40, 400, 2000):
        for broken in (0.0, 0.02, 0.4):
            for n_documents in (1, 2, 9):
                check(kernel, [random_document(rng, n_parts // n_documents, broken) for _ in range(n_documents)])


def test_segments_across_each_place_of_a_tile_border(kernel: HostNormal) -> None:
    """Short ones, one that is as long as may be, one that is too long, and one that cannot be done."""
    longest = "e" + "\u0316" * 29 + "\u0301"
    for segment in (
        "e\u0323\u0301",
        "\u1100\u1161\u11a8",
        longest,
        longest + "\u0316" * 60,
        "e" + "\u0316" * 40 + "\u0301",
        "c\u0327",
        "\U0001d160",
    ):
        size = len(segment.encode())
        for border in BORDERS[1:]:
            for before in range(border - size - 2, border + 3, 1 if size < 20 else 7):
                check(kernel, [b"x" * before + segment.encode() + "ye\u0301".encode()])


def test_long_runs_of_marks(kernel: HostNormal) -> None:
    """In order over several tiles, and with something doubtful at each end."""
    for run in (
        "\u0334" * 1500,
        "\u0301" * 1500,
        "\u0334" * 1500 + "\u0301",
        "\u0301" + "\u0334" * 1500,
        "\uf900" * 900,
    ):
        for begin in ("", "a", "x" * (TILE - 2), "\u212b"):
            check(kernel, [(begin + run).encode(), "e\u0301".encode()])


def test_segments_of_about_as_many_bytes_as_may_be(kernel: HostNormal) -> None:
    """Of few characters: the last one that is rewritten, and the first one that is not."""
    for base in ("a", "é", "中", "😀"):
        for n_marks in range(5):
            segment = base + "\U0001d165" * 28 + "\u0334" * n_marks
            for before in (0, TILE - 119, TILE - 60, TILE - 3):
                check(kernel, [("x" * before + segment + "y").encode()])


def test_a_mark_at_the_end_of_each_length_of_text(kernel: HostNormal) -> None:
    """From one byte to a tile and beyond."""
    for border in (0, 31, 62, *BORDERS):
        for n in range(max(0, border - 4), border + 5):
            check(kernel, [b"x" * n + "e\u0301".encode()])
            check(kernel, [b"x" * n + "e\u0301".encode() + b"\xcc"])


def test_document_borders_between_and_inside_characters(kernel: HostNormal) -> None:
    """A document's first marks have no base, a cut character is none, and empty documents lie anywhere."""
    text = "xe\u0301\u0323é\U0001d15e\u0334\u1100\u1161".encode()
    for at in range(len(text) + 1):
        check(kernel, [text[:at], text[at:]])
        for border in BORDERS:
            check(kernel, [b"y" * (border - 9), b"", text[:at], b"", b"", text[at:], b"", b"e"])


def test_thousands_of_documents(kernel: HostNormal) -> None:
    """Of no byte, of one mark each, of a few characters."""
    rng = random.Random(3)
    check(kernel, [])
    check(kernel, [b""])
    check(kernel, [b""] * 5000)
    check(kernel, ["\u0301".encode()] * 3000)
    check(kernel, ["\u0344".encode(), b""] * 2000)
    check(kernel, [random_document(rng, rng.randrange(4), 0.1) for _ in range(4000)])


def test_a_mark_that_composes_after_every_character(kernel: HostNormal) -> None:
    """As many segments as a tile can have, and as much growth."""
    for text in ("=\u0338" * 2000, "a\u0338" * 2000, "\U0001d160" * 300, "x\U0001d160" * 900, "e\u0301\u0323" * 900):
        for before in ("", "x", "xx"):
            check(kernel, [(before + text).encode()])


def test_added_tokens_end_with_a_base(kernel: HostNormal) -> None:
    """Composed with a mark it breaks one; beside one that does not compose it stays."""
    for mark in ("\u0338", "\u0327", "\u0301", "\u0316\u0334", "\u212a"):
        for literal in LITERALS:
            check(kernel, [literal + mark.encode(), b"x" + literal[:-1] + mark.encode(), b"K" + mark.encode()])


def test_text_beyond_the_room(kernel: HostNormal) -> None:
    """Nothing is written behind it, all documents are flagged, and the next replay has no text."""
    documents = ["a\U0001d160".encode() * 300, b"b", b"", "x\u0958".encode() * 20]
    n_bytes = len(normalize(documents, LITERALS, 1 << 16).text)
    assert not any(normalize(documents, LITERALS, 1 << 16).flagged)
    for room in (0, 1, 15, 16, 17, 1000, TILE, n_bytes - 1, n_bytes, n_bytes + 1):
        check(kernel, documents, room)


def test_launches_of_changing_sizes(kernel: HostNormal) -> None:
    """Nothing of an earlier launch is taken for one of this."""
    rng = random.Random(4)
    for n in (3000, 1, 700, 0, 2500, 2, 2500):
        check(kernel, [random_document(rng, n)], flags=n & 3)


@pytest.mark.parametrize("bench", FAMILIES, indirect=True)
def test_two_replays_have_the_ids_of_the_reference(bench: Bench, shim_cache: Path) -> None:
    """Texts that fail the quick check, beside others: those that stay flagged are few, all others are exact."""
    rng = random.Random(5)
    pipeline = HostPipeline(bench.tables, shim_cache, 8 << 10)
    replays = HostNormalPipeline(bench.tables, shim_cache, 8 << 10)
    literals = [literal.decode() for literal in normal_tables.literals_of(bench.tables)]
    windows = [sample.text for sample in corpus_windows(60 if FULL else 3, 300)]
    texts = [random_marked_text(rng, literals) for _ in range(4000 if FULL else 500)]
    texts += [*windows, *map(normalizers.NFD().normalize_str, windows)]
    n_left = n_saved = 0
    for first in range(0, len(texts), 20):
        own = texts[first : first + 20]
        documents = [text.encode() for text in own]
        before, result = pipeline.encode(documents), replays.encode(documents)
        for i, text in enumerate(own):
            if result.reasons[i]:
                n_left += result.reasons[i] == REASON_NOT_NORMAL
                continue
            assert result.document_ids(i).tolist() == bench.reference_ids(text), ascii(text)
            n_saved += before.reasons[i] == REASON_NOT_NORMAL
    assert n_saved > len(texts) // 2
    assert n_left < len(texts) // 10


def test_structs_and_constants(shim_cache: Path) -> None:
    """Host and device agree."""
    fields: list[int] = []
    for dtype in (layout.NORMAL_TABLES, layout.NORMAL_BATCH, layout.NORMAL_JOB, layout.NORMAL_CONTROL, HEADER):
        offsets: Mapping[str, Any] = dtype.fields or {}
        fields += [dtype.itemsize, *(offsets[name][1] for name in dtype.names or ())]
    constants = [layout.NORMAL_KERNEL.threads, layout.WINDOW, layout.HALO, TILE, layout.MAX_SEGMENT, layout.MAX_PARTS]
    constants += [layout.MAX_RESULT, layout.MAX_GROWTH, FLAG_NORMAL_FORM, REASON_NOT_NORMAL, EPOCH_SHIFT, NOT_NORMAL]
    constants += [normal_tables.ITSELF, normal_tables.CLASS_AT]
    assert HostNormal(shim_cache, ()).layout_numbers() == [*constants, *fields]


def test_memory_is_small() -> None:
    """Little more than a copy of text and document starts; with it a context stays within 24 bytes for each byte."""
    for capacity in (4096, 1 << 20, 16 << 20):
        own = sum(buffer.n_bytes for buffer in layout.normal_memory(capacity, capacity // 8))
        all_of_it = own + sum(buffer.n_bytes for buffer in workspace(capacity, capacity // 8, token_starts=True))
        assert all_of_it <= 24 * capacity
        assert own <= 2 * capacity
