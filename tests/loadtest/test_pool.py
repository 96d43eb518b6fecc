"""The pool of texts: documents are places in one file, whole characters, and none is dealt twice."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from loadtest.pool import Pool, open_pool, write_pool

ASCII = b"".join(b"line %d of many\n" % k for k in range(500))
WIDE = "漢字é😀x".encode() * 300


@pytest.fixture
def pool(tmp_path: Path) -> Pool:
    """Two corpora, one text that is sent as it is, one that is kept apart."""
    return write_pool(
        tmp_path, {"ascii": ASCII, "wide": WIDE}, 20_000, exact={"bad": b"\xff\xfe"}, apart={"own": b"abc"}
    )


def test_documents_are_windows_of_the_text(pool: Pool) -> None:
    """A document is what stands at its start, over the end and round to the beginning."""
    start, length = pool.windows("ascii", np.arange(200), np.full(200, 300), seed=1)
    for place, n_bytes in zip(start.tolist(), length.tolist(), strict=True):
        assert n_bytes == 300
        assert bytes(pool.text(place, n_bytes)) in ASCII + ASCII[:300]


def test_documents_longer_than_the_corpus(pool: Pool) -> None:
    """The corpus repeats until the longest document fits."""
    start, length = pool.windows("ascii", np.arange(50), np.full(50, 20_000), seed=1)
    assert (length == 20_000).all()
    text = bytes(pool.text(int(start[0]), 20_000))
    assert text[: len(ASCII)] == text[len(ASCII) : 2 * len(ASCII)]


def test_no_start_is_dealt_twice(pool: Pool) -> None:
    """As many documents as the corpus has characters start at as many places."""
    n = len(WIDE.decode())
    start, _ = pool.windows("wide", np.arange(n), np.full(n, 40), seed=5)
    assert len(np.unique(start)) == n


def test_whole_characters_only(pool: Pool) -> None:
    """Every document is UTF-8 by itself and close to the length asked for."""
    lengths = np.arange(1, 400)
    start, length = pool.windows("wide", np.arange(len(lengths)), lengths, seed=2)
    assert ((length >= lengths - 3) & (length <= lengths + 3)).all()
    for place, n_bytes in zip(start.tolist(), length.tolist(), strict=True):
        assert str(pool.text(place, n_bytes), "utf-8").isprintable()


def test_texts_as_they_are(pool: Pool, tmp_path: Path) -> None:
    """Exact texts are stored once, texts apart are none of the corpora, and the file can be opened again."""
    for opened in (pool, open_pool(tmp_path)):
        assert bytes(opened.text(*opened.whole("bad"))) == b"\xff\xfe"
        assert opened.corpora == ["ascii", "wide"]
        assert opened.regions["own"].n_bytes == 3
