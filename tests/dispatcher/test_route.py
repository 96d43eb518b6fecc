"""The GPU route in simulated time: every group is answered once and exactly, whatever the engine does."""

from __future__ import annotations

import random
import weakref

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
from dispatcher.gpu.held_ids import HeldIds
from dispatcher.gpu.link import Completion
from dispatcher.gpu.route import GpuRoute
from gpu_core.encoder import NO_CUT
from gpu_core.ladder import SizeClass
from tests.dispatcher.route_rig import MODEL, MS, US, EveryByte, Rig, check, cost_of, packed, texts

KIB = 1 << 10
SMALL = (SizeClass(64, 4), SizeClass(256, 8))
"""A ladder that a few bytes fill."""


def test_random_groups_are_answered_exactly() -> None:
    """Whatever the sizes, each document gets its own ids."""
    rig = Rig()
    source = random.Random(5)
    sizes = [0, 1, 100, 2_000, 3_000, 16_000, 100_000, 300_000, 900_000]
    groups = []
    for number in range(150):
        rare = source.random() < 0.1
        wanted = [source.choice(sizes if rare else sizes[:5]) for _ in range(source.choice([1, 1, 3, 20]))]
        groups.append(rig.submit(*texts(number, wanted), at_ns=1 + number * 20 * US, count_only=number % 7 == 0))
    rig.run()
    assert rig.done.__len__() == len(groups)
    assert not rig.fallen
    for group in groups:
        check(group)
    snapshot = rig.route.snapshot()
    assert snapshot.n_in_flight == snapshot.n_waiting == snapshot.n_waiting_bytes == 0
    assert sum(snapshot.batch_documents.counts) == len(rig.engine.launches) == len(rig.replays)


def test_ids_are_one_copy_or_none() -> None:
    """Few ids come as bytes, many as a view of the slot."""
    rig = Rig()
    group = rig.submit(*texts(1, [2_000, 20_000]))
    rig.run()
    few, many = group.ids
    assert type(few) is bytes
    assert isinstance(many, HeldIds)
    check(group)
    assert not many.flags.writeable
    assert b"".join([b"<", many.data, b">"]) == b"<" + packed(bytes(group.documents[1])) + b">"


def test_counts_copy_nothing() -> None:
    """A batch of counts asks the engine for no ids; beside others a count leaves the ids where they are."""
    rig = Rig(limits=RouteLimits(max_in_flight=1))
    first = rig.submit(*texts(1, [300_000]), count_only=True)
    counted, encoded = rig.submit(b"abc", count_only=True), rig.submit(b"defg")
    rig.run()
    assert [only for *_, only in rig.engine.launches] == [True, False]
    assert (first.n_tokens, first.ids) == ([300_000], [])
    assert (counted.n_tokens, counted.ids) == ([3], [])
    check(encoded)


def test_first_document_does_not_wait_and_the_next_ones_share() -> None:
    """An idle engine starts at once; what comes meanwhile is one batch, launched when the engine is free."""
    rig = Rig()
    first = rig.submit(b"one")
    rest = [rig.submit(b"more", at_ns=1 + number * US) for number in range(1, 4)]
    rig.run()
    assert [launch[2] for launch in rig.engine.launches] == [1, 3]
    assert rig.latency_ns(first) == cost_of(3, 1)
    assert all(rig.done_ns[id(group)] == rig.done_ns[id(rest[0])] for group in rest)


def test_a_second_batch_is_launched_beside_the_first_when_it_is_worth_it() -> None:
    """Enough documents do not wait for the replay under way; nor does enough text; a single one does."""
    rig = Rig(limits=RouteLimits(beside_documents=3, beside_bytes=10_000))
    rig.submit(b"first")
    for _ in range(2):
        rig.submit(b"few")
    assert rig.engine.n_running == 1
    rig.submit(b"few")
    assert rig.engine.n_running == 2
    rig.submit(bytes(10_000))
    assert rig.engine.n_running == 2, "no more than max_in_flight"
    rig.run()
    assert [launch[2] for launch in rig.engine.launches] == [1, 3, 1]


def test_documents_that_the_device_does_not_answer_are_named() -> None:
    """They delay nobody, and the others of their group have ids."""
    rig = Rig()
    rig.engine.needs_cpu = lambda document: "odd" if document.startswith(b"!") else None
    mixed = rig.submit(b"fine", b"!odd", b"fine too")
    large = rig.submit(b"!" + bytes(300_000))
    rig.run()
    assert mixed.needs_cpu == {1: "odd"}
    assert large.needs_cpu == {0: "odd"}
    check(mixed)
    check(large)
    assert rig.route.snapshot().needs_cpu == {"odd": 2}


def test_a_group_larger_than_a_batch_is_split_by_document() -> None:
    """Its parts go one after the other, and others pass between them."""
    rig = Rig(sizes=SMALL, limits=RouteLimits(max_in_flight=1))
    big = rig.submit(*texts(3, [50] * 40))
    small = rig.submit(b"small")
    rig.run()
    check(big)
    check(small)
    assert rig.done == [small, big]
    assert max(launch[1] for launch in rig.engine.launches) <= 256


