"""How groups leave the GPU route without an answer: cancelled, expired, refused, or with the engine that was lost."""

from __future__ import annotations

import pytest

from dispatcher.gpu.batch import RouteLimits
from dispatcher.gpu.fake_link import FakeEngine, Simulation, make_slots, serve_due
from dispatcher.gpu.group import (
    CANCELLED,
    ENGINE_LOST,
    ENGINE_SILENT,
    EXPIRED,
    NO_SLOT,
    NOT_READY,
    UNREADABLE,
    Group,
)
from dispatcher.gpu.link import Completion
from dispatcher.gpu.route import GpuRoute
from tests.dispatcher.route_rig import MODEL, MS, SMALL, US, EveryByte, Rig, check, texts


def test_cancelled_and_expired_groups_leave_before_they_are_launched() -> None:
    """They are told once, and no replay holds them."""
    rig = Rig(limits=RouteLimits(max_in_flight=1))
    rig.submit(b"first")
    cancelled, kept, large = rig.submit(b"a"), rig.submit(b"b"), rig.submit(bytes(300_000))
    expired = rig.group(b"c", deadline_ns=rig.simulation.now_ns + US)
    rig.route.submit(expired)
    cancelled.cancelled = large.cancelled = True
    rig.run()
    assert sorted(reason for _group, reason in rig.fallen) == [CANCELLED, CANCELLED, EXPIRED]
    assert {id(group) for group, _reason in rig.fallen} == {id(cancelled), id(large), id(expired)}
    assert kept in rig.done
    assert [launch[1] for launch in rig.engine.launches] == [5, 1]
    assert rig.route.snapshot().n_waiting_bytes == 0


def test_a_cancelled_group_stops_between_its_batches() -> None:
    """What was launched ends, the rest leaves, and it is told once."""
    rig = Rig(sizes=SMALL, limits=RouteLimits(max_in_flight=1))
    group = rig.submit(*texts(3, [50] * 40))
    group.cancelled = True
    rig.run()
    assert rig.fallen == [(group, CANCELLED)]
    assert not rig.done
    assert len(rig.engine.launches) == 1


@pytest.mark.parametrize("when_ns", [1, 10 * US, 35 * US, 90 * US, 200 * US])
def test_a_lost_engine_hands_over_every_group_once(when_ns: int) -> None:
    """In flight, queued, split, large: each is answered by ids or handed to its fallback, never both."""
    rig = Rig(cuts={MODEL: EveryByte()})
    groups = [rig.submit(*texts(number, [2_000, 300_000, 5_000_000][: 1 + number % 3]), at_ns=1 + 8 * US * number)
              for number in range(20)]  # fmt: skip
    rig.simulation.at(when_ns, rig.engine.lose)
    rig.run()
    assert len(rig.done) + len(rig.fallen) == len(groups)
    assert {id(group) for group in rig.done} | {id(group) for group, _ in rig.fallen} == set(map(id, groups))
    assert {reason for _group, reason in rig.fallen} <= {ENGINE_LOST, NOT_READY}
    assert not rig.route.ready
    for group in rig.done:
        check(group)


def test_an_engine_lost_at_a_launch() -> None:
    """The group whose launch failed falls back, too, in `submit` itself."""
    rig = Rig()
    rig.engine.lose_after(1)
    first = rig.submit(b"one")
    second = rig.submit(*[b"x"] * 10)
    assert {id(group) for group, _reason in rig.fallen} == {id(first), id(second)}
    rig.run()
    assert len(rig.fallen) == 2
    assert not rig.done


def test_a_new_incarnation_serves() -> None:
    """After a loss, groups fall back until the next engine is there; results of the old one stay what they are."""
    rig = Rig()
    old = rig.submit(*texts(1, [30_000]))
    rig.run()
    rig.engine.lose()
    rig.run()
    late = rig.submit(b"nobody")
    assert rig.fallen == [(late, NOT_READY)]
    rig.attach()
    assert rig.route.ready
    new = rig.submit(b"hello")
    rig.run()
    check(new)
    check(old)
    snapshot = rig.route.snapshot()
    assert snapshot.fallbacks == {NOT_READY: 1}
    assert sum(replays.times.n for replays in snapshot.replays.values()) == 2


def test_a_hung_replay_ends_the_engine() -> None:
    """After `silent_after_s` without an end, everything falls back, and late completions mean nothing."""
    rig = Rig(limits=RouteLimits(silent_after_s=0.01))
    rig.engine.is_hung = True
    first, second = rig.submit(b"one"), rig.submit(b"two")
    for number in range(1, 20):
        rig.simulation.at(number * MS, lambda: rig.route.turn(1.0))
    rig.run()
    assert rig.fallen == [(first, ENGINE_SILENT), (second, ENGINE_SILENT)]
    rig.engine.is_hung = False
    rig.route.turn(1.0)
    assert not rig.done


