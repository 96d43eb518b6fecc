"""The HTTP protocol: its short cut for hot requests beside uvicorn's paths, down to bytes and lost connections."""

from __future__ import annotations

import asyncio
import gc
import random
import weakref
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import orjson
import pytest
import uvicorn
from uvicorn.server import ServerState

from dispatcher.options import DispatcherOptions
from service.options import ServiceOptions
from service.protocol import MAX_HEAD_BYTES, HotCycle, Protocol
from tests.fakes import FakeRegistry, FakeTokenizer, FakeTransport, Running, eventually, run, running

MARKER = "the-secret-text"


@dataclass
class Response:
    """One answer on the wire."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def ids(self) -> Any:
        """The ids of an encode answer."""
        assert self.status == 200, self.body
        return orjson.loads(self.body)["ids"]


class Line:
    """One connection of a client."""

    def __init__(self, it: Running, config: uvicorn.Config, state: ServerState) -> None:
        self.transport = FakeTransport()
        self.protocol: Any = config.http_protocol_class(  # type: ignore[call-arg]
            config=config, server_state=state, app_state={}, _loop=asyncio.get_running_loop()
        )
        self.protocol.connection_made(self.transport)
        self.it = it

    def send(self, *pieces: bytes) -> None:
        """The client sends, piece by piece."""
        for piece in pieces:
            self.protocol.data_received(piece)

    def lose(self) -> None:
        """The client is gone."""
        self.transport.closed = True
        self.protocol.connection_lost(None)

    def responses(self) -> list[Response]:
        """Every complete answer so far; informational ones are left out."""
        answers, rest = [], bytes(self.transport.written)
        while b"\r\n\r\n" in rest:
            head, rest = rest.split(b"\r\n\r\n", 1)
            first, *lines = head.decode("latin-1").split("\r\n")
            status = int(first.split(" ")[1])
            headers = dict(line.lower().split(": ", 1) for line in lines)
            n_bytes = int(headers.get("content-length", 0))
            if len(rest) < n_bytes:
                break
            body, rest = rest[:n_bytes], rest[n_bytes:]
            if status >= 200:
                answers.append(Response(status, headers, body))
        return answers

    async def wait(self, n: int = 1) -> list[Response]:
        """The first n answers."""
        await eventually(lambda: len(self.responses()) >= n)
        return self.responses()


@dataclass
class Wire:
    """A running service and a way to connect to it."""

    it: Running
    config: uvicorn.Config
    state: ServerState

    def connect(self) -> Line:
        """A new connection."""
        return Line(self.it, self.config, self.state)


@asynccontextmanager
async def wired(
    tokenizer: FakeTokenizer | None = None, service: ServiceOptions | None = None, **work: Any
) -> AsyncIterator[Wire]:
    """A service behind the protocol."""
    registry = FakeRegistry(fake=tokenizer or FakeTokenizer())
    async with running(registry, service, DispatcherOptions(**{"cpu_workers": 2, **work})) as it:
        config = uvicorn.Config(
            it.app,
            http=type("BoundProtocol", (Protocol,), {"gate": it.service.gate}),
            ws="none",
            lifespan="off",
            interface="asgi3",
            log_config=None,
            access_log=False,
        )
        config.load()
        yield Wire(it, config, ServerState())


def request(text: Any = "ab", path: str = "/v1/encode", version: str = "1.1", **headers: str) -> bytes:
    """An encode request."""
    return raw(orjson.dumps({"text": text}), path, "POST", version, **headers)


def raw(body: bytes, path: str = "/v1/encode", method: str = "POST", version: str = "1.1", **headers: str) -> bytes:
    """A request with this body and a Content-Length."""
    fields = {"host": "x", "content_length": str(len(body)), **headers}
    lines = [f"{name.replace('_', '-')}: {value}" for name, value in fields.items()]
    return "\r\n".join([f"{method} {path} HTTP/{version}", *lines, "", ""]).encode() + body


def chunked(*chunks: bytes, **headers: str) -> bytes:
    """A request whose body comes in chunks."""
    fields = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in headers.items())
    head = f"POST /v1/encode HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n{fields}\r\n".encode()
    return head + b"".join(b"%x\r\n%b\r\n" % (len(chunk), chunk) for chunk in chunks if chunk) + b"0\r\n\r\n"


def ids(text: str) -> list[int]:
    """What the fake tokenizer makes of a text."""
    return [ord(c) for c in text]


def on_wire(test: Callable[[Wire], Any], **options: Any) -> None:
    """Run a test against a service with these options."""

    async def main() -> None:
        async with wired(**options) as wire:
            await test(wire)

    run(main())


def test_requests_one_after_the_other() -> None:
    """A connection is kept and used again, by hot and other endpoints in turn."""

    async def test(wire: Wire) -> None:
        line = wire.connect()
        for i in range(5):
            line.send(request("a" * i))
            assert (await line.wait(2 * i + 1))[-1].ids == ids("a" * i)
            line.send(b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n")
            assert (await line.wait(2 * i + 2))[-1].status == 200
        assert not line.transport.closed
        line.lose()

    on_wire(test)


def test_the_short_cut_is_taken() -> None:
    """A plain hot request takes the short cut; the answer has one head with length, type and request id."""

    async def test(wire: Wire) -> None:
        line = wire.connect()
        line.send(request(x_request_id="my-id"))
        assert isinstance(line.protocol.cycle, HotCycle)
        (answer,) = await line.wait()
        assert set(answer.headers) == {"content-type", "content-length", "x-request-id"}
        assert answer.headers["x-request-id"] == "my-id"
        assert wire.it.requests() == {("fake", "ok"): 1}

    on_wire(test)


def test_bytes_one_by_one() -> None:
    """A request may arrive in pieces of any size."""

    async def test(wire: Wire) -> None:
        for data in (request("abc"), chunked(b'{"text"', b': "abc"}')):
            line = wire.connect()
            line.send(*(data[i : i + 1] for i in range(len(data))))
            assert (await line.wait())[0].ids == ids("abc")

    on_wire(test)


def test_paths_that_uvicorn_takes() -> None:
    """Escaped paths, HTTP/1.0, absolute URLs, other methods and unknown paths get their answers, too."""

    async def test(wire: Wire) -> None:
        cases = [
            (request("a", "/v1/%65ncode"), 200, True),
            (request("a", version="1.0"), 200, False),
            (request("a", "http://x/v1/encode"), 200, True),
            (b"GET /v1/encode HTTP/1.1\r\nhost: x\r\n\r\n", 405, True),
            (b"OPTIONS /v1/encode HTTP/1.1\r\nhost: x\r\n\r\n", 405, True),
            (raw(b"x" * 10, method="PUT"), 405, True),
            (request("a", "/v1/nothing"), 404, True),
            (request("a", "/v1/encode/"), 404, True),
        ]
        for data, status, kept in cases:
            line = wire.connect()
            line.send(data)
            assert (await line.wait())[0].status == status, data
            assert line.transport.closed is not kept, data
            if kept:
                line.send(request("again"))
                assert (await line.wait(2))[1].ids == ids("again")

    on_wire(test)


def test_queries_reach_the_endpoint() -> None:
    """Options in the query string are read."""

    async def test(wire: Wire) -> None:
        line = wire.connect()
        line.send(raw(b"abc", "/v1/encode?max_tokens=2", content_type="application/octet-stream"))
        (answer,) = await line.wait()
        assert answer.body[:8] == b"a\0\0\0b\0\0\0"

    on_wire(test)


def test_pipelined_requests_are_answered_in_order() -> None:
    """Requests behind one that is not answered yet wait for it, whatever their kind, and keep their bodies."""
    tokenizer = FakeTokenizer()
    gate = tokenizer.gate("hold")

    async def test(wire: Wire) -> None:
        line = wire.connect()
        health = b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n"
        data = (
            request("hold")
            + request("b")
            + health
            + chunked(b'{"text": "c"}')
            + request("d", "/nothing")
            + request("e")
        )
        line.send(data[:-3])
        await eventually(gate.entered.is_set)
        assert line.responses() == []
        gate.open()
        await line.wait(3)
        line.send(data[-3:])
        answers = await line.wait(6)
        assert [answer.status for answer in answers] == [200, 200, 200, 200, 404, 200]
        assert [answers[i].ids for i in (0, 1, 3, 5)] == [ids("hold"), ids("b"), ids("c"), ids("e")]
        assert orjson.loads(answers[2].body) == {"status": "ok"}

    on_wire(test, tokenizer=tokenizer)


def test_a_pipelining_client_does_not_run_ahead() -> None:
    """While one request is answered, reading stops once another waits."""
    tokenizer = FakeTokenizer()
    gate = tokenizer.gate("hold")

    async def test(wire: Wire) -> None:
        line = wire.connect()
        line.send(request("hold"))
        assert line.transport.reading
        line.send(request("b"))
        assert not line.transport.reading
        gate.open()
        await line.wait(2)
        assert line.transport.reading

    on_wire(test, tokenizer=tokenizer)


@pytest.mark.parametrize("behind", [b"", request("behind"), request("behind")[:-2]])
def test_a_client_that_is_lost_while_it_waits(behind: bytes) -> None:
    """The work of a lost client is dropped at once, also with more requests behind it; nothing leaks."""
    tokenizer = FakeTokenizer()
    gate = tokenizer.gate("hold")

    async def test(wire: Wire) -> None:
        line = wire.connect()
        line.send(request(["hold", "never"], padding="x" * 10) + behind)
        queued = wire.connect()
        await eventually(gate.entered.is_set)
        queued.send(request("queued") + behind)
        await asyncio.sleep(0)
        assert wire.it.admission.n_requests == 2
        queued.lose()
        assert wire.it.admission.n_requests == 1
        line.lose()
        gate.open()
        await eventually(lambda: wire.it.admission.n_requests == 0)
        assert line.responses() == []
        assert "queued" not in tokenizer.seen
        assert wire.it.requests() == {("", "cancelled"): 2}

    on_wire(test, tokenizer=tokenizer, cpu_workers=1)


@pytest.mark.parametrize("end", [60, -1])
def test_a_client_that_is_lost_while_it_sends(end: int) -> None:
    """An upload that breaks off gives its slot and its bytes back."""

    async def test(wire: Wire) -> None:
        line = wire.connect()
        line.send(request("x" * 100)[:end])
        n_admitted = wire.it.admission.n_requests
        line.lose()
        assert wire.it.admission.n_requests == wire.it.admission.n_bytes == 0
        assert wire.it.requests() == ({("", "cancelled"): 1} if n_admitted else {})

    on_wire(test)


def test_a_lost_connection_is_lost_once() -> None:
    """Losing a connection after its answer, or before anything was sent, counts nothing."""

    async def test(wire: Wire) -> None:
        line = wire.connect()
        line.send(request())
        await line.wait()
        line.lose()
        wire.connect().lose()
        assert wire.it.requests() == {("fake", "ok"): 1}

    on_wire(test)


def test_an_answer_for_a_closed_connection_harms_no_other() -> None:
    """When the transport breaks under an answer, the others that finish with it are delivered."""
    tokenizer = FakeTokenizer()
    gate = tokenizer.gate("hold")

    async def test(wire: Wire) -> None:
        lines = [wire.connect() for _ in range(3)]
        for line, text in zip(lines, ("hold", "b", "c"), strict=True):
            line.send(request(text))
        await eventually(gate.entered.is_set)

        def broken(_: object) -> None:
            raise RuntimeError("the handler is closed")

        lines[1].transport.write = broken  # type: ignore[method-assign, assignment]
        gate.open()
        assert (await lines[0].wait())[0].status == 200
        assert (await lines[2].wait())[0].status == 200

    on_wire(test, tokenizer=tokenizer, cpu_workers=1)


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
    monkeypatch.setattr("service.protocol.LINGER_S", 0.01)

    async def test(wire: Wire) -> None:
        line = wire.connect()
        line.send(request("x" * 100)[:-5])
        assert not line.transport.closed
        await eventually(lambda: line.transport.closed)

    on_wire(test, service=ServiceOptions(max_body_bytes=50))


def test_a_refused_body_is_read_up_to_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that goes on sending a refused body is cut off."""
    monkeypatch.setattr("service.protocol.LINGER_BYTES", 1000)

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


