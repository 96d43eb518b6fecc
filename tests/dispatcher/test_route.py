"""The GPU route in simulated time: every group is answered once and exactly, whatever the engine does."""

from __future__ import annotations

import random

import pytest

from dispatcher.gpu.batch import RouteLimits
from dispatcher.gpu.fake_link import FakeEngine, make_slots, serve_due
from dispatcher.gpu.group import (
    ENGINE_LOST,
    Group,
)
from dispatcher.gpu.route import GpuRoute
from gpu_core.encoder import NO_CUT
from gpu_core.ladder import SizeClass
from gpu_core.layout import FLAG_IDS
from tests.dispatcher.route_rig import MODEL, SMALL, US, EveryByte, Rig, check, cost_of, texts

KIB = 1 << 10


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


def test_counts_copy_nothing() -> None:
    """A batch of counts asks the engine for no ids; beside others a count leaves the ids where they are."""
    rig = Rig(limits=RouteLimits(max_in_flight=1))
    first = rig.submit(*texts(1, [300_000]), count_only=True)
    counted, encoded = rig.submit(b"abc", count_only=True), rig.submit(b"defg")
    rig.run()
    assert [flags for *_, flags in rig.engine.launches] == [0, FLAG_IDS]
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
