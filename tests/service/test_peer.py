"""Who is at the other end of a connection."""

from __future__ import annotations

import asyncio
import os
import socket
from typing import Any

from service.peer import peer_of


class Transport(asyncio.BaseTransport):
    """Knows this."""

    def __init__(self, **known: Any) -> None:
        super().__init__()
        self._known = known

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """See `asyncio.BaseTransport`."""
        return self._known.get(name, default)


def test_peers() -> None:
    """TCP by address without the port, Unix sockets by user and process; nothing for what is not known."""
    a, b = socket.socketpair(socket.AF_UNIX)
    tcp = socket.socket()
    with a, b, tcp:
        assert peer_of(Transport(socket=a)) == f"user {os.getuid()} process {os.getpid()}"
        assert peer_of(Transport(socket=tcp, peername=("10.0.0.7", 4711))) == "10.0.0.7"
        assert peer_of(Transport(socket=tcp, peername=None)) == ""
    assert peer_of(Transport(socket=a)) == peer_of(Transport()) == ""
