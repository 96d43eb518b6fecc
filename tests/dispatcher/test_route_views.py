"""Ids that are handed out without a copy: the slot is kept for as long as somebody reads it, and no longer."""

from __future__ import annotations

import weakref

from dispatcher.gpu.group import (
    Group,
)
from dispatcher.gpu.held_ids import HeldIds
from dispatcher.gpu.route import GpuRoute
from gpu_core.ladder import SizeClass
from tests.dispatcher.route_rig import MODEL, US, Rig, check, packed, texts

KIB = 1 << 10


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
