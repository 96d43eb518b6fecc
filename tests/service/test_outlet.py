"""The way out of a connection: nothing is lost, doubled or overtaken, whoever sends."""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
import threading
from collections.abc import Callable, Iterator

import pytest
import uvloop

from service.outlet import Outlet
from tests.fakes import LIMIT_S, FakeLoop
from tests.service_fakes import FakeTransport


class Rig:
    """An outlet above one end of a pair of sockets; what the loop writes goes through the same socket."""

    def __init__(self) -> None:
        self.near, self.peer = socket.socketpair()
        self.near.setblocking(False)
        self.near.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        self.loop = FakeLoop()
        self.transport = SocketTransport(self.near)
        self.outlet = Outlet(self.transport, self.loop.wake)
        self.n_claims = 0

    def claim(self) -> bool:
        """Count the question, and say yes."""
        self.n_claims += 1
        return True

    def received(self) -> bytes:
        """What the peer has got so far."""
        self.peer.setblocking(False)
        data = b""
        with contextlib.suppress(BlockingIOError):
            while piece := self.peer.recv(1 << 20):
                data += piece
        return data


class SocketTransport(FakeTransport):
    """Keeps what it is given until the test lets it go out."""

    def __init__(self, sock: socket.socket) -> None:
        super().__init__()
        self.sock = sock

    def get_write_buffer_size(self) -> int:
        """What it keeps."""
        return len(self.written)


@pytest.fixture
def rig() -> Iterator[Rig]:
    """A connection."""
    rig = Rig()
    yield rig
    rig.near.close()
    rig.peer.close()


def test_a_permitted_worker_sends(rig: Rig) -> None:
    """What the socket takes is sent at once, and the loop hears nothing of it."""
    assert rig.outlet.permit()
    rig.outlet.send([b"he", b"", b"ad"], rig.claim)
    rig.outlet.send([b"second"], rig.claim)
    assert rig.received() == b"headsecond"
    assert rig.n_claims == 2
    rig.loop.run_ready()
    assert not rig.transport.written


def test_no_permission_no_sending(rig: Rig) -> None:
    """Without permission, or after the loop wrote, flushed or closed, nothing is claimed and nothing sent."""
    rig.outlet.send([b"a"], rig.claim)
    for pieces in ([b"loop"], [b"lo", b"op"], []):
        assert rig.outlet.permit()
        if pieces:
            rig.outlet.write(*pieces)
        else:
            rig.outlet.flush()
        rig.outlet.send([b"a"], rig.claim)
        assert bytes(rig.transport.written) == b"".join(pieces)
        rig.transport.written.clear()
    rig.outlet.close()
    assert not rig.outlet.permit()
    rig.outlet.send([b"a"], rig.claim)
    assert (rig.n_claims, rig.received()) == (0, b"")


def test_who_may_not_answer_does_not_send(rig: Rig) -> None:
    """An answer that somebody else gives is not sent."""
    rig.outlet.permit()
    rig.outlet.send([b"a"], lambda: False)
    assert rig.received() == b""


def test_a_transport_that_holds_something_is_not_overtaken(rig: Rig) -> None:
    """There is no permission while the transport has something to send, nor without a socket."""
    rig.transport.write(b"waits")
    assert not rig.outlet.permit()
    rig.transport.written.clear()
    assert rig.outlet.permit()
    assert not Outlet(FakeTransport(), rig.loop.wake).permit()


@pytest.mark.parametrize("n_bytes", [200_000, 1_000_000])
def test_what_the_socket_does_not_take_is_left_to_the_loop(rig: Rig, n_bytes: int) -> None:
    """The rest of a large answer is given to the transport once, and before anything else that is written."""
    data = random.Random(1).randbytes(n_bytes)
    rig.outlet.permit()
    rig.outlet.send([data[:1], data[1:77], data[77:]], rig.claim)
    # Nobody overtakes it: it is still left.
    rig.outlet.send([b"no"], rig.claim)
    rig.outlet.write(b"next")
    rig.loop.run_ready()
    assert rig.received() + bytes(rig.transport.written) == data + b"next"
    assert rig.n_claims == 1


