"""Fair shares of a GPU, in simulated time: what a flood of one client costs another, and that nothing is lost."""

from __future__ import annotations

import random

import numpy as np
import pytest

from dispatcher.flow_queue import FAIR_JOBS
from dispatcher.gpu.group import Group
from dispatcher.gpu_gate import GpuGate
from dispatcher.policy import GpuLoad
from tests.dispatcher.route_rig import MODEL, MS, US, Rig, cost_of

LONG, SHORT = 200_000, 2_000
ON_ROUTE = 2 << 20
"""Less than in real life, so that fewer documents are a flood."""
NOTHING = np.zeros(0, np.uint32)


def waits_ns(rig: Rig, gate: GpuGate | None, n_bytes: int, n_flood: int) -> list[int]:
    """How long another client waits for a short document every millisecond, while one client floods the route."""
    asked: list[tuple[int, Group]] = []
    rig.engine.encode = lambda document: NOTHING
    texts = {size: bytes(size) for size in (n_bytes, SHORT)}

    def ask(size: int, flow: str) -> Group:
        group = rig.group(texts[size])
        if gate is None:
            rig.route.submit(group)
        else:
            gate.submit(rig.route, group, flow)
        return group

    for _ in range(n_flood):
        rig.simulation.at(0, lambda: ask(n_bytes, "flood"))
    for at_ns in range(1 * US, 20 * MS, MS):
        rig.simulation.at(at_ns, lambda at=at_ns: asked.append((at, ask(SHORT, "other"))))  # type: ignore[misc]
    rig.simulation.run()
    assert len(rig.done) == n_flood + len(asked)
    return [rig.done_ns[id(group)] - at_ns for at_ns, group in asked]


def bound_ns(n_bytes: int) -> int:
    """What the route holds, the first ones, and some replays."""
    ahead = ON_ROUTE + FAIR_JOBS * n_bytes
    return cost_of(ahead, ahead // n_bytes) + (ahead // (1 << 20) + 4) * cost_of(1 << 20, 8)


@pytest.mark.parametrize(("n_bytes", "n_flood"), [(LONG, 500), (1_000_000, 120)])
def test_a_flood_delays_others_by_what_the_route_holds(n_bytes: int, n_flood: int) -> None:
    """And not by all that the flood has in flight, whether its documents share replays or have their own."""
    fair = max(waits_ns(Rig(), GpuGate(ON_ROUTE), n_bytes, n_flood))
    assert fair < bound_ns(n_bytes)
    if n_bytes == LONG:
        first_come = max(waits_ns(Rig(), None, n_bytes, n_flood))
        assert first_come > 4 * fair


def test_a_flood_alone_is_not_slower() -> None:
    """The GPU has always enough to do."""
    ends = []
    for gate in (GpuGate(ON_ROUTE), None):
        rig = Rig()
        waits_ns(rig, gate, LONG, 500)
        ends.append(max(rig.done_ns.values()))
    assert ends[0] <= 1.02 * ends[1]


def test_what_waits_counts_for_predictions() -> None:
    """It is on the way to the route, and whoever chooses has to know."""
    rig, gate = Rig(), GpuGate(route_bytes=1)
    load = GpuLoad(ready=True, waiting_bytes=7)
    assert gate.with_waiting(load) is load
    for _ in range(3):
        gate.submit(rig.route, rig.group(bytes(1000)), "a")
    assert gate.is_full
    assert gate.with_waiting(load).waiting_bytes > 2000
    rig.simulation.run()
    assert not gate.is_full
    assert gate.with_waiting(load) is load


def test_a_lost_engine_lets_all_go() -> None:
    """Groups that wait fall back, too, each once, however many there are; the next engine serves the next ones."""
    rig, gate = Rig(), GpuGate(route_bytes=1)
    source = random.Random(3)
    groups = [rig.group(bytes(source.randrange(100))) for _ in range(1000)]
    for group in groups:
        gate.submit(rig.route, group, source.choice("abc"))
    rig.engine.lose()
    rig.simulation.run()
    assert len(rig.fallen) == len(groups)
    rig.attach()
    gate.submit(rig.route, rig.group(b"later"), "a")
    rig.simulation.run()
    assert len(rig.done) == 1
    assert rig.route.load(MODEL).waiting_bytes == 0


class Broken:
    """A route that fails."""

    def submit(self, group: Group) -> None:
        """Fail."""
        raise RuntimeError


def test_what_a_route_fails_to_take_falls_back() -> None:
    """Also what waited before it, each group once; it counts no more, and the others go on."""
    rig, gate = Rig(), GpuGate(route_bytes=1)
    gate.submit(rig.route, rig.group(b"first"), "a")
    for _ in range(100):
        gate.submit(Broken(), rig.group(b"text"), "a")
    gate.submit(rig.route, rig.group(b"last"), "a")
    rig.simulation.run()
    assert (len(rig.fallen), len(rig.done)) == (100, 2)
    gate.submit(Broken(), rig.group(b"text"), "a")
    gate.submit(rig.route, rig.group(b"later"), "a")
    rig.simulation.run()
    assert (len(rig.fallen), len(rig.done)) == (101, 3)
    assert not gate.is_full