@pytest.mark.parametrize("count_only", [False, True])
def test_documents_beyond_the_top_class_are_cut_and_joined(count_only: bool) -> None:
    """Several replays answer one document; its ids are those of the whole."""
    rig = Rig(sizes=SMALL, cuts={MODEL: EveryByte()}, limits=RouteLimits(hold_from_bytes=64))
    group = rig.submit(*texts(4, [1_000, 5, 700, 256]), count_only=count_only)
    rig.run()
    assert rig.done == [group]
    check(group)
    assert len(rig.engine.launches) == 4 + 3 + 1 + 1


def test_a_piece_that_needs_the_cpu_names_its_document() -> None:
    """A document is answered as a whole or not at all."""
    rig = Rig(sizes=SMALL, cuts={MODEL: EveryByte()})
    rig.engine.needs_cpu = lambda document: "odd" if b"!" in document else None
    group = rig.submit(b"a" * 300 + b"!" + b"a" * 300, b"b" * 600)
    rig.run()
    assert group.needs_cpu == {0: "odd"}
    check(group)


def test_documents_that_cannot_be_cut_need_the_cpu() -> None:
    """Without a cut the document is named; a group of nothing else is done at once."""
    rig = Rig(sizes=SMALL)
    alone = rig.submit(bytes(1_000))
    assert rig.done == [alone]
    mixed = rig.submit(bytes(1_000), b"short")
    rig.run()
    assert alone.needs_cpu == mixed.needs_cpu == {0: NO_CUT}
    check(mixed)


def test_a_group_without_documents_is_done() -> None:
    """Nothing is launched for it."""
    rig = Rig()
    group = rig.submit()
    assert rig.done == [group]
    assert not rig.engine.launches


def test_small_documents_wait_for_one_large_replay_at_most() -> None:
    """A hundred 2 KiB documents among 8 MiB ones: none waits longer than one large replay, on a device that runs one
    replay at a time."""
    large_bytes = 8 << 20
    rig = Rig(sizes=(SizeClass(4 * KIB, 512), SizeClass(1 << 20, 1 << 17), SizeClass(16 << 20, 1 << 17)), n_each=3)
    large = [rig.submit(bytes(large_bytes), at_ns=1 + number) for number in range(12)]
    small = [rig.submit(bytes(2 * KIB), at_ns=1 + 50 * US * number) for number in range(1, 101)]
    rig.run()
    one_large_ns = cost_of(large_bytes, 1)
    worst = max(rig.latency_ns(group) for group in small)
    assert worst <= one_large_ns + 2 * cost_of(100 * 2 * KIB, 100)
    assert len(rig.done) == len(large) + len(small)
    assert max(rig.latency_ns(group) for group in large) <= 13 * one_large_ns


def test_large_documents_are_not_starved_by_small_ones() -> None:
    """One place is theirs as soon as it is their turn."""
    rig = Rig()
    for number in range(400):
        rig.submit(bytes(16 * KIB), at_ns=1 + 2 * US * number)
    large = rig.submit(bytes(400 * KIB), at_ns=1 + 100 * US)
    rig.run()
    assert rig.latency_ns(large) < 4 * cost_of(1 << 20, 64) + cost_of(400 * KIB, 1)


def test_models_take_turns_by_age() -> None:
    """Documents of one model wait for those of another no longer than their age says."""
    rig = Rig(models=("a", "b"), limits=RouteLimits(max_in_flight=1))
    rig.submit(b"x", model="a")
    for number in range(20):
        rig.submit(bytes(1 << 19), bytes(1 << 19), model="a", at_ns=10 + 2 * number)
    other = rig.submit(b"y", model="b", at_ns=11)
    rig.run()
    assert len(rig.done) == 22
    assert rig.latency_ns(other) < 3 * cost_of(1 << 20, 2)


def test_a_view_keeps_its_slot_until_released() -> None:
    """Nothing is written over ids that somebody still reads; released slots are used again."""
    rig = Rig(sizes=(SizeClass(64 * KIB, 64),), n_each=2)
    first = rig.submit(*texts(1, [30_000]))
    rig.run()
    for seed in range(2, 6):
        later = rig.submit(*texts(seed, [30_000]))
        rig.run()
        assert type(later.ids[0]) is bytes, "the last slot is for replays"
        check(later)
    check(first)
    assert rig.route.snapshot().n_held == 1
    view = first.ids[0]
    assert isinstance(view, HeldIds)
    view.release()
    view.release()
    again = rig.submit(*texts(7, [30_000]))
    rig.run()
    assert isinstance(again.ids[0], HeldIds)
    check(again)


def test_a_view_is_released_by_the_garbage_collector() -> None:
    """Whatever part of it was kept last."""
    rig = Rig(sizes=(SizeClass(64 * KIB, 64),), n_each=2)
    group = rig.submit(*texts(1, [30_000]))
    rig.run()
    part = memoryview(group.ids[0])[4:8]  # type: ignore[arg-type]
    group.ids.clear()
    rig.submit(b"look")
    rig.run()
    assert rig.route.snapshot().n_held == 1
    assert bytes(part) == packed(bytes(group.documents[0][1:2]))
    part.release()
    rig.submit(b"look")
    rig.run()
    assert rig.route.snapshot().n_held == 0


