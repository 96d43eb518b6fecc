"""The short way of a long text: the same answers and counts as the ordinary one, and back there for all that is odd."""

from __future__ import annotations

import gc
import logging
import random
import threading
import weakref
from collections.abc import Iterator
from functools import partial
from typing import Any

import numpy as np
import pytest

from dispatcher.errors import Cancelled
from dispatcher.gpu.fake_link import FakeEngine
from dispatcher.gpu.group import EncodedGroup
from dispatcher.gpu.reserved_text import ReservedText
from dispatcher.gpu.short_way import MAX_NOTED, ShortCall
from dispatcher.meter import WorkKey
from dispatcher.request import EncodeOptions
from gpu_core.errors import SidetokError
from tests.dispatcher.group_caller import PLAIN
from tests.dispatcher.test_group_call import Calls
from tests.dispatcher.test_local_engine import make
from tests.engine_rig import until
from tests.gpu_rig import GpuRig

LONG = 300_000
__all__ = ["make"]


def text_of(n_bytes: int = LONG, seed: int = 1) -> bytes:
    """A text."""
    return np.random.default_rng(seed).integers(97, 123, n_bytes, np.uint8).tobytes()


class ShortCalls(Calls):
    """Calls with one reserved text each."""

    def reserved(self, text: bytes) -> ReservedText:
        """A text in a slot."""
        reserved = self.rig.dispatcher.reserve(self.rig.tokenizer, len(text))
        assert reserved.lease is not None
        reserved.data[:] = text
        return reserved

    def one(self, text: bytes = text_of(), **more: Any) -> Any:
        """Call with a text."""
        return self.start(self.reserved(text), **more)

    def opened(self) -> FakeEngine:
        """An engine, after a text on the ordinary way, and another one that is not counted below."""
        engine = self.rig.gpus.start(threaded=False)
        assert not isinstance(self.one(), ShortCall)
        self.right()
        return engine

    def turn(self) -> None:
        """What the route's thread would do."""
        self.rig.gpus.routes[0].turn(0.0)

    def result(self) -> EncodedGroup:
        """See `Calls`."""
        self.turn()
        return super().result()

    def right(self, text: bytes = text_of(), route: str = "gpu") -> None:
        """The next call that ends is told the ids of a text."""
        result = self.result()
        assert np.frombuffer(result.ids[0], "<u4").tolist() == list(text)
        assert (result.n_tokens, result.route) == ([len(text)], route)


