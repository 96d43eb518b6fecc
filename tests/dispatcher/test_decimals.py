"""Ids as decimal numbers on their way from a slot to a result: who gets them, and that the others get none."""

from __future__ import annotations

import os
import random
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest

from dispatcher.bundle import finished_ids
from dispatcher.finisher import Finisher
from dispatcher.gpu.batch import RouteLimits
from dispatcher.gpu.group import DECIMALS_FROM, Group
from dispatcher.gpu.held_ids import Hold, Holds, held_ids
from dispatcher.gpu.link import EngineLink, Slot
from dispatcher.gpu.local_link import LocalLink
from dispatcher.gpu.table_builder import read_tables
from dispatcher.request import EncodedDocument, EncodeOptions
from dispatcher.special_tokens import SpecialTokens
from gpu_core.host_device import POISON
from gpu_core.ladder import SizeClass
from gpu_core.layout import FLAG_DECIMALS, FLAG_IDS
from tests.dispatcher.host_engine import HostEngine
from tests.dispatcher.route_rig import MODEL, EveryByte, Rig, check
from tests.engine_rig import OPTIONS, completions, model, put, running_link, tables_fd

KIB = 1 << 10
LONG = DECIMALS_FROM


def submit(rig: Rig, *documents: bytes, wants_decimals: bool = True) -> Group:
    """A group that wants them, now."""
    group = Group(MODEL, documents, rig.done.append, lambda *_: None, wants_decimals=wants_decimals)
    rig.simulation.at(0, lambda: rig.route.submit(group))
    return group


def texts(seed: int, sizes: Sequence[int]) -> list[bytes]:
    """Documents of given sizes, whose ids have one digit: as much as there is room for in a full slot."""
    source = random.Random(seed)
    return [bytes(source.choices(range(10), k=size)) for size in sizes]


def listed(document: bytes | memoryview) -> bytes:
    """The ids of a scripted engine, one for each byte."""
    return orjson.dumps(list(document))[1:-1]


def test_long_documents_of_a_group_that_wants_them() -> None:
    """From 16 KiB on; in shared replays and alone, while others beside them get none."""
    rig = Rig()
    mixed = submit(rig, *texts(1, [LONG - 1, LONG, 100, LONG + 5_000]))
    other = submit(rig, *texts(2, [LONG]), wants_decimals=False)
    alone = submit(rig, *texts(3, [300_000]))
    rig.run()
    single = submit(rig, *texts(4, [LONG]))
    rig.run()
    for group in (mixed, other, alone, single):
        check(group)
    assert single.decimals == {0: listed(single.documents[0])}
    assert {document: text == listed(mixed.documents[document]) for document, text in mixed.decimals.items()} == {
        1: True,
        3: True,
    }
    assert other.decimals == {}
    assert alone.decimals == {0: listed(alone.documents[0])}


def test_nothing_is_asked_for_where_it_does_not_pay() -> None:
    """Short documents, counts, and groups that want none launch replays as ever."""
    rig = Rig()
    groups = [submit(rig, *texts(1, [LONG - 1, 50])), submit(rig, *texts(2, [LONG]), wants_decimals=False)]
    rig.run()
    assert rig.engine.launches
    assert not any(flags & FLAG_DECIMALS for *_, flags in rig.engine.launches)
    assert all(group.decimals == {} for group in groups)


def test_what_does_not_fit_is_left_to_the_host() -> None:
    """Ids of three digits need twice the room that there is; a document before the end of the room has them."""
    rig = Rig(sizes=(SizeClass(128 * KIB, 64),))
    group = submit(rig, b"\xff" * LONG, b"\xff" * (60 * KIB), b"\x01" * 100)
    rig.run()
    check(group)
    assert group.decimals == {0: listed(b"\xff" * LONG)}
    again = submit(rig, b"\x01" * (60 * KIB))
    rig.run()
    assert again.decimals == {0: listed(b"\x01" * (60 * KIB))}


def test_a_document_in_several_replays_has_none() -> None:
    """It is put together from ids."""
    rig = Rig(sizes=(SizeClass(32 * KIB, 64),), cuts={MODEL: EveryByte()})
    group = submit(rig, *texts(1, [70_000]))
    rig.run()
    check(group)
    assert group.decimals == {}