def test_draining_ends_connections_with_their_answers() -> None:
    """In a drain each answer says that the connection ends, and it ends."""
    tokenizer = FakeTokenizer()
    gate = tokenizer.gate("hold")

    async def test(wire: Wire) -> None:
        busy, idle = wire.connect(), wire.connect()
        busy.send(request("hold"))
        await eventually(gate.entered.is_set)
        wire.it.service.drain()
        busy.protocol.shutdown()
        assert not busy.transport.closed
        gate.open()
        (answer,) = await busy.wait()
        assert (answer.status, answer.headers["connection"]) == (200, "close")
        assert busy.transport.closed
        idle.protocol.shutdown()
        assert idle.transport.closed

    on_wire(test, tokenizer=tokenizer)


def test_the_client_may_close_the_connection() -> None:
    """`Connection: close` is honoured with the answer."""

    async def test(wire: Wire) -> None:
        line = wire.connect()
        line.send(request("a", connection="close"))
        (answer,) = await line.wait()
        assert answer.headers["connection"] == "close"
        assert line.transport.closed

    on_wire(test)


def test_an_upgrade_that_is_not_wanted_is_ignored() -> None:
    """Clients that offer HTTP/2 with their first request (as Java's do) get their answer, and may go on."""

    async def test(wire: Wire) -> None:
        line = wire.connect()
        offer = {
            "connection": "Upgrade, HTTP2-Settings",
            "upgrade": "h2c",
            "http2_settings": "AAEAAEAAAAIAAAABAAMAAABk",
        }
        for i in range(2):
            line.send(request("abc", **offer))
            assert (await line.wait(i + 1))[i].ids == ids("abc")

    on_wire(test)


