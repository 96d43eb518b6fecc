"""The gate: what every hot request passes, whichever transport it came by."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from dispatcher.errors import DeadlineExceeded, InvalidText, TooBusy
from dispatcher.options import DispatcherOptions
from dispatcher.request import DecodeRequest, EncodedDocument, EncodeOptions, EncodeRequest, Request, Result
from dispatcher.router import WRITE_BYTES
from service.endpoint import Answer, Head
from service.errors import BodyTooLarge, InvalidBody
from service.gate import TURN_BYTES, Gate, _unless_listed
from service.native import Encode
from service.options import ServiceOptions
from tests.fakes import FakeTokenizer
from tests.service_fakes import FakeRegistry, Running, run, running

ENCODE = Encode(FakeRegistry(fake=FakeTokenizer()))


def head_of(content_length: int | None = None, **fields: Any) -> Head:
    """A head with these fields."""
    return Head("/v1/encode", b"", [], "my-id", content_length=content_length, **fields)


def with_gate(test: Any, service: ServiceOptions | None = None, **work: Any) -> None:
    """Run a test with the gate of a running service."""

    async def main() -> None:
        registry = FakeRegistry(fake=FakeTokenizer())
        async with running(registry, service, DispatcherOptions(**{"cpu_workers": 1, **work})) as it:
            await test(it, it.service.gate)

    run(main())


def test_a_slot_has_the_announced_bytes() -> None:
    """Entering takes a slot with the announced length, or with nothing when there is none."""

    async def test(it: Running, gate: Gate) -> None:
        slots = [gate.enter(head_of(70)), gate.enter(head_of())]
        assert (it.admission.n_requests, it.admission.n_bytes) == (2, 70)
        gate.grow(slots[0], 70)
        gate.grow(slots[1], 30)
        gate.grow(slots[1], 40)
        assert it.admission.n_bytes == 110
        for slot in slots:
            slot.release()

    with_gate(test)


def test_refusals_take_no_slot() -> None:
    """A bad head, an announced body over the limit, and a full house leave the counts as they were."""

    async def test(it: Running, gate: Gate) -> None:
        held = gate.enter(head_of(10))
        with pytest.raises(InvalidBody):
            gate.enter(head_of(timeout_s=-1.0))
        with pytest.raises(BodyTooLarge, match="100 bytes"):
            gate.enter(head_of(101))
        with pytest.raises(TooBusy):
            gate.enter(head_of(10))
        with pytest.raises(BodyTooLarge):
            gate.grow(held, 101)
        assert (it.admission.n_requests, it.admission.n_bytes) == (1, 10)
        held.release()

    with_gate(test, ServiceOptions(max_body_bytes=100), max_in_flight=1)


def test_deadlines() -> None:
    """The request's own timeout wins over the server's; without either there is no deadline."""

    async def own(it: Running, gate: Gate) -> None:
        for timeout_s, seconds in ((None, 5), (100.0, 100)):
            before_ns = time.monotonic_ns()
            deadline_ns = gate.deadline_of(head_of(timeout_s=timeout_s)) - seconds * 10**9
            assert before_ns <= deadline_ns <= time.monotonic_ns()

    async def none(it: Running, gate: Gate) -> None:
        assert gate.deadline_of(head_of()) == 0
        assert gate.deadline_of(head_of(timeout_s=1.0)) > 0

    with_gate(own, timeout_s=5.0)
    with_gate(none, timeout_s=0.0)


def test_only_late_uploads_are_ended() -> None:
    """`sweep` ends uploads whose deadline passed; later ones, and those without a deadline, go on."""

    class Upload:
        """Counts how often it was ended."""

        def __init__(self) -> None:
            self.n_ended = 0

        def overdue(self) -> None:
            """See `service.gate.Upload`."""
            self.n_ended += 1
            del gates[0].uploads[self]

    gates: list[Gate] = []

    async def test(it: Running, gate: Gate) -> None:
        gates.append(gate)
        late, early, endless = Upload(), Upload(), Upload()
        gate.uploads |= {late: 1, early: time.monotonic_ns() + 10**12, endless: 0}
        gate.sweep()
        gate.sweep()
        assert (late.n_ended, early.n_ended, endless.n_ended) == (1, 0, 0)
        gate.uploads.clear()

    with_gate(test)


@pytest.mark.parametrize(
    ("answer", "error", "status", "outcome"),
    [
        (Answer(b"ids"), None, 200, "ok"),
        (Answer(b"told", status=400), InvalidText("x"), 400, "bad_request"),
        (Answer(b"told", status=504), DeadlineExceeded("x"), 504, "deadline"),
        (None, InvalidText("x"), 500, "bad_request"),
        (None, None, 500, "error"),
    ],
)
def test_every_ending_has_an_answer(answer: Any, error: Any, status: int, outcome: str) -> None:
    """A job that ended without an answer, or whose error could not be told, is answered all the same."""
    made, label = Gate.answer_of(answer, error, ENCODE, head_of())
    assert (made.status, label) == (status, outcome)
    assert made.body


@pytest.mark.parametrize(
    ("error", "status", "retry_after"),
    [
        (TooBusy("full", "requests", 2.4), 429, b"2"),
        (TooBusy("full", "requests", 0.01), 429, b"1"),
        (DeadlineExceeded("late"), 504, b"1"),
        (BodyTooLarge("large"), 413, None),
    ],
)
def test_overload_says_when_to_come_back(error: Any, status: int, retry_after: bytes | None) -> None:
    """Retry-After stands on what may work later, in whole seconds, one at least; not on the caller's own faults."""
    answer, _ = Gate.refusal(ENCODE, head_of(), error)
    assert answer.status == status
    assert dict(answer.headers).get(b"retry-after") == retry_after


def test_records_are_counts() -> None:
    """A request that ended is counted with its duration."""

    async def test(it: Running, gate: Gate) -> None:
        start_ns = time.monotonic_ns() - 3_000_000
        gate.record(head_of(), "fake", "ok", start_ns)
        end_ns = time.monotonic_ns()
        (histogram,) = it.service.meter.durations.values()
        assert histogram.n == 1
        assert 0.003 <= histogram.sum_s <= (end_ns - start_ns) * 1e-9

    with_gate(test)


def test_only_workers_wait_for_a_turn() -> None:
    """What the thread of a GPU writes itself is never so large that it would wait, or the GPU listed its ids."""
    assert TURN_BYTES >= WRITE_BYTES
    listed = EncodedDocument(b"", 1, decimals=(b"1",))
    request = EncodeRequest("fake", FakeTokenizer(), ["a"], EncodeOptions(), lists_ids=True)

    def name(way: str) -> Callable[[Head, Request, Result], Answer]:
        return lambda head, request, result: Answer(way.encode())

    written = _unless_listed(name("at once"), name("in turn"))
    assert written(head_of(), request, [listed]).body == b"at once"
    assert written(head_of(), request, [listed, EncodedDocument(b"", 0)]).body == b"in turn"
    assert written(head_of(), replace(request, is_slow_to_write=True), [listed]).body == b"in turn"
    assert written(head_of(), replace(request, lists_ids=False), [listed]).body == b"in turn"
    assert written(head_of(), DecodeRequest("fake", FakeTokenizer(), []), ["text"]).body == b"in turn"