@pytest.fixture
def always(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is open stays so."""
    monkeypatch.setattr("dispatcher.gpu.short_way.OPEN_NS", 1 << 60)


@pytest.fixture
def calls(always: None) -> Iterator[ShortCalls]:
    """A dispatcher that prefers its GPU, which is not up yet."""
    rig = GpuRig()
    yield ShortCalls(rig)
    rig.close()


def test_it_opens_behind_a_text_on_the_ordinary_way(calls: ShortCalls) -> None:
    """The same ids, of every text once; metrics count all of them, with the decisions, whichever way they went."""
    calls.opened()
    n = 2 * MAX_NOTED + 3
    for seed in range(n):
        text = text_of(LONG + seed, seed)
        assert isinstance(calls.one(text), ShortCall)
        calls.right(text)
    work = calls.rig.dispatcher.snapshot().work[WorkKey("", "gpu")]
    n_bytes = LONG + sum(LONG + seed for seed in range(n))
    assert (work.n_documents, work.n_bytes, work.n_tokens) == (n + 1, n_bytes, n_bytes)
    assert calls.rig.dispatcher.decisions()["gpu", "policy"] == n + 1
    route = calls.rig.gpus.routes[0].snapshot()
    (replays,) = route.replays.values()
    assert (replays.times.n, replays.n_documents, replays.n_bytes) == (n + 1, n + 1, n_bytes)
    assert route.n_views == n + 1
    assert calls.told.empty()


@pytest.mark.parametrize(
    "more",
    [
        {"options": EncodeOptions(add_special_tokens=False, max_tokens=5)},
        {"options": EncodeOptions(add_special_tokens=False, count_only=True)},
        {"model": "another"},
        {"route": "gpu"},
        {"deadline_ns": 1 << 62},
    ],
    ids=["max_tokens", "count_only", "model", "route", "deadline"],
)
def test_only_for_what_was_asked_before(calls: ShortCalls, more: dict[str, Any]) -> None:
    """Something else takes the ordinary way, with its own results."""
    calls.opened()
    assert not isinstance(calls.one(**more), ShortCall)
    options: EncodeOptions = more.get("options", PLAIN)
    result = calls.result()
    assert result.n_tokens == [min(LONG, options.max_tokens or LONG)]
    assert len(result.ids) == (not options.count_only)
    assert all(np.frombuffer(ids, "<u4").tolist() == list(text_of())[: options.max_tokens] for ids in result.ids)


def test_beginnings_of_texts(calls: ShortCalls) -> None:
    """Whoever received less than was reserved: on the short way, if that is still long; other parts are copied."""
    calls.opened()
    for part, is_short in (
        (slice(0, LONG - 1), True),
        (slice(None), True),
        (slice(0, 100), False),
        (slice(1, LONG), False),
        (slice(0, LONG, 2), False),
    ):
        text = calls.reserved(text_of())[part]
        assert isinstance(calls.start(text), ShortCall) == is_short
        calls.right(text_of()[part])


def test_much_longer_texts_take_the_ordinary_way(calls: ShortCalls) -> None:
    """What was found out holds for texts of about that size."""
    calls.opened()
    assert not isinstance(calls.one(text_of(2 * LONG + 2)), ShortCall)
    calls.right(text_of(2 * LONG + 2))


def test_a_text_is_taken_once(calls: ShortCalls) -> None:
    """The second call with it gets a copy."""
    engine = calls.opened()
    text = calls.reserved(text_of())
    assert isinstance(calls.start(text), ShortCall)
    assert not isinstance(calls.start(text), ShortCall)
    for _ in range(2):
        calls.right()
    assert engine.launches[1][0] != engine.launches[2][0]


def test_the_slot_is_free_when_nobody_looks(calls: ShortCalls) -> None:
    """Held by the text, and by its ids until they are released or gone."""
    calls.opened()
    route = calls.rig.gpus.routes[0]

    def n_held() -> int:
        calls.turn()
        return route.snapshot().n_held

    text = calls.reserved(text_of())
    calls.start(text)
    (ids,) = calls.result().ids
    assert not isinstance(ids, bytes)
    assert n_held() == 1
    part = ids[:8]
    ids.release()
    assert n_held() == 1, "the text is there"
    del text
    assert n_held() == 0
    assert len(part) == 8
    calls.one()
    parts = [ids[:8] for ids in calls.result().ids]
    assert n_held() == 1, "a part of the ids is there"
    del parts
    assert n_held() == 0


def test_what_the_device_leaves_is_encoded_by_a_worker(calls: ShortCalls) -> None:
    """And the next text takes the ordinary way again."""
    engine = calls.opened()
    engine.needs_cpu = lambda document: "hard" if b"!" in document else None
    assert isinstance(calls.one(b"!" + text_of()), ShortCall)
    calls.right(b"!" + text_of(), "cpu")
    assert not isinstance(calls.one(), ShortCall)
    calls.right()
    assert isinstance(calls.one(), ShortCall)
    calls.right()
    snapshot = calls.rig.gpus.routes[0].snapshot()
    assert snapshot.needs_cpu == {"hard": 1}
    assert sum(row.n_documents for row in snapshot.replays.values()) == 4
    work = calls.rig.dispatcher.snapshot().work
    assert (work[WorkKey("", "gpu")].n_documents, work[WorkKey("", "cpu")].n_documents) == (3, 1)


def test_a_lost_engine_costs_no_answer(calls: ShortCalls) -> None:
    """Under way when it is lost, or lost by the launch: the CPU route answers, once; nothing is taken after that."""
    engine = calls.opened()
    engine.is_hung = True
    lost = [calls.one(text_of(seed=seed)) for seed in (2, 3)]
    assert all(isinstance(call, ShortCall) for call in lost)
    engine.lose()
    calls.turn()
    found = [calls.result() for _ in range(2)]
    assert {bytes(result.ids[0]) for result in found} == {
        np.frombuffer(text_of(seed=seed), np.uint8).astype("<u4").tobytes() for seed in (2, 3)
    }
    assert {result.route for result in found} == {"cpu"}
    assert calls.rig.gpus.routes[0].snapshot().fallbacks == {"engine lost": 2}
    engine = calls.opened()
    text = calls.reserved(text_of())
    engine.lose_after(0)
    assert isinstance(calls.start(text), ShortCall)
    calls.right(route="cpu")
    assert not isinstance(calls.start(text), ShortCall)
    calls.right(route="cpu")
    assert calls.told.empty()


def test_a_launch_that_fails_otherwise(calls: ShortCalls, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ends the engine, as on the ordinary way; the text is answered by the CPU route."""
    engine = calls.opened()

    def launch(*_: object) -> None:
        raise RuntimeError("a secret")

    monkeypatch.setattr(engine, "launch", launch)
    calls.one()
    calls.right(route="cpu")
    assert not calls.rig.gpus.routes[0].ready


def test_a_text_of_a_lost_engine_takes_the_ordinary_way(calls: ShortCalls) -> None:
    """It is copied to the next engine."""
    engine = calls.opened()
    text = calls.reserved(text_of(seed=5))
    engine.lose()
    calls.turn()
    calls.opened()
    assert not isinstance(calls.start(text), ShortCall)
    calls.right(text_of(seed=5))


def test_cancelled_calls_are_told_so(calls: ShortCalls) -> None:
    """When there is no result before the engine is lost."""
    engine = calls.opened()
    engine.is_hung = True
    calls.one().cancel()
    engine.lose()
    calls.turn()
    assert isinstance(calls.error(), Cancelled)
    assert calls.told.empty()


def test_results_that_are_there_are_told(calls: ShortCalls) -> None:
    """To whoever cancelled, too."""
    engine = calls.opened()
    engine.is_hung = True
    call = calls.one()
    call.cancel()
    engine.is_hung = False
    calls.right()


def test_a_callback_that_fails(calls: ShortCalls, caplog: pytest.LogCaptureFixture) -> None:
    """Is logged, without what it was about; others are answered."""
    calls.opened()

    def fail(result: EncodedGroup | None, error: SidetokError | None) -> None:
        raise RuntimeError("a secret")

    with caplog.at_level(logging.ERROR):
        text = calls.reserved(text_of())
        dispatcher, tokenizer = calls.rig.dispatcher, calls.rig.tokenizer
        call = dispatcher.encode_group(tokenizer, [text], fail, EncodeOptions(add_special_tokens=False))
        assert isinstance(call, ShortCall)
        calls.turn()
        assert len(caplog.records) == 1
    assert "secret" not in caplog.text
    calls.one()
    calls.right()


def test_nothing_of_a_caller_is_kept(calls: ShortCalls) -> None:
    """What was found out outlives the call that it was found out by, but not its callback, its text or its results."""

    class Caller:
        def __init__(self) -> None:
            self.is_told = False

        def on_done(self, result: EncodedGroup | None, error: SidetokError | None) -> None:
            self.is_told = True

    calls.rig.gpus.start(threaded=False)
    for expected in (False, True):
        caller, text = Caller(), calls.reserved(text_of())
        call = calls.rig.dispatcher.encode_group(calls.rig.tokenizer, [text], caller.on_done, PLAIN)
        assert isinstance(call, ShortCall) == expected
        calls.turn()
        assert caller.is_told
        gone = weakref.ref(caller)
        del call, text, caller
        gc.collect()
        assert gone() is None


def test_a_model_that_is_gone(calls: ShortCalls) -> None:
    """Nothing is taken for it any more; what is under way is answered."""
    engine = calls.opened()
    engine.is_hung = True
    calls.one()
    text = calls.reserved(text_of())
    calls.rig.gpus.routes[0].forget(calls.rig.tokenizer.spec.digest)
    assert not isinstance(calls.start(text), ShortCall)
    engine.is_hung = False
    for _ in range(2):
        calls.right()


def test_closing_answers_what_is_under_way(calls: ShortCalls) -> None:
    """By the CPU route."""
    calls.opened().is_hung = True
    calls.one()
    calls.rig.gpus.routes[0].close()
    calls.right(route="cpu")


def test_many_threads(calls: ShortCalls) -> None:
    """Long and short texts of many threads, while the engine leaves some of them: each is answered once, exactly."""
    calls.rig.gpus.start(needs_cpu=lambda document: "hard" if document.endswith(b"q") else None)
    told: dict[int, list[bytes]] = {}
    texts = {number: text_of(LONG if number % 3 else 100, number) for number in range(48)}

    def submit(numbers: range) -> None:
        for number in numbers:

            def on_done(result: EncodedGroup | None, error: Any, number: int = number) -> None:
                assert result is not None, error
                told.setdefault(number, []).append(bytes(result.ids[0]))

            text: Any = calls.rig.dispatcher.reserve(calls.rig.tokenizer, len(texts[number]))
            text.data[:] = texts[number]
            calls.rig.dispatcher.encode_group(calls.rig.tokenizer, [text], on_done, PLAIN)
            if random.Random(number).random() < 0.5:
                until(partial(told.__contains__, number))

    threads = [threading.Thread(target=submit, args=(range(first, 48, 6),)) for first in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    until(lambda: len(told) == len(texts))
    expected = {number: [np.frombuffer(text, np.uint8).astype("<u4").tobytes()] for number, text in texts.items()}
    assert told == expected
    work = calls.rig.dispatcher.snapshot().work
    assert sum(row.n_documents for row in work.values()) == len(texts)
