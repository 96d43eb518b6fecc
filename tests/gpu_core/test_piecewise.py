"""Documents as pieces: what is written, what reports mean, when a look at a document is enough."""

from __future__ import annotations

import numpy as np
import pytest

from gpu_core.execution import OutOfDeviceMemory
from gpu_core.filling import MANY, fill, lengths_of, packed_starts
from gpu_core.host_device import HostDevice
from gpu_core.join_layout import NO_SEAM, REFUSED, SHIFT_AT
from gpu_core.ladder import SizeClass
from gpu_core.long_runs import Pieces
from gpu_core.piecewise import PieceBatch, has_long_run


def pieces_of(*borders: tuple[int, int]) -> Pieces:
    """Pieces that begin and end there."""
    starts, ends = np.array(borders, dtype=np.int64).T
    return Pieces(starts, ends)


@pytest.mark.parametrize("step", [4, 5, 7])
def test_pieces_are_written_one_behind_the_other(step: int) -> None:
    """Equal ones in one copy, others one by one; the first and the last may be of another length."""
    document = bytes(range(200))
    for jitter in (0, 1):
        starts = [0, *(9 + step * k + jitter * (k % 3) for k in range(20))]
        ends = [*(start + 3 for start in starts[1:]), 200]
        pieces = pieces_of(*zip(starts, ends, strict=True))
        target = np.zeros(int(pieces.lengths.sum()), np.uint8)
        pieces.write(document, target)
        assert target.tobytes() == b"".join(pieces.texts(document))


def test_a_batch_of_pieces() -> None:
    """Text, document starts and places of the pieces of two documents."""
    context = HostDevice(lambda _: 0).context(SizeClass(4096, 64))
    batch = PieceBatch([b"abcdefgh", b"ABCDEF"], [pieces_of((0, 4), (2, 8)), pieces_of((0, 3), (1, 5), (4, 6))])
    batch.fill(context)
    assert bytes(context.text[: batch.n_bytes]) == b"abcdcdefghABCBCDEEF"
    assert context.document_starts[:6].tolist() == [0, 4, 10, 13, 17, 19]
    assert context.piece_places()[:5].tolist() == [0, 2, 8, 9, 12]
    assert (batch.n_bytes, batch.n_pieces, batch.firsts.tolist()) == (19, 5, [0, 2, 5])


def test_reports_by_document() -> None:
    """A document that needs the CPU has no other shift; else the first piece without a seam says it."""
    batch = PieceBatch([b"abcdefgh"] * 3, [pieces_of((0, 4), (2, 8))] * 3)
    reports = [0, NO_SEAM | 9 << SHIFT_AT, REFUSED, NO_SEAM | 5 << SHIFT_AT, 0, 0]
    assert batch.failures(np.array(reports, np.uint32)) == {0: 9, 1: 0}


def test_a_look_finds_what_fills_a_document() -> None:
    """Only what is certainly too long for the device, and only in documents that are worth a look."""
    for run in (b"a", b"aB", b"\n ", b"=", b"=/*"):
        assert has_long_run(b"some words " + run * 4000)
        assert has_long_run(memoryview(run * 4000))
    assert not has_long_run(b"some words " * 4000)
    assert not has_long_run(b"a" * 1000)
    assert not has_long_run(b"12" * 4000)
    assert not has_long_run(b"")


@pytest.mark.parametrize("n", [2, MANY, MANY + 1])
def test_documents_are_copied(n: int) -> None:
    """Few and many, short and long."""
    context = HostDevice(lambda _: 0).context(SizeClass(1 << 21, 1 << 10))
    for size in (3, 2100):
        documents: list[bytes | memoryview] = [bytes([k % 256]) * (size + k % 5) for k in range(n)]
        fill(context, documents, lengths_of(documents))
        text = b"".join(documents)
        assert bytes(context.text[: len(text)]) == text
        assert context.document_starts[: n + 1].tolist() == np.cumsum([0, *map(len, documents)]).tolist()


@pytest.mark.parametrize("starts", [[], [0], [1, 4], [0, 3], [0, 3, 2, 4], [0.0, 4.0], [[0, 4]]])
def test_document_starts_rise_to_the_end(starts: list[object]) -> None:
    """Anything else is refused."""
    with pytest.raises(ValueError, match="document starts"):
        packed_starts(starts, 4)  # type: ignore[arg-type]
    assert packed_starts([0, 2, 2, 4], 4).tolist() == [0, 2, 2, 4]


def test_memory_for_pieces_may_not_be_there() -> None:
    """Then the caller hears of it before anything is launched."""
    context = HostDevice(lambda _: 0).context(SizeClass(4096, 64))

    def none() -> np.ndarray[tuple[int], np.dtype[np.uint32]]:
        raise OutOfDeviceMemory

    context.piece_places = none  # type: ignore[method-assign]
    with pytest.raises(OutOfDeviceMemory):
        PieceBatch([b"abcdefgh"], [pieces_of((0, 4), (2, 8))]).fill(context)
