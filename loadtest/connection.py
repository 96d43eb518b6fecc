"""One connection of a client: at most one request on the way."""

from __future__ import annotations

import socket

from loadtest.target import Target
from loadtest.wire import Answer, Buffer, MalformedAnswer, Reader

MAX_BUFFERS = 512
"""Of one call; the kernel takes 1,024."""


class ConnectionClosed(Exception):
    """The other side closed or reset the connection before the end of an answer."""


class Connection:
    """A socket, what is still to be sent on it, and the reader of its answers. Raises `OSError` when it cannot open."""

    __slots__ = ("_out", "_reader", "fd", "row", "sock")

    def __init__(self, target: Target, reader: Reader) -> None:
        self.sock: socket.socket = target.open()
        self.fd = self.sock.fileno()
        self.row = -1
        """The request on the way, or -1."""
        self._reader = reader
        self._out: list[memoryview] = []

    @property
    def reusable(self) -> bool:
        """Whether another request may follow the answer that has just been read."""
        return self._reader.reusable and not self._out

    def begin(self, row: int, buffers: list[Buffer], keep_body: bool) -> bool:
        """Start a request; whether all of it was sent."""
        self.row = row
        self._out = [memoryview(buffer) for buffer in buffers]
        self._reader.expect(keep_body)
        return self.flush()

    def flush(self) -> bool:
        """Send what the socket takes; whether nothing is left.

        Raises `ConnectionClosed`, and `OSError` without a connection.
        """
        while self._out:
            try:
                n_bytes = self.sock.sendmsg(self._out[:MAX_BUFFERS])
            except BlockingIOError:
                return False
            except (BrokenPipeError, ConnectionResetError) as error:
                raise ConnectionClosed from error
            while self._out and n_bytes >= len(self._out[0]):
                n_bytes -= len(self._out.pop(0))
            if n_bytes:
                self._out[0] = self._out[0][n_bytes:]
        return True

    def read(self, scratch: memoryview) -> Answer | None:
        """Read what has arrived; the answer, once it is complete.

        Raises `ConnectionClosed`, `MalformedAnswer`, and `OSError` for no connection.
        """
        try:
            n_bytes = self.sock.recv_into(scratch)
        except BlockingIOError:
            return None
        except (BrokenPipeError, ConnectionResetError) as error:
            raise ConnectionClosed from error
        if n_bytes == 0:
            raise ConnectionClosed
        if self.row < 0:
            raise MalformedAnswer("bytes that no request asked for")
        return self._reader.feed(scratch[:n_bytes])

    def close(self) -> None:
        """Close the socket."""
        self.sock.close()