def test_upgrades_in_every_place() -> None:
    """Offers are declined in pieces, behind other requests, on other endpoints; there is no WebSocket and no proxy."""

    async def test(wire: Wire) -> None:
        offer = {"connection": "keep-alive, Upgrade", "upgrade": "h2c"}
        data = request("a") + request("b", **offer) + chunked(b'{"text": "c"}', **offer) + request("d")
        for n in (1, 7, len(data)):
            line = wire.connect()
            line.send(*(data[i : i + n] for i in range(0, len(data), n)))
            assert [answer.ids for answer in await line.wait(4)] == [ids(c) for c in "abcd"]
            assert not line.transport.closed
        line = wire.connect()
        line.send(request("a", connection="Upgrade, close", upgrade="h2c"))
        await line.wait()
        assert line.transport.closed
        line = wire.connect()
        line.send(b"GET /health HTTP/1.1\r\nhost: x\r\nconnection: Upgrade\r\nupgrade: websocket\r\n\r\n")
        assert (await line.wait())[0].status == 200
        line = wire.connect()
        line.send(b"CONNECT x:80 HTTP/1.1\r\nhost: x\r\n\r\n")
        assert [answer.status for answer in line.responses()] == [400]
        assert line.transport.closed

    on_wire(test)


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


@pytest.mark.parametrize("seed", range(6))
def test_the_split_of_the_stream_does_not_matter(seed: int) -> None:
    """The same requests cut at random places, on connections whose turns are mixed, give the same answers."""
    rng = random.Random(seed)

    async def test(wire: Wire) -> None:
        streams: list[tuple[Line, list[bytes], list[tuple[int, str]]]] = []
        for _ in range(8):
            data, expected = b"", []
            for _ in range(12):
                text = "".join(rng.choices("abcé\U0001f600", k=rng.choice([0, 1, 5, 3000])))
                kind = rng.randrange(5)
                body = orjson.dumps({"text": text})
                if kind == 0:
                    data += chunked(body[:3], body[3:])
                elif kind == 1:
                    data += b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n"
                elif kind == 2:
                    data += raw(b'{"text": 1}')
                else:
                    data += raw(body)
                expected.append((kind, text))
            cuts = sorted(rng.sample(range(1, len(data)), rng.choice([1, 5, 60])))
            pieces = [data[a:b] for a, b in zip([0, *cuts], [*cuts, len(data)], strict=True)]
            streams.append((wire.connect(), pieces, expected))
        while waiting := [stream for stream in streams if stream[1]]:
            line, pieces, _ = rng.choice(waiting)
            line.send(pieces.pop(0))
            if rng.random() < 0.3:
                await asyncio.sleep(0)
        for line, _, expected in streams:
            answers = await line.wait(len(expected))
            for answer, (kind, text) in zip(answers, expected, strict=True):
                if kind in (1, 2):
                    assert answer.status == (200 if kind == 1 else 400)
                else:
                    assert answer.ids == ids(text)

    on_wire(test)


