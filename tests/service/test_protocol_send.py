"""Answers that workers send: only where nothing else is in flight, each once, in order, and counted."""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any

import pytest

from tests.fakes import LIMIT_S, FakeTokenizer, Gate
from tests.service_fakes import eventually
from tests.wire import Line, Wire, ids, on_wire, request


class Peer:
    """A connection whose worker's side is a socket."""

    def __init__(self, wire: Wire) -> None:
        near, self.sock = socket.socketpair()
        near.setblocking(False)
        self.sock.settimeout(LIMIT_S)
        self.near = near
        self.line: Line = wire.connect(near)

    def wait(self) -> bytes:
        """What a worker sends, while the loop does nothing."""
        return self.sock.recv(1 << 20)

    def received(self) -> bytes:
        """What workers have sent, and was not looked at."""
        self.sock.setblocking(False)
        try:
            return self.sock.recv(1 << 20)
        except BlockingIOError:
            return b""
        finally:
            self.sock.settimeout(LIMIT_S)

    @property
    def written(self) -> bytes:
        """What the loop wrote."""
        return bytes(self.line.transport.written)


@contextlib.asynccontextmanager
async def connected(wire: Wire) -> AsyncIterator[Peer]:
    """A connection, and its end."""
    peer = Peer(wire)
    yield peer
    peer.line.lose()
    peer.near.close()
    peer.sock.close()


async def queue_up() -> None:
    """Let the loop queue what it has read, and no more."""
    await asyncio.sleep(0)


def while_held(test: Callable[[Wire, Gate], Coroutine[Any, Any, None]]) -> None:
    """On a wire where the text "hold" is encoded once its gate is open."""
    tokenizer = FakeTokenizer()
    gate = tokenizer.gate("hold")
    on_wire(lambda wire: test(wire, gate), tokenizer=tokenizer)


async def hold(peer: Peer, gate: Gate) -> None:
    """Have a worker at a request that is not answered yet."""
    peer.line.send(request("hold"))
    await eventually(gate.entered.is_set)


