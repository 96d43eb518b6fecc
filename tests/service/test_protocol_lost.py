"""The HTTP protocol when clients go, in any place and in any order, and when a stream is cut anywhere."""

from __future__ import annotations

import asyncio
import gc
import random
import weakref
from typing import Any

import orjson
import pytest

from tests.fakes import FakeTokenizer
from tests.service_fakes import eventually
from tests.wire import Line, Wire, chunked, ids, on_wire, raw, request


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


def test_a_client_that_is_lost_in_the_middle_of_its_requests() -> None:
    """The request that is its turn is dropped, and not only the last one that was read; what waits is not begun."""
    tokenizer = FakeTokenizer()
    gate = tokenizer.gate("second")

    async def test(wire: Wire) -> None:
        line = wire.connect()
        line.send(request("first") + request(["second", "never"]) + request("third"))
        await eventually(gate.entered.is_set)
        line.lose()
        n_written = len(line.transport.written)
        await eventually(lambda: wire.it.requests() == {("fake", "ok"): 1, ("", "cancelled"): 1})
        gate.open()
        await eventually(lambda: wire.it.admission.n_requests == 0)
        assert len(line.transport.written) == n_written
        assert "third" not in tokenizer.seen

    on_wire(test, tokenizer=tokenizer)


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
