"""Admission: counts of requests and bytes in flight, and refusals over the limits."""

from __future__ import annotations

import random

import pytest

from dispatcher.admission import Admission, Slot
from dispatcher.errors import TooBusy
from dispatcher.options import DispatcherOptions


def admission(requests: int = 1000, n_bytes: int = 1000) -> Admission:
    """An admission with these limits."""
    return Admission(DispatcherOptions(max_in_flight=requests, max_in_flight_bytes=n_bytes))


def refused(error: pytest.ExceptionInfo[TooBusy]) -> str:
    """The reason; a refusal says when to come back."""
    assert error.value.retry_after_s > 0
    return error.value.reason


def test_one_request_over_the_limit_is_refused() -> None:
    """As many requests as allowed are admitted, one more is not, and a released slot is free again."""
    gate = admission(requests=2)
    first, _ = gate.admit(1), gate.admit(1)
    with pytest.raises(TooBusy, match="--max-in-flight") as error:
        gate.admit(1)
    assert refused(error) == "requests"
    first.release()
    gate.admit(1)
    assert (gate.n_requests, gate.n_bytes) == (2, 2)


def test_what_is_held_cannot_be_refused() -> None:
    """What is there already counts over any limit, and keeps others out until it is released."""
    gate = admission(requests=1, n_bytes=10)
    held = [gate.hold(600), gate.hold(600)]
    assert (gate.n_requests, gate.n_bytes) == (2, 1200)
    with pytest.raises(TooBusy):
        gate.admit(1)
    for slot in held:
        slot.release()
    gate.admit(1)


@pytest.mark.parametrize(("n_bytes", "admitted"), [(599, True), (600, True), (601, False)])
def test_bytes_over_the_limit_are_refused(n_bytes: int, admitted: bool) -> None:
    """Bytes are admitted up to exactly the limit."""
    gate = admission(n_bytes=1000)
    gate.admit(400)
    if admitted:
        gate.admit(n_bytes)
    else:
        with pytest.raises(TooBusy, match="--max-in-flight-bytes") as error:
            gate.admit(n_bytes)
        assert refused(error) == "bytes"
        assert (gate.n_requests, gate.n_bytes) == (1, 400)


def test_a_body_larger_than_the_limit_is_admitted_alone() -> None:
    """A single body over the limit is admitted when nothing else is in flight, else it never would be."""
    gate = admission(n_bytes=1000)
    large = gate.admit(5000)
    with pytest.raises(TooBusy):
        gate.admit(1)
    large.release()
    small = gate.admit(1)
    with pytest.raises(TooBusy):
        gate.admit(5000)
    small.release()
    gate.admit(5000)


def test_a_growing_body_larger_than_the_limit_is_admitted_alone() -> None:
    """The same holds for a body whose length is not known in advance: its own bytes do not count against it."""
    gate = admission(n_bytes=1000)
    slot = gate.admit(0)
    for _ in range(5):
        slot.grow(600)
    assert (slot.n_bytes, gate.n_bytes) == (3000, 3000)
    slot.release()
    assert gate.n_bytes == 0


def test_a_growing_body_is_refused_beside_others() -> None:
    """Growth over the limit is refused while others hold bytes, and changes nothing."""
    gate = admission(n_bytes=1000)
    gate.admit(500)
    slot = gate.admit(0)
    slot.grow(500)
    with pytest.raises(TooBusy) as error:
        slot.grow(1)
    assert refused(error) == "bytes"
    assert (slot.n_bytes, gate.n_bytes, gate.n_requests) == (500, 1000, 2)


def test_empty_bodies_always_have_room_for_their_bytes() -> None:
    """No bytes are never too many bytes."""
    gate = admission(n_bytes=10)
    gate.admit(10)
    gate.admit(0)


def test_refusals_are_counted_by_reason() -> None:
    """Each refusal is counted once, under its reason; admitted requests are not."""
    gate = admission(requests=2, n_bytes=10)
    gate.admit(10)
    for _ in range(3):
        with pytest.raises(TooBusy):
            gate.admit(1)
    gate.admit(0)
    for _ in range(2):
        with pytest.raises(TooBusy):
            gate.admit(0)
    assert gate.shed == {"requests": 2, "bytes": 3, "wait": 0, "client_share": 0, "model_share": 0}


def test_no_sequence_of_calls_loses_count() -> None:
    """After any mix of admissions, growth, refusals and releases the counts are the sums over the live slots."""
    rng = random.Random(7)
    gate = admission(requests=8, n_bytes=500)
    live: list[Slot] = []
    for _ in range(5000):
        action = rng.random()
        try:
            if action < 0.4:
                live.append(gate.admit(rng.choice([0, 1, 50, 400, 900])))
            elif action < 0.6 and live:
                rng.choice(live).grow(rng.choice([0, 1, 60]))
            elif live:
                live.pop(rng.randrange(len(live))).release()
        except TooBusy:
            pass
        assert gate.n_requests == len(live) <= 8
        assert gate.n_bytes == sum(slot.n_bytes for slot in live)
        assert gate.n_bytes <= 500 or sum(slot.n_bytes > 0 for slot in live) == 1
