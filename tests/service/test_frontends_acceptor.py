"""Accepting in turn: who has more connections waits for who has fewer, but not for long, and the count is shown."""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import socket
from collections.abc import AsyncIterator
from functools import partial

import pytest

from service.frontends.acceptor import PATIENCE_S, Acceptor
from service.frontends.board import ABSENT, Board
from tests.fakes import LIMIT_S
from tests.service_fakes import eventually


class Host(asyncio.Protocol):
    """Connections of one frontend."""

    def __init__(self) -> None:
        self.open: set[asyncio.BaseTransport] = set()

    def n_open(self) -> int:
        """How many there are."""
        return len(self.open)

    def protocol(self) -> asyncio.Protocol:
        """One connection."""
        return _Counted(self.open)


class _Counted(asyncio.Protocol):
    def __init__(self, open_ones: set[asyncio.BaseTransport]) -> None:
        self._open = open_ones

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport
        self._open.add(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self._open.discard(self.transport)


class Rig:
    """A listener with acceptors on one loop, and clients."""

    def __init__(self, n: int) -> None:
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.board, fd = Board.make(n)
        os.close(fd)
        self.hosts = [Host() for _ in range(n)]
        # As in processes of their own: descriptors that share one queue.
        self.socks = [self.listener.dup() for _ in range(n)]
        self.acceptors = [
            Acceptor([sock], host.protocol, host.n_open, lambda: self.n_in_flight, self.board, number)
            for number, (host, sock) in enumerate(zip(self.hosts, self.socks, strict=True), 1)
        ]
        self.clients: list[socket.socket] = []
        self.n_in_flight = 0

    def connect(self) -> None:
        """One more client."""
        self.clients.append(socket.create_connection(self.listener.getsockname()))

    @property
    def n_open(self) -> list[int]:
        """Connections by frontend."""
        return [host.n_open() for host in self.hosts]


@contextlib.asynccontextmanager
async def rig(n: int) -> AsyncIterator[Rig]:
    """A rig that is cleaned up."""
    it = Rig(n)
    try:
        yield it
    finally:
        for acceptor in it.acceptors:
            acceptor.close()
            await acceptor.wait_closed()
        for host in it.hosts:
            for transport in tuple(host.open):
                transport.close()
        for client in it.clients:
            client.close()
        for sock in (it.listener, *it.socks):
            sock.close()


def test_everybody_gets_as_many() -> None:
    """Kept connections that come one after the other are spread evenly."""

    async def test() -> None:
        async with rig(3) as it:
            for acceptor in it.acceptors:
                acceptor.start()
            for n in range(1, 13):
                it.connect()
                await eventually(partial(_sums_up, it, n))
                # Who let another one go first looks again in a moment, and takes what there is then, out of turn.
                await asyncio.sleep(2 * PATIENCE_S)
            assert it.n_open == [4, 4, 4]

    asyncio.run(test())


@pytest.mark.parametrize("n_clients", [1, 2, 3, 20])
def test_nobody_waits_for_long(n_clients: int) -> None:
    """A frontend that has fewer connections but does not come is waited for once in a while, and never for good."""

    async def test() -> None:
        async with rig(2) as it:
            it.board.write(2, 0)
            it.acceptors[0].start()
            for _ in range(n_clients):
                it.connect()
            await eventually(lambda: it.n_open == [n_clients, 0])

    asyncio.run(test())


@pytest.mark.parametrize(("in_flight", "is_waited_for"), [(0, True), (1, True), (2, False)])
def test_nobody_waits_for_who_is_busier(in_flight: int, is_waited_for: bool) -> None:
    """Who has fewer connections but more to do gets no further ones: clients may keep idle connections elsewhere."""

    async def test() -> None:
        async with rig(2) as it:
            it.n_in_flight = 1
            it.acceptors[0].start()
            it.connect()
            await eventually(lambda: it.n_open == [1, 0])
            it.board.write(2, 0, in_flight)
            begin_s = asyncio.get_running_loop().time()
            it.connect()
            await eventually(lambda: it.n_open == [2, 0])
            assert not is_waited_for or asyncio.get_running_loop().time() - begin_s >= PATIENCE_S

    asyncio.run(test())


def test_the_board_follows() -> None:
    """Closed connections are seen when the count is shown again; who closed is absent, and stays so."""

    async def test() -> None:
        async with rig(2) as it:
            acceptor = it.acceptors[0]
            assert it.board.read(1) == (ABSENT, 0)
            acceptor.start()
            assert it.board.read(1) == (0, 0)
            it.n_in_flight = 5
            it.connect()
            await eventually(lambda: it.n_open == [1, 0])
            assert it.board.read(1) == (1, 5)
            it.clients[0].close()
            await eventually(lambda: it.n_open == [0, 0])
            acceptor.show()
            assert it.board.read(1) == (0, 5)
            acceptor.close()
            acceptor.show()
            assert it.board.read(1) == (ABSENT, 0)

    asyncio.run(test())


def test_a_hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a drain everything is taken, whoever has fewer: nobody is waited for."""
    monkeypatch.setattr("service.frontends.acceptor.PATIENCE_S", 10 * LIMIT_S)

    async def test() -> None:
        async with rig(2) as it:
            it.board.write(2, 0)
            it.acceptors[0].start()
            it.acceptors[0].hurry()
            for _ in range(10):
                it.connect()
            await eventually(lambda: it.n_open[0] == 10)

    asyncio.run(test())


def test_after_the_end_nothing_is_accepted() -> None:
    """What waits is left to others; the listener stays open."""

    async def test() -> None:
        async with rig(2) as it:
            for acceptor in it.acceptors:
                acceptor.start()
            it.acceptors[0].close()
            it.connect()
            await eventually(lambda: it.n_open == [0, 1])
            it.acceptors[1].close()
            it.connect()
            await _turns(3)
            assert it.n_open == [0, 1]
            assert select.select([it.listener], [], [], LIMIT_S)[0]
            it.listener.accept()[0].close()
            assert not it.board.has_less(100, 100)

    asyncio.run(test())


def test_a_board() -> None:
    """Everybody is absent at first; who has fewer connections, and not more in flight, has less to do."""
    board, fd = Board.make(3)
    same = Board(fd, 3)
    os.close(fd)
    assert not board.has_less(100, 100)
    same.write(2, 7, 3)
    assert board.read(2) == (7, 3)
    assert board.has_less(8, 3)
    assert not board.has_less(7, 3)
    assert not board.has_less(8, 2)
    same.write(3, 5, 9)
    assert not board.has_less(7, 8)
    assert board.has_less(7, 9)
    same.write(3, ABSENT)
    assert not board.has_less(7, 9)
    assert board.beats(2) == 0
    same.beat(2)
    assert board.beats(2) != 0
    board.clear(2)
    assert board.read(2) == (ABSENT, 0)
    assert board.beats(2) == 0


def _sums_up(it: Rig, n: int) -> bool:
    return sum(it.n_open) == n


async def _turns(n: int) -> None:
    for _ in range(n):
        await asyncio.sleep(0.001)
