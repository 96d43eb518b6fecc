"""Fair shares in simulated time: who holds how much when the budget gets scarce."""

from __future__ import annotations

import itertools
import random
from collections import Counter

import pytest

from dispatcher.admission import Admission, Slot
from dispatcher.errors import TooBusy
from dispatcher.options import DispatcherOptions
from dispatcher.shares import MAX_HOLDERS, RECENT_NS, Shares


class Clock:
    """Time of the test, in ns."""

    def __init__(self) -> None:
        self.now_ns = 1

    def __call__(self) -> int:
        """Now."""
        return self.now_ns


def admission(clock: Clock, requests: int = 100, n_bytes: int = 100_000, **options: float) -> Admission:
    """An admission with these limits."""
    knobs = DispatcherOptions(max_in_flight=requests, max_in_flight_bytes=n_bytes, **options)  # type: ignore[arg-type]
    return Admission(knobs, 4, clock)


def take(gate: Admission, client: str, n: int, n_bytes: int = 1, model: str = "") -> list[Slot]:
    """Ask up to `n` times; what was admitted."""
    slots = []
    for _ in range(n):
        try:
            slot = gate.admit(n_bytes, client)
        except TooBusy:
            continue
        try:
            if model:
                slot.assign(model)
        except TooBusy:
            slot.release()
            continue
        slots.append(slot)
    return slots


def test_one_client_alone_may_have_all() -> None:
    """There is nobody to share with."""
    gate = admission(Clock())
    assert len(take(gate, "a", 200)) == 100
    assert gate.shed == {"requests": 100, "bytes": 0, "wait": 0, "client_share": 0, "model_share": 0}


def test_a_flood_leaves_room_for_others() -> None:
    """Once a second client is there, the first may hold half; the second gets its requests in."""
    gate = admission(Clock())
    others = take(gate, "b", 1)
    assert len(take(gate, "a", 200)) == 50
    assert gate.shed["client_share"] == 150
    assert len(take(gate, "b", 200)) + len(others) == 50


def test_below_the_threshold_nobody_is_bounded() -> None:
    """While half of the limits is free, one client may hold more than its share; without a threshold always."""
    gate = admission(Clock())
    for client in "abcdefghij":
        assert len(take(gate, client, 1)) == 1
    assert len(take(gate, "a", 200)) == 40
    unfair = admission(Clock(), fair_above=1.0)
    assert len(take(unfair, "b", 1)) + len(take(unfair, "a", 200)) == 100


def test_who_came_too_late_gets_in_next() -> None:
    """A client that found the house full counts from then on: what gets free is kept for it."""
    clock = Clock()
    gate = admission(clock)
    flood = take(gate, "a", 100)
    assert take(gate, "b", 1) == []
    flood.pop().release()
    assert take(gate, "a", 1) == []
    assert len(take(gate, "b", 1)) == 1


def test_who_asked_for_nothing_lately_is_forgotten() -> None:
    """Shares go back to the others; a client that still holds something is not forgotten."""
    clock = Clock()
    gate = admission(clock)
    take(gate, "b", 1)[0].release()
    held = take(gate, "c", 1)
    assert len(take(gate, "a", 200)) == 50 - 1
    clock.now_ns += RECENT_NS + 1
    gate.observe()
    assert len(gate.clients) == 2
    held[0].release()
    clock.now_ns += RECENT_NS + 1
    gate.observe()
    assert len(gate.clients) == 1
    assert len(take(gate, "a", 200)) == 51


def test_models_share_too() -> None:
    """Many clients of one model leave room for those of another one."""
    gate = admission(Clock(), requests=1000)
    take(gate, "x", 1, model="quick")
    slow = sum(len(take(gate, f"client {i}", 50, model="slow")) for i in range(40))
    assert slow == 500
    assert gate.shed["model_share"] > 0
    assert sum(len(take(gate, f"other {i}", 1, model="quick")) for i in range(100)) == 100


