"""The HTTP protocol: its short cut for hot requests beside uvicorn's paths, down to bytes."""

from __future__ import annotations

import orjson
import pytest

from service.endpoint import Answer, answer_of
from service.hot_cycle import HotCycle
from tests.fakes import FakeTokenizer
from tests.service_fakes import eventually
from tests.wire import Wire, chunked, ids, on_wire, raw, request


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


def test_health_is_answered_at_once() -> None:
    """Before anything else may run, by one head like that of other answers; so are several in one piece."""

    async def test(wire: Wire) -> None:
        line = wire.connect()
        for n in (1, 2):
            line.send(b"GET /health?a=b HTTP/1.1\r\nhost: x\r\nx-request-id: my-id\r\n\r\n" * n)
        answers = line.responses()
        assert [(answer.status, answer.body) for answer in answers] == [(200, b'{"status":"ok"}')] * 3
        assert set(answers[0].headers) == {"content-type", "content-length", "x-request-id"}
        assert answers[0].headers["x-request-id"] == "my-id"
        line.send(request("a"))
        assert (await line.wait(4))[-1].ids == ids("a")
        assert not line.transport.closed

    on_wire(test)


@pytest.mark.parametrize("path", ["/health", "/ready", "/version", "/nothing"])
def test_head(path: str) -> None:
    """The length is that of the answer to GET, no body follows, and the connection goes on."""

    async def test(wire: Wire) -> None:
        line = wire.connect()
        line.send(b"GET %b HTTP/1.1\r\nhost: x\r\n\r\n" % path.encode())
        (full,) = await line.wait()
        line = wire.connect()
        line.send(b"HEAD %b HTTP/1.1\r\nhost: x\r\n\r\n" % path.encode())
        await eventually(lambda: b"\r\n\r\n" in line.transport.written)
        head = line.transport.written.decode()
        assert head.startswith(f"HTTP/1.1 {full.status} ")
        assert head.endswith("\r\n\r\n")
        assert f"\r\ncontent-length: {len(full.body)}\r\n" in head
        await eventually(lambda: line.protocol.cycle is None or line.protocol.cycle.response_complete)
        line.transport.written.clear()
        line.send(request("ab"))
        assert [answer.ids for answer in await line.wait()] == [ids("ab")]

    on_wire(test)


def test_a_large_answer_is_sent_in_its_pieces() -> None:
    """It is one answer on the wire, whichever way it takes, and a short one is one piece."""
    pieces = [b"[", b"1," * 50_000, b"1," * 50_000, b"1]"]
    large = answer_of(pieces)
    assert (large.n_bytes, large.whole) == (len(b"".join(pieces)), b"".join(pieces))
    assert [large.body, *large.rest] == pieces
    assert answer_of([b"[", b"]"]) == Answer(b"[]")
    assert answer_of(pieces * 30).rest == ()

    async def test(wire: Wire) -> None:
        endpoint = wire.it.service.gate.endpoints["/v1/encode"]
        endpoint.write = lambda *_: answer_of(pieces)  # type: ignore[method-assign]
        line = wire.connect()
        # The second one is pipelined, which is the way over ASGI.
        line.send(request("a") + request("b"))
        answers = await line.wait(2)
        assert [answer.body for answer in answers] == [b"".join(pieces)] * 2

    on_wire(test)


def test_health_closes_the_connection_when_it_should() -> None:
    """When the client says so, and while the service drains; what follows in the same piece is dropped."""

    async def test(wire: Wire) -> None:
        line = wire.connect()
        line.send(b"GET /health HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n" + request("a"))
        assert [answer.status for answer in line.responses()] == [200]
        assert line.transport.closed
        line = wire.connect()
        wire.it.service.drain()
        line.send(b"GET /live HTTP/1.1\r\nhost: x\r\n\r\n")
        (answer,) = line.responses()
        assert answer.headers["connection"] == "close"
        assert line.transport.closed

    on_wire(test)


def test_health_with_a_body_takes_the_long_way() -> None:
    """Its body is dropped, and the next request is read from behind it."""

    async def test(wire: Wire) -> None:
        line = wire.connect()
        line.send(raw(b"POST /v1/encode", "/health", method="GET"), request("a"))
        answers = await line.wait(2)
        assert (answers[0].status, answers[1].ids) == (200, ids("a"))

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