@pytest.mark.parametrize("seed", range(4))
def test_clients_that_come_and_go(seed: int) -> None:
    """Connections that are lost at random moments leave nothing behind and disturb no others."""
    rng = random.Random(seed)
    tokenizer = FakeTokenizer()

    async def test(wire: Wire) -> None:
        kept: list[tuple[Line, str]] = []
        for i in range(400):
            line = wire.connect()
            text = f"text {i}"
            data = rng.choice([request(text), chunked(*(b"%c" % c for c in orjson.dumps({"text": text})))])
            if rng.random() < 0.5:
                line.send(data)
                kept.append((line, text))
            else:
                line.send(data + rng.choice([b"", request("behind"), b"GET /hea"]))
                if rng.random() < 0.5:
                    await asyncio.sleep(0)
                line.lose()
            cut = wire.connect()
            cut.send(data[: rng.randrange(1, len(data))])
            cut.lose()
        for line, text in kept:
            assert (await line.wait())[0].ids == ids(text)

    on_wire(test, tokenizer=tokenizer)


def test_an_idle_connection_holds_no_request() -> None:
    """Between requests a connection keeps nothing of the last one: many idle connections cost little."""

    class Watched(FakeTokenizer):
        """Remembers the requests it answered without holding them."""

    async def test(wire: Wire) -> None:
        endpoint = wire.it.service.gate.endpoints["/v1/encode"]
        requests: list[weakref.ref[Any]] = []
        read = endpoint.read

        def watched(head: Any, body: bytes) -> Any:
            made: Any = read(head, body)
            holder = Holder(made)
            requests.append(weakref.ref(holder))
            made.documents = HeldList(made.documents, holder)
            return made

        endpoint.read = watched  # type: ignore[method-assign]
        lines = [wire.connect() for _ in range(5)]
        gc.disable()
        try:
            for line in lines:
                line.send(request("abc"))
                await line.wait()
            last = wire.connect()
            last.send(request("last"))
            await last.wait()
            await eventually(lambda: sum(ref() is not None for ref in requests) <= 2)
        finally:
            gc.enable()

    on_wire(test, tokenizer=Watched())


class Holder:
    """Something that can be watched."""

    def __init__(self, made: Any) -> None:
        self.n_documents = len(made.documents)


class HeldList(list[str]):
    """Documents that keep a holder alive as long as they live."""

    def __init__(self, documents: list[str], holder: Holder) -> None:
        super().__init__(documents)
        self.holder = holder
