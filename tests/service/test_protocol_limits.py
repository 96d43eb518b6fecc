"""The HTTP protocol's limits: sizes, deadlines, idle and stalled clients, refusals, and what is no HTTP."""

from __future__ import annotations

import asyncio

import pytest

from service.hot_cycle import JOIN_CHUNKS
from service.options import ServiceOptions
from service.protocol import MAX_HEAD_BYTES
from tests.fakes import FakeTokenizer
from tests.service_fakes import eventually
from tests.wire import Wire, chunked, ids, on_wire, raw, request

MARKER = "the-secret-text"


@pytest.mark.parametrize(
    "data", [request("x" * 100), chunked(b'{"text": "', b"x" * 100, b'"}')], ids=["length", "chunked"]
)
@pytest.mark.parametrize("n", [1, 50, 10_000])
def test_a_body_over_the_limit(data: bytes, n: int) -> None:
    """413 comes as soon as it is certain; the rest is dropped, then the connection closes, and not before."""

    async def test(wire: Wire) -> None:
        line = wire.connect()
        line.send(*(data[:-1][i : i + n] for i in range(0, len(data) - 1, n)))
        (answer,) = line.responses()
        assert answer.status == 413
        assert answer.headers["connection"] == "close"
        assert wire.it.admission.n_requests == wire.it.admission.n_bytes == 0
        assert not line.transport.closed
        line.send(data[-1:])
        assert line.transport.closed
        assert len(line.responses()) == 1

    on_wire(test, service=ServiceOptions(max_body_bytes=50))


def test_nothing_runs_behind_a_refusal() -> None:
    """Requests that are pipelined behind a refused one are not run: the connection is about to close."""
    tokenizer = FakeTokenizer()

    async def test(wire: Wire) -> None:
        line = wire.connect()
        line.send(raw(b"x", x_request_timeout="never") + request("behind") + request("more"))
        assert [answer.status for answer in line.responses()] == [400]
        await asyncio.sleep(0.01)
        assert wire.it.admission.n_requests == 0
        assert tokenizer.seen == []
        assert len(line.responses()) == 1

    on_wire(test, tokenizer=tokenizer)


def test_a_refused_client_that_stalls_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The rest of a refused body is waited for only so long, and read only up to a bound."""
    monkeypatch.setattr("service.hot_cycle.LINGER_S", 0.01)

    async def test(wire: Wire) -> None:
        line = wire.connect()
        line.send(request("x" * 100)[:-5])
        assert not line.transport.closed
        await eventually(lambda: line.transport.closed)

    on_wire(test, service=ServiceOptions(max_body_bytes=50))


def test_a_refused_body_is_read_up_to_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that goes on sending a refused body is cut off."""
    monkeypatch.setattr("service.hot_cycle.LINGER_BYTES", 1000)

    async def test(wire: Wire) -> None:
        line = wire.connect()
        data = request("x" * 10_000)
        line.send(*(data[i : i + 100] for i in range(0, 900, 100)))
        assert not line.transport.closed
        line.send(*(data[i : i + 100] for i in range(900, 1500, 100)))
        assert line.transport.closed

    on_wire(test, service=ServiceOptions(max_body_bytes=50))


def test_expect_continue() -> None:
    """A client that asks first is told to go on, or gets its refusal and the end of the connection."""

    async def test(wire: Wire) -> None:
        line = wire.connect()
        head, body = request("abc", expect="100-continue").split(b"\r\n\r\n")
        line.send(head + b"\r\n\r\n")
        assert line.transport.written == b"HTTP/1.1 100 Continue\r\n\r\n"
        line.send(body)
        assert (await line.wait())[0].ids == ids("abc")
        refused = wire.connect()
        refused.send(raw(b"", expect="100-continue").replace(b"content-length: 0", b"content-length: 5000"))
        assert [answer.status for answer in refused.responses()] == [413]
        assert refused.transport.closed
        assert b"100 Continue" not in refused.transport.written

    on_wire(test, service=ServiceOptions(max_body_bytes=1000))


def test_shed_requests_are_answered_at_once() -> None:
    """Over the limit a request is 429 with Retry-After, and its slot is nobody's."""
    tokenizer = FakeTokenizer()
    gate = tokenizer.gate("hold")

    async def test(wire: Wire) -> None:
        first, second = wire.connect(), wire.connect()
        first.send(request("hold"))
        second.send(request(MARKER))
        (answer,) = second.responses()
        assert answer.status == 429
        assert int(answer.headers["retry-after"]) >= 1
        assert second.transport.closed
        gate.open()
        await first.wait()
        third = wire.connect()
        third.send(request("a"))
        assert (await third.wait())[0].status == 200

    on_wire(test, tokenizer=tokenizer, max_in_flight=1)


