"""Threads: many submit, one serves, others release and cancel, and the engine dies in between."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable

import pytest

from dispatcher.gpu.batch import RouteLimits
from dispatcher.gpu.fake_link import FakeEngine, make_slots
from dispatcher.gpu.group import CANCELLED, ENGINE_LOST, NOT_READY, Group
from dispatcher.gpu.held_ids import HeldIds
from dispatcher.gpu.route import GpuRoute
from gpu_core.ladder import SizeClass
from tests.dispatcher.route_rig import MODEL, EveryByte, check
from tests.engine_rig import until

KIB = 1 << 10
SIZES = (SizeClass(4 * KIB, 64), SizeClass(64 * KIB, 64), SizeClass(512 * KIB, 64))
N_THREADS = 4
N_GROUPS = 150
MOST_GROUPS = 20 * N_GROUPS


class Caller(threading.Thread):
    """Submits groups, some of which it cancels, and notes what becomes of each."""

    def __init__(self, route: GpuRoute, seed: int, goes_on: Callable[[], bool]) -> None:
        """`goes_on`: whether there have to be more groups than `N_GROUPS`."""
        super().__init__()
        self.ends: dict[int, list[str]] = {}
        self.wrong: list[Group] = []
        self.groups: list[Group] = []
        self._route, self._source, self._goes_on = route, random.Random(seed), goes_on
        self._left = threading.Semaphore(0)

    def run(self) -> None:
        """Submit all; a few at a time are not answered yet."""
        source = self._source
        for number in range(MOST_GROUPS):
            if number >= N_GROUPS and not self._goes_on():
                break
            sizes = [source.choice([10, 2_000, 20_000, 300_000, 600_000]) for _ in range(source.choice([1, 1, 5]))]
            if source.random() < 0.8:
                sizes = [min(size, 2_000) for size in sizes]
            documents = [source.randbytes(size) for size in sizes]
            group = Group(MODEL, documents, self._on_done, self._on_fallback, count_only=number % 9 == 0)
            self.groups.append(group)
            self._route.submit(group)
            if source.random() < 0.05:
                group.cancelled = True
            if number >= 20:
                self._left.acquire(timeout=20)

    def _on_done(self, group: Group) -> None:
        try:
            check(group)
        except AssertionError:
            self.wrong.append(group)
        for ids in group.ids:
            if isinstance(ids, HeldIds) and len(ids) % 3:
                ids.release()
        group.ids.clear()
        self._end(group, "done")

    def _on_fallback(self, group: Group, reason: str) -> None:
        self._end(group, reason)

    def _end(self, group: Group, how: str) -> None:
        self.ends.setdefault(id(group), []).append(how)
        self._left.release()


@pytest.mark.parametrize("lost_after", [0, 5, 40])
def test_every_group_ends_once_whatever_the_threads_do(lost_after: int) -> None:
    """With exact results, or one reason; also over the loss of an engine and the start of the next one."""
    # A host that has other things to do is no fault of an engine.
    route = GpuRoute({MODEL: EveryByte()}, RouteLimits(silent_after_s=60.0))
    stop = threading.Event()
    engines: list[FakeEngine] = []

    def serve() -> None:
        while not stop.is_set():
            engine = FakeEngine(None, {MODEL: make_slots(MODEL, SIZES, 3)})
            if lost_after and len(engines) < 3:
                engine.lose_after(lost_after)
            engines.append(engine)
            route.serve(engine)

    server = threading.Thread(target=serve)
    server.start()
    until(lambda: route.ready)
    # How many replays the groups make depends on how many of them come while another one is under way.
    callers = [Caller(route, seed, lambda: bool(lost_after) and len(engines) < 2) for seed in range(N_THREADS)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join(60)
    stop.set()
    route.close()
    server.join(20)
    assert not server.is_alive()
    for caller in callers:
        assert not caller.wrong
        assert set(caller.ends) == set(map(id, caller.groups))
        assert all(len(how) == 1 for how in caller.ends.values())
    how = {one[0] for caller in callers for one in caller.ends.values()}
    assert "done" in how
    assert how <= {"done", CANCELLED, NOT_READY, ENGINE_LOST}
    assert (len(engines) > 1) == bool(lost_after)
