"""The GPU route when something breaks that should not: nobody is left without an answer, and no place is lost."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import pytest

from dispatcher.gpu import incarnation as incarnation_module
from dispatcher.gpu import staging
from dispatcher.gpu.batch import RouteLimits
from dispatcher.gpu.group import ENGINE_LOST, UNREADABLE
from dispatcher.gpu.link import Completion
from dispatcher.gpu.model_queue import Batch
from dispatcher.gpu.replay import Replay
from dispatcher.gpu.staging import STEP_BYTES
from gpu_core.ladder import SizeClass
from tests.dispatcher.route_rig import MODEL, Rig, check

KIB = 1 << 10
SIZES = (SizeClass(4 * KIB, 512), SizeClass(4 << 20, 512))


def serve_on(rig: Rig) -> str:
    """What the route's thread does with the engine that the route has already; why it ended."""
    rig.route.attach = lambda link: None  # type: ignore[method-assign]
    return rig.route.serve(rig.engine)


def test_an_engine_that_ends_while_a_document_is_filled(monkeypatch: pytest.MonkeyPatch) -> None:
    """The route's thread is between two steps of a document when another thread's launch fails: it falls back, too."""
    rig = Rig(sizes=SIZES)
    fill = staging.fill_alone
    steps: list[int] = []

    def lose_within_a_step(batch: Batch, n_filled: int, n_bytes: int) -> int:
        if n_bytes == STEP_BYTES:
            steps.append(n_filled)
            rig.engine.lose_after(0)
            rig.submit(b"short")
        return fill(batch, n_filled, n_bytes)

    monkeypatch.setattr(incarnation_module, "fill_alone", lose_within_a_step)
    long = [rig.submit(bytes(3 << 20)) for _ in range(4)]
    rig.run()
    told = [*rig.done, *(group for group, _reason in rig.fallen)]
    assert steps == [0]
    assert [told.count(group) for group in long] == [1, 1, 1, 1]


@pytest.mark.parametrize("step", ["fill_shared", "fill_alone"])
def test_no_memory_to_fill_a_slot(monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    """Its groups take the CPU route, and the place and the slot are free for the next ones."""
    rig = Rig(limits=RouteLimits(max_in_flight=1))
    document = bytes(10 if step == "fill_shared" else 300 * KIB)

    def fail(*_: Any) -> int:
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(incarnation_module, step, fail)
        failed = [rig.submit(document) for _ in range(10)]
    rig.run()
    assert rig.fallen == [(group, UNREADABLE) for group in failed]
    good = [rig.submit(document) for _ in range(3)]
    rig.run()
    assert rig.done == good


def test_whoever_counts_replays_fails() -> None:
    """Results that are there are handed out; then the engine is given up, and what waits falls back."""
    rig = Rig(limits=RouteLimits(max_in_flight=1))

    def fail(replay: Replay) -> None:
        raise RuntimeError

    rig.route._on_replay = fail
    rig.attach()
    done, waiting = rig.submit(b"done"), rig.submit(b"waiting")
    rig.engine.on_due = lambda: None
    rig.run()
    assert serve_on(rig) == ENGINE_LOST
    check(done)
    assert rig.done == [done]
    assert rig.fallen == [(waiting, ENGINE_LOST)]


def test_a_link_that_fails_in_an_unknown_way(caplog: pytest.LogCaptureFixture) -> None:
    """The thread of the route lives, and everything falls back; no text is logged."""
    rig = Rig()
    rig.engine.on_due = lambda: None

    def fail(timeout_s: float | None) -> list[Completion]:
        raise KeyError("a text")

    groups = [rig.submit(b"one"), rig.submit(b"two")]
    rig.engine.wait = fail  # type: ignore[method-assign]
    assert serve_on(rig) == ENGINE_LOST
    assert rig.fallen == [(group, ENGINE_LOST) for group in groups]
    assert not rig.route.ready
    assert "KeyError" in caplog.records[-1].__dict__["error"]
    assert "a text" not in caplog.text


def test_a_launch_that_fails_in_an_unknown_way() -> None:
    """The submitting thread is told nothing; the engine is given up, and every group falls back once."""
    rig = Rig()

    def fail(*_: Any) -> None:
        raise KeyError

    first = rig.submit(b"first")
    rig.engine.launch = fail  # type: ignore[assignment, method-assign]
    others = [rig.submit(bytes(300 * KIB)), *(rig.submit(b"x" * KIB) for _ in range(40))]
    rig.run()
    assert sorted(id(group) for group, _reason in rig.fallen) == sorted(map(id, [first, *others]))
    assert {reason for _group, reason in rig.fallen} == {ENGINE_LOST}
    assert rig.route.load(MODEL).ready is False


def test_the_memory_of_a_lost_engine_goes_at_once() -> None:
    """No slot waits for the garbage collector, except those that somebody still reads."""
    gc.collect()
    gc.disable()
    try:
        rig = Rig(limits=RouteLimits(max_in_flight=1))
        (slots,) = rig.engine._slots.values()
        slots_left = [weakref.ref(slot.ids) for slot in slots]
        assert rig.route.load(MODEL).ready
        rig.engine._slots.clear()
        del slots
        held = rig.submit(bytes(300 * KIB))
        rig.run()
        rig.submit(b"running")
        rig.submit(bytes(300 * KIB))
        rig.engine.lose()
        rig.engine._running.clear()
        rig.run()
        assert len(rig.fallen) == 2
        rig.fallen.clear()
        assert sum(ids() is not None for ids in slots_left) == 1
        check(held)
        rig.done.clear()
        del held
        assert not any(ids() is not None for ids in slots_left)
    finally:
        gc.enable()
