"""Texts that are written where a GPU reads them: replayed in place, once, and never in memory of somebody else."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from typing import cast

import numpy as np
import pytest

from dispatcher.gpu.group import EncodedGroup
from dispatcher.gpu.reserved_text import ReservedText, lease_of, ordinary_text
from tests.dispatcher.route_rig import MODEL, Rig, check, packed
from tests.dispatcher.test_group_call import Calls
from tests.engine_rig import until
from tests.gpu_rig import GpuRig

LONG = 400_000
TEXT = np.random.default_rng(1).integers(97, 123, LONG, np.uint8).tobytes()


def written(rig: Rig, text: bytes = TEXT) -> ReservedText:
    """A text in the memory of a slot."""
    reserved = rig.route.reserve(MODEL, len(text))
    assert reserved is not None
    reserved.data[:] = text
    return reserved


def submit(rig: Rig, text: ReservedText) -> None:
    """A group of it."""
    group = rig.group(text.data)
    group.lease = lease_of(text)
    rig.route.submit(group)


def n_free(rig: Rig) -> int:
    """Slots that can be reserved for long texts at once."""
    found = []
    while (text := rig.route.reserve(MODEL, LONG)) is not None:
        found.append(text)
    return len(found)


def test_a_text_is_replayed_where_it_is() -> None:
    """In its slot, with the ids of a copied one; and the slot is free once nobody refers to text and ids."""
    rig = Rig(n_each=3)
    before = n_free(rig)
    text = written(rig)
    assert text.lease is not None
    number = text.lease.slot.number
    submit(rig, text)
    rig.run()
    (group,) = rig.done
    check(group)
    assert [launch[0] for launch in rig.engine.launches] == [number]
    assert rig.route.snapshot().n_views == 1
    assert rig.route.snapshot().n_held == 1
    del text
    assert n_free(rig) == before - 1, "the ids lie there"
    rig.done.clear()
    rig.done_ns.clear()
    del group
    assert n_free(rig) == before


def test_the_text_outlives_its_results() -> None:
    """Who still has the text keeps the slot, also after the ids are gone: a worker may have to read it."""
    rig = Rig(n_each=3)
    before = n_free(rig)
    text = written(rig)
    submit(rig, text)
    rig.run()
    rig.done.clear()
    assert n_free(rig) == before - 1
    assert bytes(text) == TEXT


def test_one_slot_is_left_for_replays() -> None:
    """However many are reserved, texts that come otherwise are still replayed."""
    rig = Rig(n_each=3)
    texts = [written(rig)]
    while (text := rig.route.reserve(MODEL, LONG)) is not None:
        texts.append(text)
    rig.submit(bytes(LONG), b"short")
    rig.run()
    assert len(rig.done) == 1
    assert not rig.fallen


def test_short_and_too_long_ones_have_no_slot() -> None:
    """They share replays, or are cut."""
    rig = Rig()
    assert rig.route.reserve(MODEL, 1000) is None
    assert rig.route.reserve(MODEL, 1 << 30) is None
    assert rig.route.reserve("another", LONG) is None


def test_a_beginning_is_replayed_there_too() -> None:
    """What was received may be shorter than what was reserved; what is short shares a replay, from a copy."""
    rig = Rig(n_each=3)
    text = written(rig)
    submit(rig, cast(ReservedText, text[:300_000]))
    rig.run()
    assert [launch[1] for launch in rig.engine.launches] == [300_000]
    again = written(rig)
    submit(rig, cast(ReservedText, again[:300]))
    rig.run()
    assert [group.n_tokens for group in rig.done] == [[300_000], [300]]
    for group in rig.done:
        check(group)


def test_only_the_beginning_and_only_once() -> None:
    """Another part, another type, or a second group of it are copied as any text."""
    rig = Rig(n_each=3)
    text = written(rig)
    assert lease_of(cast(ReservedText, text[1:])) is None
    assert lease_of(cast(ReservedText, text[::2])) is None
    assert lease_of(cast(ReservedText, text.view(np.uint32))) is None
    assert lease_of(ordinary_text(10)) is None
    submit(rig, text)
    submit(rig, text)
    rig.run()
    numbers = [launch[0] for launch in rig.engine.launches]
    assert len(set(numbers)) == 2
    for group in rig.done:
        check(group)


def test_plain_views_keep_the_slot() -> None:
    """Whatever NumPy or a socket was given refers to it."""
    rig = Rig(n_each=3)
    before = n_free(rig)
    for view in (
        lambda text: np.asarray(text),
        lambda text: np.frombuffer(text, np.uint8)[5:],
        lambda text: np.frombuffer(text.data, "<u4"),
        lambda text: text.view(np.ndarray)[5:],
        lambda text: text.data,
        lambda text: text[5:],
        lambda text: text.data[5:],
    ):
        kept = view(written(rig))
        assert n_free(rig) == before - 1
        del kept
        assert n_free(rig) == before


def test_what_leaves_the_queue_gives_its_slot_back() -> None:
    """Cancelled before its launch; and a text that was never used."""
    rig = Rig(n_each=3)
    before = n_free(rig)
    rig.submit(bytes(LONG))
    group = rig.group(written(rig).data)
    text = written(rig)
    group = rig.group(text.data)
    group.lease = lease_of(text)
    rig.route.submit(group)
    group.cancelled = True
    rig.run()
    assert [reason for _, reason in rig.fallen] == ["cancelled"]
    rig.fallen.clear()
    rig.done.clear()
    del group, text
    gc.collect()
    assert n_free(rig) == before


def test_the_memory_of_a_lost_engine_stays_a_text() -> None:
    """A new engine gets a copy of it, though its slots may have the same numbers."""
    rig = Rig(n_each=3)
    text = written(rig)
    rig.engine.lose()
    rig.run()
    rig.attach()
    assert rig.route.reserve(MODEL, LONG) is not None
    submit(rig, text)
    rig.run()
    (group,) = rig.done
    check(group)
    assert bytes(group.documents[0]) == TEXT


@pytest.fixture
def calls() -> Iterator[Calls]:
    """A dispatcher that prefers its GPU, which is not up yet."""
    rig = GpuRig()
    yield Calls(rig)
    rig.close()


@pytest.mark.parametrize("route", ["gpu", "cpu"])
def test_the_dispatcher_takes_reserved_texts(calls: Calls, route: str) -> None:
    """On both routes, with and without a GPU that it was reserved on, with the ids of any text."""
    rig = calls.rig
    early = rig.dispatcher.reserve(rig.tokenizer, LONG)
    assert early.lease is None
    rig.gpus.start()
    late = rig.dispatcher.reserve(rig.tokenizer, LONG)
    assert late.lease is not None
    for text in (early, late, rig.dispatcher.reserve(rig.tokenizer, 50)):
        text.data[:] = TEXT[: len(text)]
        calls.start(text, route=route)
        result: EncodedGroup = calls.result()
        assert result.route == route
        assert bytes(result.ids[0]) == packed(TEXT[: len(text)])
    # They are counted once they were handed out.
    until(lambda: rig.gpus.route(0).snapshot().n_views == (2 if route == "gpu" else 0))


def test_a_reserved_text_that_a_worker_encodes(calls: Calls) -> None:
    """What the device does not answer is read again, from the slot."""
    rig = calls.rig
    rig.gpus.start(needs_cpu=lambda document: "hard")
    text = rig.dispatcher.reserve(rig.tokenizer, LONG)
    assert text.lease is not None
    text.data[:] = TEXT
    calls.start(text, route="gpu")
    del text
    result = calls.result()
    assert (result.route, bytes(result.ids[0])) == ("cpu", packed(TEXT))