def body_of(answer: bytes) -> bytes:
    """The body of one whole answer."""
    head, body = answer.split(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 OK\r\n")
    assert b"content-length: %d" % len(body) in head
    return body


def test_a_worker_answers_while_the_loop_sleeps() -> None:
    """The only request in flight is answered without the loop, which counts it with the next one."""

    async def test(wire: Wire) -> None:
        async with connected(wire) as peer:
            for number in range(20):
                peer.line.send(request(f"text {number}"))
                assert wire.it.requests() == ({("fake", "ok"): number} if number else {})
                await queue_up()
                assert str(ids(f"text {number}")).replace(" ", "").encode() in body_of(peer.wait())
            assert peer.written == b""
        assert wire.it.requests() == {("fake", "ok"): 20}
        await eventually(lambda: wire.it.admission.n_requests == 0)

    on_wire(test)


def test_the_sweep_counts_what_was_answered() -> None:
    """With no further request, the next sweep ends the job: slot and bytes are given back."""

    async def test(wire: Wire) -> None:
        async with connected(wire) as peer:
            peer.line.send(request())
            await queue_up()
            body_of(peer.wait())
            await eventually(lambda: wire.it.admission.n_requests == 0)
            assert wire.it.admission.n_bytes == 0
            assert wire.it.requests() == {("fake", "ok"): 1}

    on_wire(test)


def test_beside_another_request_the_loop_answers() -> None:
    """Who finds somebody else in flight is answered by the loop, and so is who closes the connection."""

    async def test(wire: Wire, gate: Gate) -> None:
        async with connected(wire) as first, connected(wire) as second:
            await hold(first, gate)
            second.line.send(request("beside"))
            assert (await second.line.wait())[0].ids == ids("beside")
            gate.open()
            body_of(first.wait())
            second.line.send(request("last", connection="close"))
            assert (await second.line.wait(2))[1].ids == ids("last")
            assert second.line.transport.closed
            assert (first.written, second.received()) == (b"", b"")

    while_held(test)


@pytest.mark.parametrize("behind", [request("behind"), b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n"])
def test_a_request_behind_one_in_flight(behind: bytes) -> None:
    """Who is pipelined behind a request takes the right to answer it from its worker: the loop has to know the end."""

    async def test(wire: Wire, gate: Gate) -> None:
        async with connected(wire) as peer:
            await hold(peer, gate)
            peer.line.send(behind)
            gate.open()
            first, second = await peer.line.wait(2)
            assert first.ids == ids("hold")
            assert second.status == 200
            assert peer.received() == b""

    while_held(test)


def test_nothing_is_sent_behind_nonsense() -> None:
    """When the client sends what is no request, that is what it is told, and no worker comes in between."""

    async def test(wire: Wire, gate: Gate) -> None:
        async with connected(wire) as peer:
            await hold(peer, gate)
            peer.line.send(b"\x00nonsense\r\n\r\n")
            gate.open()
            await eventually(lambda: wire.it.admission.n_requests == 0)
            assert [answer.status for answer in peer.line.responses()] == [400]
            assert peer.received() == b""

    while_held(test)


def test_while_the_service_drains_the_loop_answers() -> None:
    """Answers close their connections then, which is for the loop to do."""

    async def test(wire: Wire, gate: Gate) -> None:
        async with connected(wire) as peer:
            await hold(peer, gate)
            wire.it.service.drain()
            gate.open()
            (answer,) = await peer.line.wait()
            assert answer.headers["connection"] == "close"
            assert peer.line.transport.closed

    while_held(test)


def test_a_drain_behind_an_answer_closes_the_connection() -> None:
    """An answer that was sent but not counted yet keeps no connection open."""

    async def test(wire: Wire) -> None:
        async with connected(wire) as peer:
            peer.line.send(request())
            await queue_up()
            body_of(peer.wait())
            peer.line.protocol.shutdown()
            await eventually(lambda: peer.line.transport.closed)
            assert wire.it.requests() == {("fake", "ok"): 1}

    on_wire(test)


def test_a_client_that_is_lost() -> None:
    """Behind its answer it is a request that went well; before, it is cancelled, and nothing is sent."""

    async def test(wire: Wire, gate: Gate) -> None:
        async with connected(wire) as peer:
            peer.line.send(request())
            await queue_up()
            body_of(peer.wait())
        assert wire.it.requests() == {("fake", "ok"): 1}
        async with connected(wire) as peer:
            await hold(peer, gate)
            peer.line.lose()
            gate.open()
            await eventually(lambda: wire.it.admission.n_requests == 0)
            assert (peer.received(), peer.written) == (b"", b"")
        assert wire.it.requests() == {("fake", "ok"): 1, ("", "cancelled"): 1}

    while_held(test)


def test_who_says_that_no_more_comes_gets_the_whole_answer() -> None:
    """The transport has the rest of an answer before it looks whether there is anything to send."""

    async def test(wire: Wire) -> None:
        async with connected(wire) as peer:
            peer.near.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
            peer.line.send(request("a" * 20_000))
            await queue_up()
            sent = peer.wait()
            assert not peer.line.protocol.eof_received()
            sent += peer.received() + peer.written
            assert str(ids("a" * 20_000)).replace(" ", "").encode() in body_of(sent)

    on_wire(test)


def test_who_does_not_read_what_a_worker_sent_may_not_ask_for_more() -> None:
    """Neither before nor after the answer is counted, until it is read."""

    async def test(wire: Wire) -> None:
        async with connected(wire) as peer:
            peer.line.send(request())
            await queue_up()
            body_of(peer.wait())
            peer.line.protocol.pause_writing()
            assert not peer.line.transport.reading
            await eventually(lambda: wire.it.requests() == {("fake", "ok"): 1})
            assert not peer.line.transport.reading
            peer.line.protocol.resume_writing()
            assert peer.line.transport.reading
        assert wire.it.admission.n_requests == 0

    on_wire(test)


def test_large_answers_are_finished_by_the_loop() -> None:
    """What the socket does not take comes from the loop, in order, and so does all of a very large one."""
    rng = random.Random(5)

    async def test(wire: Wire) -> None:
        async with connected(wire) as peer:
            peer.near.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
            for n_chars in (10, 12_000, 3, 200_000, 7):
                text = "".join(rng.choices("abcé\U0001f600", k=n_chars))
                before, is_large = len(peer.written), n_chars >= 12_000
                peer.line.send(request(text))
                await queue_up()
                if is_large:
                    # Nobody reads in the meantime: the socket takes a part, or nothing, and the loop has the rest.
                    await eventually(lambda n=before: len(peer.written) > n)  # type: ignore[misc]
                    answer = peer.received()
                else:
                    answer = peer.wait()
                assert bool(peer.written[before:]) == is_large
                assert str(ids(text)).replace(" ", "").encode() in body_of(answer + peer.written[before:])
                await eventually(lambda: wire.it.admission.n_requests == 0)

    on_wire(test)