def test_a_group_that_takes_several_batches() -> None:
    """Every long document has its own."""
    rig = Rig(limits=RouteLimits(max_batch_bytes=128 * KIB))
    group = submit(rig, *texts(1, [40_000] * 9))
    rig.run()
    check(group)
    assert group.decimals == {i: listed(document) for i, document in enumerate(group.documents)}


@pytest.mark.parametrize("special", [True, False])
def test_special_tokens_stand_around_them(special: bool) -> None:
    """The result has them as it has ids; not when it was truncated, and not for a count."""
    ids = np.array([5, 70, 100_000], "<u4").tobytes()
    around = SpecialTokens(np.array([7, 8], "<u4").tobytes(), np.array([9], "<u4").tobytes())

    def result(**options: Any) -> tuple[bytes, list[int]]:
        finisher = Finisher(around, EncodeOptions(special, **options))
        document = finished_ids(finisher, ids, 3, b"5,70,100000")
        assert document is not None
        return b"".join(document.decimals), np.frombuffer(document.ids, "<u4").tolist()

    expected = [7, 8, 5, 70, 100_000, 9] if special else [5, 70, 100_000]
    assert result() == (orjson.dumps(expected)[1:-1], expected)
    assert result(max_tokens=6) == result()
    assert result(max_tokens=5 if special else 2)[0] == b""
    assert result(count_only=True) == (b"", [])


@pytest.mark.parametrize("special", [True, False])
def test_ids_that_nobody_reads_are_not_copied(special: bool) -> None:
    """Where they are listed, and all of them are the result; memory that they lie in is given back all the same."""
    ids = np.array([5, 70, 100_000], "<u4").tobytes()
    around = SpecialTokens(np.array([7], "<u4").tobytes(), b"")

    def results(decimals: bytes | None, max_tokens: int | None = None) -> tuple[EncodedDocument, EncodedDocument]:
        finisher, freed = Finisher(around, EncodeOptions(special, max_tokens)), list[int]()
        held = held_ids(np.frombuffer(ids, np.uint8), Hold(Holds(1, lambda: freed.append(1))))
        found = [finished_ids(finisher, given, 3, decimals, reads) for given, reads in ((held, False), (ids, True))]
        assert freed == [1]
        assert found[0] is not None
        assert found[1] is not None
        return found[0], found[1]

    unread, read = results(b"5,70,100000")
    assert unread.ids == b""
    assert (unread.n_tokens, unread.decimals, unread.truncated) == (read.n_tokens, read.decimals, False)
    assert read.n_tokens == len(read.ids) // 4 == 3 + special
    for unread, read in (results(None), results(b"5,70,100000", 2)):
        assert unread == read
        assert unread.ids


def written(slot: Slot, n_documents: int) -> list[bytes]:
    """The decimals of each document in a slot."""
    starts = slot.document_decimals[: n_documents + 1].tolist()
    return [bytes(slot.decimals[begin : max(begin, end - 1)]) for begin, end in pairwise(starts)]


def check_link(link: EngineLink) -> None:
    """Replays with and without, by turns on the same slot; there are ids in any case."""
    slot = link.slots(model().key)[0]
    for documents in ([b"one two", b"", b"three 12345"], [b"x"], []):
        expected = [orjson.dumps(model().ids(document))[1:-1] for document in documents]
        for decimals in (True, False, True):
            slot.decimals[:] = bytes(len(slot.decimals))
            slot.ids[:] = POISON
            link.launch(slot, *put(slot, documents), FLAG_DECIMALS if decimals else FLAG_IDS)
            completion = completions(link, 1)[slot.number]
            assert completion.n_tokens == slot.document_tokens[len(documents)]
            ids = [token for document in documents for token in model().ids(document) or ()]
            assert slot.ids[: completion.n_tokens].tolist() == ids
            if decimals:
                assert written(slot, len(documents)) == expected
            else:
                assert not any(slot.decimals)


def test_an_engine_process_writes_them(tmp_path: Path) -> None:
    """Where the frontend reads them."""
    with running_link(tmp_path) as link:
        check_link(link)


def test_the_engine_of_this_process_writes_them(tmp_path: Path) -> None:
    """The same."""
    path = tmp_path / "tokenizer.json"
    path.write_bytes(model().data)
    link = LocalLink(HostEngine({model().key: str(path)}).gpu(OPTIONS), OPTIONS)
    link.load(model().key, read_tables(os.dup(tables_fd("byte_bpe"))))
    check_link(link)
    link.close()