def test_a_stalled_upload_ends_at_its_deadline() -> None:
    """An upload that does not end is 504 at its deadline, and its slot is free."""

    async def test(wire: Wire) -> None:
        line = wire.connect()
        line.send(request("abc", x_request_timeout="0.02")[:-3])
        assert wire.it.admission.n_requests == 1
        (answer,) = await line.wait()
        assert answer.status == 504
        assert wire.it.admission.n_requests == wire.it.admission.n_bytes == 0
        line.send(b'c"}')
        assert line.transport.closed
        assert wire.it.requests() == {("", "deadline"): 1}

    on_wire(test)


def test_a_deadline_counts_from_the_head() -> None:
    """Time that the body takes is part of the request's time."""
    tokenizer = FakeTokenizer()

    async def test(wire: Wire) -> None:
        line = wire.connect()
        data = request("abc", x_request_timeout="1000")
        line.send(data[:-3])
        (deadline_ns,) = wire.it.service.gate.uploads.values()
        line.send(data[-3:])
        (job,) = wire.it.service.dispatcher._in_flight
        assert job.deadline_ns == deadline_ns
        await line.wait()

    on_wire(test, tokenizer=tokenizer)


def test_a_deadline_while_the_work_runs_keeps_the_connection() -> None:
    """504 for slow work leaves the connection usable."""
    tokenizer = FakeTokenizer()
    gate = tokenizer.gate("slow")

    async def test(wire: Wire) -> None:
        line = wire.connect()
        line.send(request("slow", x_request_timeout="0.02"))
        (answer,) = await line.wait()
        assert (answer.status, "connection" in answer.headers) == (504, False)
        gate.open()
        line.send(request("next"))
        assert (await line.wait(2))[1].ids == ids("next")

    on_wire(test, tokenizer=tokenizer)


