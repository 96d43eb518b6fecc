"""What the short way counts: the same as the ordinary one, whatever becomes of a text, by whomever it is read."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from dispatcher.gpu.group import EncodedGroup
from dispatcher.gpu.short_way import ShortCall
from dispatcher.meter import WorkKey
from gpu_core.errors import SidetokError
from tests.dispatcher.group_caller import PLAIN
from tests.dispatcher.test_short_way import LONG, ShortCalls, always, calls, text_of
from tests.gpu_rig import KEY

__all__ = ["always", "calls"]
ORDINARY: dict[str, Any] = {"deadline_ns": 1 << 62}
BOTH = pytest.mark.parametrize("more", [{}, ORDINARY], ids=["short", "ordinary"])


def n_documents(calls: ShortCalls) -> int:
    """That a GPU answered."""
    return calls.rig.dispatcher.snapshot().work[WorkKey("", "gpu")].n_documents


def n_decisions(calls: ShortCalls) -> int:
    """For a GPU, because it was asked for."""
    return calls.rig.dispatcher.decisions()["gpu", "policy"]


def n_replayed(calls: ShortCalls) -> int:
    """Documents in replays that ended well."""
    return sum(row.n_documents for row in calls.rig.gpus.routes[0].snapshot().replays.values())


@BOTH
def test_counted_when_told(calls: ShortCalls, more: dict[str, Any]) -> None:
    """Whoever looks in the callback sees its text."""
    calls.opened()
    seen: list[int] = []

    def on_done(result: EncodedGroup | None, error: SidetokError | None) -> None:
        seen.append(n_documents(calls))

    text = calls.reserved(text_of())
    call = calls.rig.dispatcher.encode_group(calls.rig.tokenizer, [text], on_done, PLAIN, **more)
    assert isinstance(call, ShortCall) == (not more)
    calls.turn()
    assert seen == [2]


@BOTH
def test_a_callback_that_is_interrupted(calls: ShortCalls, more: dict[str, Any]) -> None:
    """Its text was answered."""
    calls.opened()

    def on_done(result: EncodedGroup | None, error: SidetokError | None) -> None:
        raise KeyboardInterrupt

    text = calls.reserved(text_of())
    calls.rig.dispatcher.encode_group(calls.rig.tokenizer, [text], on_done, PLAIN, **more)
    with pytest.raises(KeyboardInterrupt):
        calls.turn()
    assert n_documents(calls) == 2


def test_a_callback_that_sees_the_engine_replaced(calls: ShortCalls) -> None:
    """What was noted of the old one is counted."""
    engine = calls.opened()
    told: list[str] = []

    def on_done(result: EncodedGroup | None, error: SidetokError | None) -> None:
        assert result is not None
        told.append(result.route)
        engine.lose()
        calls.rig.gpus.routes[0].close()
        calls.rig.gpus.start(threaded=False)

    text = calls.reserved(text_of())
    calls.rig.dispatcher.encode_group(calls.rig.tokenizer, [text], on_done, PLAIN)
    calls.turn()
    assert told == ["gpu"]
    assert n_documents(calls) == 2


def test_a_model_that_is_forgotten_meanwhile(calls: ShortCalls) -> None:
    """Its last text is counted like the others."""
    engine = calls.opened()
    engine.is_hung = True
    assert isinstance(calls.one(), ShortCall)
    calls.rig.gpus.routes[0].forget(KEY)
    engine.is_hung = False
    calls.right()
    assert (n_documents(calls), n_decisions(calls), n_replayed(calls)) == (2, 2, 2)


@BOTH
@pytest.mark.parametrize("is_lost", [False, True])
def test_texts_that_take_the_cpu_route_in_the_end(calls: ShortCalls, more: dict[str, Any], is_lost: bool) -> None:
    """The choice was made."""
    engine = calls.opened()
    engine.needs_cpu = lambda document: "hard"
    engine.is_hung = is_lost
    assert isinstance(calls.one(**more), ShortCall) == (not more)
    if is_lost:
        engine.lose()
    calls.right(route="cpu")
    assert (n_documents(calls), n_decisions(calls), n_replayed(calls)) == (1, 2, 1 if is_lost else 2)


def test_cpu_time(calls: ShortCalls) -> None:
    """Of the engine for each text, and of turns for one in a few."""
    calls.rig.gpus.start(threaded=False, engine_cpu_ns=1_000)
    route = calls.rig.gpus.routes[0]
    for n in (1, 65):
        calls.one()
        calls.right()
        if n == 1:
            before = route.snapshot().deliver_cpu_ns
            for _ in range(64):
                calls.one()
                calls.result()
    assert route.engine_cpu_ns == 66_000
    assert route.snapshot().engine_cpu_ns == 66_000
    assert route.snapshot().deliver_cpu_ns > before


@BOTH
def test_the_queue_shows_what_is_under_way(calls: ShortCalls, more: dict[str, Any]) -> None:
    """Others are predicted, and reserved for, by that."""
    engine = calls.opened()
    engine.is_hung = True
    assert isinstance(calls.one(**more), ShortCall) == (not more)
    route = calls.rig.gpus.routes[0]
    load = route.load(KEY)
    assert (route.snapshot().n_in_flight, load.alone_launched_bytes) == (1, LONG)
    assert load.alone_launched_ns > 0
    engine.is_hung = False
    calls.right()
    assert (route.snapshot().n_in_flight, load.alone_launched_bytes, load.alone_launched_ns) == (0, 0, 0)


def test_views_over_engines(calls: ShortCalls) -> None:
    """A counter never falls."""
    calls.opened()
    calls.one()
    calls.right()
    route = calls.rig.gpus.routes[0]
    assert route.snapshot().n_views == 2
    calls.rig.gpus.engines[0].lose()  # type: ignore[union-attr]
    calls.turn()
    calls.opened()
    assert route.snapshot().n_views == 3


def test_readers_leave_nothing_behind(calls: ShortCalls) -> None:
    """Each thread that reads counts what was noted."""
    calls.opened()
    n_tallies = len(calls.rig.dispatcher._router.tallies)
    for number in range(10):
        calls.one()
        calls.right()
        reader = threading.Thread(target=n_documents, args=(calls,))
        reader.start()
        reader.join()
        assert n_documents(calls) == number + 2
    assert len(calls.rig.dispatcher._router.tallies) == n_tallies


def test_a_call_that_is_kept_keeps_no_slot(calls: ShortCalls) -> None:
    """Nor its callback, its text or its results."""
    calls.opened()
    kept = []
    for seed in range(3):
        kept.append(calls.one(text_of(seed=seed)))
        calls.right(text_of(seed=seed))
    assert all(isinstance(call, ShortCall) for call in kept)
    calls.turn()
    assert calls.rig.gpus.routes[0].snapshot().n_held == 0


def test_the_queue_is_empty_in_the_end(calls: ShortCalls) -> None:
    """Whatever another thread wrote meanwhile: what is under way is summed up anew."""
    engine = calls.opened()
    engine.is_hung = True
    load = calls.rig.gpus.routes[0].load(KEY)
    for seed in (2, 3):
        assert isinstance(calls.one(text_of(seed=seed)), ShortCall)
    assert load.alone_launched_bytes == 2 * LONG
    load.alone_launched_bytes += LONG
    engine.is_hung = False
    for seed in (2, 3):
        calls.right(text_of(seed=seed))
    assert (load.alone_launched_bytes, load.alone_launched_ns) == (0, 0)
