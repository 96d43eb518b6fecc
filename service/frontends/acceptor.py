"""Accepting from sockets that other frontends accept from, too, so that each gets as many connections.

A socket that is readable wakes all of them, and who looks first would get most: four processes with the same listener
end with twice the mean on one of them. So one that has more connections than another waits a moment for that one, if
that one has not more requests in flight.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Sequence

from service.frontends.board import ABSENT, Board

PATIENCE_S = 0.002
"""How long a connection waits for a frontend that has less to do, but may be busy."""
FULL_S = 0.1
"""How long nothing is accepted when the process can open no more descriptors."""
MAX_OUT_OF_TURN = 8
"""Connections that are taken at a time in the place of a frontend that does not come."""
MAX_AT_ONCE = 64
"""Connections accepted before the event loop gets its turn."""


class Acceptor:
    """Takes connections on one event loop, and stands where uvicorn expects a server."""

    def __init__(
        self,
        socks: Sequence[socket.socket],
        make_protocol: Callable[[], asyncio.Protocol],
        n_connections: Callable[[], int],
        n_in_flight: Callable[[], int],
        board: Board,
        number: int,
    ) -> None:
        """`n_connections`: those that are open; `n_in_flight`: requests. `number`: of this frontend on the board."""
        self._loop = asyncio.get_running_loop()
        self._socks = list(socks)
        self._make_protocol = make_protocol
        self._n_connections = n_connections
        self._n_in_flight = n_in_flight
        self._board = board
        self._number = number
        self._connecting: set[asyncio.Task[object]] = set()
        self._patient = True
        self._n_out_of_turn = 1
        """Doubled whenever so many had to be taken."""
        self._closed = False

    def start(self) -> None:
        """Begin to accept."""
        self.show()
        for sock in self._socks:
            sock.setblocking(False)
            self._loop.add_reader(sock.fileno(), self._readable, sock)

    def show(self) -> None:
        """Write to the board what there is to do. Called periodically, and for each new connection."""
        if not self._closed:
            self._board.write(self._number, self._n_own, self._n_in_flight())

    def hurry(self) -> None:
        """Accept whatever there is from now on, whoever has fewer."""
        self._patient = False

    def close(self) -> None:
        """Accept nothing more; the sockets stay open."""
        if not self._closed:
            self._closed = True
            self._board.write(self._number, ABSENT)
            for sock in self._socks:
                self._loop.remove_reader(sock.fileno())

    async def wait_closed(self) -> None:
        """Wait for connections that are being set up."""
        if self._connecting:
            await asyncio.wait(self._connecting)

    @property
    def _n_own(self) -> int:
        return self._n_connections() + len(self._connecting)

    def _readable(self, sock: socket.socket) -> None:
        self._take(sock, 0 if self._patient else MAX_AT_ONCE)

    def _take(self, sock: socket.socket, n_out_of_turn: int) -> None:
        """Accept what is there while it is this frontend's turn, and so many even if it is not."""
        for n_taken in range(MAX_AT_ONCE):
            if self._is_next():
                self._n_out_of_turn = 1
            elif n_taken >= n_out_of_turn:
                if n_taken:
                    self._n_out_of_turn = min(2 * n_taken, MAX_OUT_OF_TURN)
                self._pause(sock, PATIENCE_S)
                return
            try:
                connection, _ = sock.accept()
            except BlockingIOError:
                return
            except ConnectionAbortedError:
                continue
            except OSError:
                # No descriptors are left. The socket stays readable, so looking again at once would take a CPU.
                self._pause(sock, FULL_S)
                return
            self._serve(connection)

    def _is_next(self) -> bool:
        return not self._board.has_less(self._n_own, self._n_in_flight())

    def _pause(self, sock: socket.socket, seconds: float) -> None:
        self._loop.remove_reader(sock.fileno())
        self._loop.call_later(seconds, self._resume, sock)

    def _resume(self, sock: socket.socket) -> None:
        """Take some of what nobody took in the meantime."""
        if not self._closed:
            self._loop.add_reader(sock.fileno(), self._readable, sock)
            self._take(sock, self._n_out_of_turn if self._patient else MAX_AT_ONCE)

    def _serve(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        task: asyncio.Task[object] = self._loop.create_task(self._connect(connection))
        self._connecting.add(task)
        task.add_done_callback(self._connecting.discard)
        self.show()

    async def _connect(self, connection: socket.socket) -> None:
        try:
            await self._loop.connect_accepted_socket(self._make_protocol, connection)
        except OSError:
            connection.close()
