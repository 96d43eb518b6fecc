"""Who is at the other end of a connection, as far as the system knows."""

from __future__ import annotations

import asyncio
import socket
import struct

_CREDENTIALS = struct.Struct("iii")
"""`struct ucred`: process, user, group."""


def peer_of(transport: asyncio.BaseTransport) -> str:
    """The address of a TCP peer, the user and process behind a Unix socket; empty when neither is known.

    A process in another namespace has no number here; those of one user are then taken for one.
    """
    sock = transport.get_extra_info("socket")
    if sock is None:
        return ""
    if sock.family != socket.AF_UNIX:
        address = transport.get_extra_info("peername")
        return str(address[0]) if address else ""
    try:
        process, user, _ = _CREDENTIALS.unpack(
            sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        )
    except OSError:
        return ""
    return f"user {user} process {process}"