@pytest.mark.parametrize("n", [1_000, 100_000])
def test_an_endless_head_is_refused(n: int) -> None:
    """Heads that do not end, in the URL, in one header or in many, are 431; long ones within the bound are served."""

    async def test(wire: Wire) -> None:
        starts = [b"POST /v1/encode?x=", b"POST /v1/encode HTTP/1.1\r\nx: "]
        for start, piece in [*((start, b"y" * n) for start in starts), (starts[1][:-3], b"x: y\r\n" * (n // 6))]:
            line = wire.connect()
            line.send(start)
            for _ in range(2 * MAX_HEAD_BYTES // n + 2):
                if not line.transport.closed:
                    line.send(piece)
            assert line.transport.closed
            assert [answer.status for answer in line.responses()] == [431]
        line = wire.connect()
        line.send(request("a", x_padding="y" * 30_000))
        assert (await line.wait())[0].status == 200

    on_wire(test)


@pytest.mark.parametrize("cut", [1, 40, 80])
def test_a_head_that_begins_behind_much_else(cut: int) -> None:
    """What comes in one piece with the beginning of a head, a large body or many requests, does not count for it."""

    async def test(wire: Wire) -> None:
        for before, n_before in ((request("x" * 2 * MAX_HEAD_BYTES), 1), (request("a") * 2_000, 2_000)):
            line = wire.connect()
            line.send(before + request("next")[:cut], request("next")[cut:])
            answers = await line.wait(n_before + 1)
            assert answers[-1].ids == ids("next")
            assert not line.transport.closed

    on_wire(test)


def test_a_body_in_tiny_pieces() -> None:
    """Many short chunks are the body that one long one is, and are not kept as so many objects."""

    async def test(wire: Wire) -> None:
        n_chunks = 3 * JOIN_CHUNKS + 7
        words = [b"%04d," % i for i in range(n_chunks)]
        line = wire.connect()
        sent = chunked(b'{"text": "', *words, b'"}')
        line.send(sent[:-5])
        assert len(line.protocol.cycle._chunks) < JOIN_CHUNKS + 4
        line.send(sent[-5:])
        assert (await line.wait())[0].ids == ids(b"".join(words).decode())

    on_wire(test)


def test_a_client_that_does_not_read_is_not_read() -> None:
    """While answers pile up in the transport no further requests are read; when the client reads, they are."""

    async def test(wire: Wire) -> None:
        line = wire.connect()
        line.protocol.pause_writing()
        line.send(request("a"))
        await line.wait()
        assert not line.transport.reading
        line.protocol.resume_writing()
        assert line.transport.reading
        line.send(request("b"))
        assert len(await line.wait(2)) == 2
        assert line.transport.reading

    on_wire(test)


UNFINISHED = {"new": [], "url": [b"POST /v1/enc"], "head": [request("a")[:50]], "used": [request("a")]}


@pytest.mark.parametrize("pieces", UNFINISHED.values(), ids=UNFINISHED.keys())
def test_an_idle_connection_is_closed(pieces: list[bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    """A connection without a request, one whose head does not go on, and a used one are closed after their time."""

    async def test(wire: Wire) -> None:
        wire.config.timeout_keep_alive = 0
        line = wire.connect()
        line.send(*pieces)
        await eventually(lambda: line.transport.closed)
        assert not line.transport.aborted

    monkeypatch.setattr("service.protocol.HEAD_S", 0.0)
    on_wire(test)


def test_a_new_connection_has_time_for_its_request() -> None:
    """Even where idle connections are closed at once a client gets to send its request, in pieces, too."""

    async def test(wire: Wire) -> None:
        wire.config.timeout_keep_alive = 0
        line = wire.connect()
        data = request("abc")
        for piece in (data[:5], data[5:30], data[30:]):
            await asyncio.sleep(0.01)
            assert not line.transport.closed
            line.send(piece)
        assert (await line.wait())[0].ids == ids("abc")
        await eventually(lambda: line.transport.closed)

    on_wire(test)


def test_a_request_in_work_is_not_idle() -> None:
    """A request that takes longer than an idle connection may last is answered."""
    tokenizer = FakeTokenizer()
    gate = tokenizer.gate("hold")

    async def test(wire: Wire) -> None:
        wire.config.timeout_keep_alive = 0
        line = wire.connect()
        line.send(request("hold"))
        await eventually(gate.entered.is_set)
        await asyncio.sleep(0.02)
        assert not line.transport.closed
        gate.open()
        assert (await line.wait())[0].ids == ids("hold")
        await eventually(lambda: line.transport.closed)

    on_wire(test, tokenizer=tokenizer)


def test_an_answer_that_nobody_reads_ends_the_connection() -> None:
    """A client that reads slowly keeps its connection, one that stopped reading is cut off."""

    async def test(wire: Wire) -> None:
        line = wire.connect()
        for n_unread in (3000, 2000, 1000):
            line.transport.n_unread = n_unread
            line.protocol.timeout_keep_alive_handler()
            assert not line.transport.closed
        line.protocol.timeout_keep_alive_handler()
        assert line.transport.aborted

    on_wire(test)


def test_a_last_answer_that_nobody_reads_ends_the_connection_too() -> None:
    """A connection that closes behind its answer does not wait for ever for a client that does not read it."""

    async def test(wire: Wire) -> None:
        wire.config.timeout_keep_alive = 0
        line = wire.connect()
        line.transport.n_unread = 3000
        line.send(request("a", connection="close"))
        await line.wait()
        assert line.transport.closed
        await eventually(lambda: line.transport.aborted)

    on_wire(test)


@pytest.mark.parametrize("lost", [True, False])
def test_unread_answers_count_as_in_flight(lost: bool) -> None:
    """The memory of an answer that a client reads too slowly is bounded with all else that is in flight."""

    async def test(wire: Wire) -> None:
        admission = wire.it.admission
        line = wire.connect()
        for n_unread in (70_000, 90_000):
            line.transport.n_unread = n_unread
            line.protocol.pause_writing()
            assert (admission.n_requests, admission.n_bytes) == (1, n_unread)
        other = wire.connect()
        other.send(request("x" * 50_000))
        assert (await other.wait())[0].status == 429
        if lost:
            line.lose()
        else:
            line.protocol.resume_writing()
        assert (admission.n_requests, admission.n_bytes) == (0, 0)

    on_wire(test, max_in_flight_bytes=100_000)


@pytest.mark.parametrize(
    "data",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"hello\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"POST /v1/encode HTTP/1.1\r\nhost: x\r\ncontent-length: x\r\n\r\n",
        b"POST /v1/encode HTTP/1.1\r\nhost: x\r\ncontent-length: -1\r\n\r\n",
        b"POST /v1/encode HTTP/1.1\r\nhost: x\r\ncontent-length: 99999999999999999999999\r\n\r\n",
        b"POST /v1/encode HTTP/1.1\r\nhost: x\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\nab",
        b"POST /v1/encode HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",
        b"POST /v1/encode HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\ncontent-length: 3\r\n\r\nabc",
        b"POST /v1/encode HTTP/1.1\r\n" + MARKER.encode() + b"\x00: x\r\n\r\n",
        b"POST \xff\xfe HTTP/1.1\r\nhost: x\r\n\r\n",
    ],
    ids=range(11),
)
def test_garbage_is_refused(data: bytes, caplog: pytest.LogCaptureFixture) -> None:
    """What is no HTTP ends the connection with a 400, leaks no slot, and is not repeated."""

    async def test(wire: Wire) -> None:
        line = wire.connect()
        line.send(data)
        assert line.transport.closed
        assert [answer.status for answer in line.responses()] == [400]
        line.protocol.connection_lost(None)
        assert wire.it.admission.n_requests == 0
        assert MARKER.encode() not in line.transport.written

    on_wire(test)
    assert MARKER not in caplog.text


def test_garbage_in_the_middle_of_a_body() -> None:
    """A chunked body that breaks frees its slot when the connection ends."""

    async def test(wire: Wire) -> None:
        line = wire.connect()
        line.send(chunked(b'{"text":')[:-5], b"not a chunk\r\n")
        assert line.transport.closed
        line.protocol.connection_lost(None)
        assert wire.it.admission.n_requests == wire.it.admission.n_bytes == 0

    on_wire(test)