def test_a_caller_that_refers_to_its_group_does_not_keep_it() -> None:
    """The route lets go of the callbacks of a group that was answered, so that no cycle holds a slot."""

    class Caller:
        def __init__(self, route: GpuRoute, document: bytes) -> None:
            self.group = Group(MODEL, [document], self.on_done, lambda *_: None)
            route.submit(self.group)

        def on_done(self, group: Group) -> None:
            assert isinstance(group.ids[0], HeldIds)

    rig = Rig()
    caller = weakref.ref(Caller(rig.route, bytes(20_000)))
    assert caller() is not None
    rig.run()
    assert caller() is None
    rig.submit(b"look")
    rig.run()
    assert rig.route.snapshot().n_held == 0


def test_views_of_one_batch_hold_it_together() -> None:
    """A slot with two views is free when both are gone."""
    rig = Rig(sizes=(SizeClass(256 * KIB, 64),), n_each=2)
    group = rig.submit(*texts(1, [30_000, 30_000, 5]))
    rig.run()
    first, second, small = group.ids
    assert isinstance(first, HeldIds)
    assert isinstance(second, HeldIds)
    assert type(small) is bytes
    first.release()
    rig.submit(b"look")
    rig.run()
    assert rig.route.snapshot().n_held == 1
    second.release()
    rig.submit(b"look")
    rig.run()
    assert rig.route.snapshot().n_held == 0


def test_a_released_slot_lets_waiting_documents_go() -> None:
    """A batch that waits for a slot is launched when a view of it ends, without any other event."""
    rig = Rig(sizes=(SizeClass(64 * KIB, 64), SizeClass(256 * KIB, 64)), n_each=1)
    held = rig.submit(*texts(1, [20_000]))
    rig.run()
    view = held.ids[0]
    assert isinstance(view, HeldIds)
    rig.engine.is_hung = True
    rig.submit(bytes(100_000))
    waiting = rig.submit(bytes(60_000))
    rig.submit(bytes(6_000))
    assert rig.engine.n_running == 1
    view.release()
    rig.run(rig.simulation.now_ns + US)
    assert rig.engine.n_running == 2
    assert waiting.n_waiting == 0


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


def test_long_documents_are_not_filled_by_who_submits_short_ones() -> None:
    """They are left to the thread of the route, which is woken for it and fills them in steps."""
    rig = Rig(sizes=(SizeClass(4 * KIB, 512), SizeClass(4 << 20, 512)))
    first = rig.submit(bytes(3 << 20))
    rig.run()
    rig.engine.is_hung = True
    rig.submit(bytes(3 << 20))
    third = rig.submit(bytes(3 << 20))
    rig.engine.on_due = lambda: None
    first.ids.clear()
    rig.submit(b"short")
    assert rig.route.is_filling
    rig.engine.on_due = lambda: serve_due(rig.route)
    rig.engine.is_hung = False
    rig.run()
    assert len(rig.done) == 4
    check(third)


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


def test_load_tells_the_queue() -> None:
    """What waits and what is under way can be read at any time."""
    rig = Rig(limits=RouteLimits(max_in_flight=2))
    load = rig.route.load(MODEL)
    assert load.ready
    rig.submit(bytes(500))
    launched_ns = rig.simulation.now_ns
    rig.submit(bytes(70))
    rig.submit(bytes(300_000))
    rig.submit(bytes(400_000))
    assert (load.launched_ns, load.launched_bytes, load.waiting_bytes) == (launched_ns, 500, 70)
    assert (load.alone_launched_bytes, load.alone_waiting_bytes) == (300_000, 400_000)
    rig.run()
    assert (load.launched_ns, load.waiting_bytes, load.alone_launched_ns, load.alone_waiting_bytes) == (0, 0, 0, 0)
    rig.route.close()
    assert not load.ready


def test_closing_hands_everything_over() -> None:
    """What waits falls back, `serve` returns, and a link attached later ends at once."""
    rig = Rig(limits=RouteLimits(max_in_flight=1))
    groups = [rig.submit(b"one"), rig.submit(b"two")]
    rig.route.close()
    assert rig.fallen == [(group, NOT_READY) for group in groups]
    assert rig.route.serve(rig.engine) == NOT_READY


def test_a_thread_serves_in_real_time() -> None:
    """`serve` runs until the engine is lost and says why."""
    engine = FakeEngine(None, {MODEL: make_slots(MODEL)})
    route = GpuRoute({})
    left = 50

    def on_done(group: Group) -> None:
        nonlocal left
        check(group)
        left -= 1
        if left:
            route.submit(Group(MODEL, [b"again"] * left, on_done, on_fallback))
        else:
            engine.lose()

    def on_fallback(group: Group, reason: str) -> None:
        raise AssertionError(reason)

    route.attach(engine)
    route.submit(Group(MODEL, [b"once"], on_done, on_fallback))
    reason = ""
    while not reason:
        reason = route.turn(5.0)
    assert (reason, left) == (ENGINE_LOST, 0)