def test_an_engine_that_starts_slowly_is_not_asked() -> None:
    """Until it is ready, groups fall back at once."""
    simulation = Simulation()
    engine = FakeEngine(simulation, {MODEL: make_slots(MODEL)}, ready_ns=5 * MS)
    route = GpuRoute({}, clock=simulation.clock)
    route.attach(engine)
    engine.on_due = lambda: serve_due(route)
    done: list[Group] = []
    fallen: list[str] = []

    def submit() -> None:
        route.submit(Group(MODEL, [b"x"], done.append, lambda _group, reason: fallen.append(reason)))

    submit()
    assert (route.ready, route.load(MODEL).ready, fallen) == (False, False, [NOT_READY])
    simulation.at(6 * MS, submit)
    simulation.run()
    assert route.ready
    assert len(done) == 1


def test_a_model_that_the_engine_does_not_have() -> None:
    """Its groups fall back; it is served once the engine has loaded it, and no more when it is forgotten."""
    rig = Rig(limits=RouteLimits(max_in_flight=1))
    assert not rig.route.serves("other")
    assert not rig.route.load("other").ready
    rig.submit(b"x", model="other")
    assert [reason for _group, reason in rig.fallen] == [NOT_READY]
    rig.engine.add_model(make_slots("other", first_number=500))
    assert rig.route.serves("other")
    running, waiting = rig.submit(b"x", model="other"), rig.submit(b"y", model="other")
    large = rig.submit(bytes(300_000), model="other")
    rig.route.forget("other")
    rig.run()
    assert rig.done == [running]
    assert [(group, reason) for group, reason in rig.fallen[1:]] == [(waiting, NOT_READY), (large, NOT_READY)]
    assert {key.model_key for key in rig.route.snapshot().replays} == {""}


def test_a_document_without_a_slot() -> None:
    """A ladder that changed since a document was cut for it hands the group back."""
    rig = Rig(sizes=SMALL, cuts={MODEL: EveryByte()})
    queue = rig.route._incarnation.queue_of(MODEL)  # type: ignore[union-attr]
    group = rig.group(bytes(1_000))
    rig.route._incarnation.submit(queue, group)  # type: ignore[union-attr, arg-type]
    assert rig.fallen == [(group, NO_SLOT)]


def test_what_is_no_text_falls_back() -> None:
    """A document that cannot be copied takes its batch to the CPU, and the route goes on."""
    rig = Rig()
    bad = rig.submit("text instead of bytes")  # type: ignore[arg-type]
    bad_large = rig.submit("x" * 300_000)  # type: ignore[arg-type]
    good = rig.submit(b"good")
    rig.run()
    assert rig.fallen == [(bad, UNREADABLE), (bad_large, UNREADABLE)]
    check(good)


def test_results_that_make_no_sense_end_the_engine(caplog: pytest.LogCaptureFixture) -> None:
    """An engine that cannot be understood is not asked again; every group falls back once."""
    rig = Rig(limits=RouteLimits(max_in_flight=1))
    wait = rig.engine.wait

    def wait_for_nonsense(timeout_s: float | None) -> list[Completion]:
        completions = wait(timeout_s)
        for completion in completions:
            completion.slot.ids = None  # type: ignore[assignment]
        return completions

    rig.engine.wait = wait_for_nonsense  # type: ignore[method-assign]
    first, second = rig.submit(b"one"), rig.submit(b"two")
    rig.run()
    assert rig.fallen == [(first, UNREADABLE), (second, ENGINE_LOST)]
    assert not rig.route.ready
    assert "cannot be read" in caplog.text


def test_a_failing_callback_keeps_nobody_from_their_answer() -> None:
    """It is logged without a text."""
    rig = Rig()

    def fail(group: Group) -> None:
        raise RuntimeError("secret")

    rig.submit(b"first")
    rig.route.submit(Group(MODEL, [b"x"], fail, lambda _group, _reason: None))
    last = rig.submit(b"last")
    rig.run()
    check(last)
    assert last in rig.done


def test_closing_hands_everything_over() -> None:
    """What waits falls back, `serve` returns, and a link attached later ends at once."""
    rig = Rig(limits=RouteLimits(max_in_flight=1))
    groups = [rig.submit(b"one"), rig.submit(b"two")]
    rig.route.close()
    assert rig.fallen == [(group, NOT_READY) for group in groups]
    assert rig.route.serve(rig.engine) == NOT_READY
