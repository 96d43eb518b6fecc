"""Packing reads no further ahead than its window, and stops what is under way when nobody wants it any more."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from dispatcher.gpu.options import GpuRouteOptions
from dispatcher.options import DispatcherOptions
from service.files.engine import GROUP_CHARS, GROUP_RECORDS, WINDOW_CHARS, Engine, Failure
from service.files.options import FilesOptions
from service.files.records import Record
from tests.data import tokenizer_json


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    """A small tokenizer on the reference."""
    path = tmp_path_factory.mktemp("files") / "tokenizer.json"
    path.write_bytes(tokenizer_json("byte_bpe"))
    work = DispatcherOptions(cpu_workers=2, cpu_engine="reference")
    it = Engine(FilesOptions(tokenizer=str(path)), work, GpuRouteOptions(gpus="none"))
    yield it
    it.close()


def test_memory_is_bounded(engine: Engine) -> None:
    """However long the input, not more than the window and a document is read before ids are given out."""
    document = "word " * (GROUP_CHARS // 5)
    n_documents, n_read, n_given, ahead = 75, 0, 0, 0

    def records() -> Iterator[tuple[int, Record, Callable[[], int]]]:
        nonlocal n_read
        for number in range(1, n_documents + 1):
            n_read += len(document)
            yield 0, Record(number, document), lambda: 0

    for packed in engine.pack(records()):
        n_given += packed.n_chars
        ahead = max(ahead, n_read - n_given)
    assert n_given == n_documents * len(document)
    assert WINDOW_CHARS // 2 < ahead <= WINDOW_CHARS + GROUP_CHARS + len(document)


def test_groups_follow_from_where_they_begin(engine: Engine) -> None:
    """A run that begins at the end of a group makes the groups that the whole run makes."""
    records = [Record(n, "x" * (n % 100)) if n % 50 else Record(n, None, "bad") for n in range(1, 3 * GROUP_RECORDS)]

    def packed(first: int) -> list[tuple[tuple[int, int], bytes, list[Failure]]]:
        it = ((0, record, lambda: 0) for record in records[first:])
        return [(group.done, group.ids.tobytes(), group.failures) for group in engine.pack(it)]

    whole = packed(0)
    assert len(whole) == 3
    assert [done for done, _, _ in whole] == [(0, 1024), (0, 2048), (0, 3071)]
    assert sum(len(failures) for _, _, failures in whole) == 61
    for i in range(1, 3):
        assert packed(whole[i - 1][0][1]) == whole[i:]


def test_what_nobody_wants_is_cancelled(engine: Engine) -> None:
    """After a run that ended early the engine serves the next one at once."""
    groups = engine.pack((0, Record(n, "some words " * 20_000), lambda: 0) for n in range(1, 30))
    next(groups)
    groups.close()  # type: ignore[attr-defined]
    (packed,) = engine.pack([(0, Record(1, "after"), lambda: 0)])
    assert (packed.lengths.size, packed.failures) == (1, [])


def test_nothing_in_nothing_out(engine: Engine) -> None:
    """Without records there are no groups."""
    assert list(engine.pack([])) == []