def test_bytes_are_shared() -> None:
    """The same holds for bytes, also of bodies that grow; one request alone may have any size."""
    gate = admission(Clock())
    take(gate, "b", 1)
    assert len(take(gate, "a", 100, n_bytes=10_000)) == 5
    assert len(take(gate, "b", 100, n_bytes=10_000)) == 4
    growing = admission(Clock())
    take(growing, "b", 1)
    first, second = take(growing, "a", 2, n_bytes=100)
    second.grow(40_000)
    with pytest.raises(TooBusy, match="share"):
        second.grow(20_000)
    first.release()
    second.grow(40_000)
    assert growing.clients.of("a", 1).n_bytes == 80_100


def test_no_sequence_of_calls_loses_count() -> None:
    """Holdings are the sums over the live slots, whatever was refused in between."""
    rng = random.Random(5)
    clock = Clock()
    gate = admission(clock, requests=20, n_bytes=2000)
    live: list[tuple[str, str, Slot]] = []
    for _ in range(5000):
        clock.now_ns += 20_000_000
        client, model = rng.choice("abc"), rng.choice("mn")
        if rng.random() < 0.6:
            live += [(client, model, slot) for slot in take(gate, client, 1, rng.choice([0, 10, 500]), model)]
        elif live:
            live.pop(rng.randrange(len(live)))[2].release()
        gate.observe()
        for shares, names in ((gate.clients, [x[0] for x in live]), (gate.models, [x[1] for x in live])):
            for name, n in Counter(names).items():
                assert shares.of(name, clock.now_ns).n_requests == n
        assert gate.n_requests == len(live) <= 20
        assert gate.n_bytes == sum(slot.n_bytes for *_, slot in live)


def test_names_are_bounded() -> None:
    """Invented names beyond the bound share one holding."""
    shares = Shares(10, 10)
    holdings = [shares.of(str(i), 1) for i in range(MAX_HOLDERS + 50)]
    assert len(shares) <= MAX_HOLDERS + 1
    assert len(set(map(id, holdings[-50:]))) == 1


@pytest.mark.parametrize(
    ("wait_s", "timeout_s", "refused"), [(20, 0, False), (40, 0, True), (20, 10, True), (5, 10, False)]
)
def test_an_answer_that_would_come_too_late_is_refused(wait_s: float, timeout_s: float, refused: bool) -> None:
    """The predicted wait is bounded by the option and by the request's own deadline; Retry-After follows from it."""
    clock = Clock()
    gate = admission(clock, requests=1 << 30, n_bytes=1 << 40, max_wait_s=30.0)
    lane = gate.backlog.small
    rate = 100
    for _ in range(rate * 100):
        gate.backlog.enter(0)
    for _ in range(100):
        clock.now_ns += 200_000_000
        for _ in range(rate // 5):
            gate.backlog.leave(0, answered=True)
        gate.observe()
    while lane.wait_s > wait_s:
        gate.backlog.leave(0, answered=False)
    if not refused:
        gate.admit(1, timeout_s=timeout_s)
        return
    with pytest.raises(TooBusy, match="would take about") as error:
        gate.admit(1, timeout_s=timeout_s)
    assert (error.value.reason, gate.shed["wait"]) == ("wait", 1)
    assert error.value.retry_after_s == pytest.approx(wait_s - min(30, timeout_s or 30) / 2, abs=0.1)


def test_retry_after_is_bounded() -> None:
    """One second at least, a minute at most."""
    clock = Clock()
    for n_jobs, expected in ((0, 1.0), (2000, 60.0)):
        gate = admission(clock, requests=1)
        gate.admit(1)
        for _ in range(n_jobs):
            gate.backlog.enter(0)
        for _ in itertools.repeat(None, 20 if n_jobs else 0):
            clock.now_ns += 1_000_000_000
            for _ in range(5):
                gate.backlog.leave(0, answered=True)
            gate.observe()
        with pytest.raises(TooBusy) as error:
            gate.admit(1)
        assert error.value.retry_after_s == expected
