"""The HTTP protocol: its short cut for hot requests beside uvicorn's paths, down to bytes and lost connections."""

from __future__ import annotations

import asyncio
import gc
import random
import weakref
from typing import Any

import orjson
import pytest

from service.protocol import HotCycle
from tests.fakes import FakeTokenizer
from tests.service_fakes import eventually
from tests.wire import Line, Wire, chunked, ids, on_wire, raw, request


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