def test_a_full_socket_takes_nothing(rig: Rig) -> None:
    """With no room at all everything is left, in order; the loop is told."""
    rig.outlet.permit()
    rig.outlet.send([bytes(1 << 20)], rig.claim)
    rig.loop.run_ready()
    before = bytes(rig.transport.written)
    rig.transport.written.clear()
    assert rig.outlet.permit()
    rig.outlet.send([b"behind", b"it"], rig.claim)
    rig.loop.run_ready()
    assert rig.transport.written == b"behindit"
    assert rig.received() + before == bytes(1 << 20)


def test_a_broken_connection_is_left_to_the_transport(rig: Rig) -> None:
    """A peer that is gone raises nothing; the transport gets the answer, and finds out."""
    rig.peer.close()
    rig.outlet.permit()
    rig.outlet.send([b"answer"], rig.claim)
    rig.loop.run_ready()
    assert rig.transport.written == b"answer"


def test_what_is_left_goes_with_the_connection(rig: Rig) -> None:
    """The transport of a connection that is gone is not asked to send the rest of an answer."""
    rig.outlet.permit()
    rig.outlet.send([bytes(1 << 20)], rig.claim)
    rig.outlet.close()
    rig.loop.run_ready()
    assert not rig.transport.written


@pytest.mark.parametrize("closes", [False, True])
def test_the_loop_waits_for_a_worker_that_sends(rig: Rig, closes: bool) -> None:
    """What the loop writes, and its closing, come behind an answer that a worker has begun."""
    begun, go_on = threading.Event(), threading.Event()

    def claim() -> bool:
        begun.set()
        return go_on.wait(LIMIT_S)

    rig.outlet.permit()
    worker = threading.Thread(target=rig.outlet.send, args=([b"answer"], claim))
    worker.start()
    assert begun.wait(LIMIT_S)
    threading.Timer(0.01, go_on.set).start()
    if closes:
        rig.outlet.close()
    else:
        rig.outlet.write(b"next")
    assert rig.received() == b"answer"
    worker.join(LIMIT_S)
    assert bytes(rig.transport.written) == (b"" if closes else b"next")


@pytest.mark.parametrize("new_loop", [asyncio.new_event_loop, uvloop.new_event_loop])
@pytest.mark.parametrize("seed", range(3))
def test_any_mixture_arrives_in_order(seed: int, new_loop: Callable[[], asyncio.AbstractEventLoop]) -> None:
    """Workers and the loop in any order, over a real transport whose peer reads when it likes: the stream is whole."""
    rng = random.Random(seed)
    answers = [rng.randbytes(rng.choice([1, 100, 5_000, 300_000])) for _ in range(60)]

    async def main() -> bytes:
        near, peer = socket.socketpair()
        near.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
        peer.setblocking(False)
        loop = asyncio.get_running_loop()
        transport, _ = await loop.create_connection(asyncio.Protocol, sock=near)
        outlet, received = Outlet(transport, loop.call_soon_threadsafe), bytearray()

        async def read() -> None:
            while piece := await loop.sock_recv(peer, rng.choice([7, 1 << 12, 1 << 18])):
                received.extend(piece)
                if rng.random() < 0.1:
                    await asyncio.sleep(0)

        reader = asyncio.ensure_future(read())
        for answer in answers:
            sent = threading.Event()

            def claim(sent: threading.Event = sent) -> bool:
                sent.set()
                return True

            if outlet.permit() and rng.random() < 0.9:
                await loop.run_in_executor(None, outlet.send, [answer[:3], answer[3:]], claim)
            if not sent.is_set():
                outlet.write(answer)
            if rng.random() < 0.5:
                await asyncio.sleep(0)
        outlet.flush()
        outlet.close()
        transport.close()
        await reader
        peer.close()
        return bytes(received)

    with asyncio.Runner(loop_factory=new_loop) as runner:
        assert runner.run(main()) == b"".join(answers)
