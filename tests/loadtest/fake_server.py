"""A server that does what a script says: right answers, wrong ones, half ones, none, or a closed connection."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import numpy as np

Reply = bytes | None
"""Bytes to send, empty to close the connection at once, None to never answer."""
Script = Callable[[int, bytes], Reply]
"""Gets the number of the request and its body."""


def http(status: int, body: bytes, *headers: str) -> bytes:
    """An answer as it goes over the wire."""
    lines = [f"HTTP/1.1 {status} X", f"Content-Length: {len(body)}", *headers, "", ""]
    return "\r\n".join(lines).encode() + body


def ids_of_bytes(body: bytes) -> bytes:
    """What a tokenizer with an id for each byte answers in the octet-stream codec."""
    return np.frombuffer(body, np.uint8).astype("<u4").tobytes()


class FakeServer:
    """Listens on a free port of this machine, or where it is told to, a thread for each connection."""

    def __init__(self, script: Script, listener: socket.socket | None = None) -> None:
        self._script = script
        self._listener = listener or socket.create_server(("127.0.0.1", 0))
        self._sockets: list[socket.socket] = []
        self._lock = threading.Lock()
        self._is_stopped = False
        self.n_requests = self.n_answers = 0
        """Received and sent as a whole."""
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def port(self) -> int:
        """Where it listens."""
        return int(self._listener.getsockname()[1])

    def stop(self) -> None:
        """Die: stop listening and close every connection."""
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        with self._lock:
            self._is_stopped = True
        for sock in self._sockets:
            _end(sock)

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                sock, _ = self._listener.accept()
                with self._lock:
                    if self._is_stopped:
                        _end(sock)
                        return
                    self._sockets.append(sock)
                threading.Thread(target=self._serve, args=(sock,), daemon=True).start()

    def _serve(self, sock: socket.socket) -> None:
        with suppress(OSError, ValueError):
            buffer = b""
            while True:
                while b"\r\n\r\n" not in buffer:
                    buffer += _some(sock)
                head, buffer = buffer.split(b"\r\n\r\n", 1)
                length = next(
                    (
                        int(line.split(b":")[1])
                        for line in head.split(b"\r\n")
                        if line.lower().startswith(b"content-le")
                    ),
                    0,
                )
                while len(buffer) < length:
                    buffer += _some(sock)
                body, buffer = buffer[:length], buffer[length:]
                with self._lock:
                    number, self.n_requests = self.n_requests, self.n_requests + 1
                reply = self._script(number, body)
                if reply is None:
                    continue
                if reply == b"":
                    sock.shutdown(socket.SHUT_RDWR)
                    return
                sock.sendall(reply)
                with self._lock:
                    self.n_answers += 1


def _end(sock: socket.socket) -> None:
    with suppress(OSError):
        sock.shutdown(socket.SHUT_RDWR)
    sock.close()


def _some(sock: socket.socket) -> bytes:
    data = sock.recv(1 << 16)
    if not data:
        raise ValueError("closed")
    return data


@contextmanager
def faking(script: Script, listener: socket.socket | None = None) -> Iterator[FakeServer]:
    """A server with this script, gone afterwards."""
    server = FakeServer(script, listener)
    try:
        yield server
    finally:
        server.stop()
