"""The way out of one connection, for the event loop and for the worker that wrote an answer.

Waking the event loop takes longer than to encode a short document. So where nothing else is in flight, the worker sends
the answer itself, through the socket below the transport:

    worker: write ─► send ─┬─ all of it ─► sleep                         the loop counts the answer when it is up anyway
                           └─ a part ─► the loop is woken ─► flush       what the socket did not take

A transport belongs to the loop, and what it holds must not be overtaken. So a worker sends only by permission, which is
given while the transport holds nothing, and taken back by whatever the loop writes.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Callable, Sequence
from typing import Any

Buffer = bytes | memoryview


class Outlet:
    """`send` is called by workers, everything else on the event loop."""

    def __init__(self, transport: asyncio.Transport, wake: Callable[[Callable[[], None]], Any]) -> None:
        """`wake` schedules a callback on the event loop from any thread."""
        self._transport = transport
        self._wake = wake
        sock = transport.get_extra_info("socket")
        self._fd: int = -1 if sock is None else sock.fileno()
        self._may_send = False
        self._left: list[Buffer] = []
        self._lock = threading.Lock()

    def permit(self) -> bool:
        """Let a worker send, until the loop writes; false where it cannot."""
        # No worker holds the lock for long, and none that still does is in the way: the next one waits for it.
        self._may_send = self._fd >= 0 and not self._transport.get_write_buffer_size()
        return self._may_send

    def send(self, pieces: list[bytes], claim: Callable[[], bool]) -> None:
        """Send without waiting, if that is permitted and `claim` says so; the loop sends what is left.

        A broken connection is for the transport to find.
        """
        with self._lock:
            if not self._may_send or self._left or not claim():
                return
            try:
                n_bytes = os.writev(self._fd, pieces)
            except OSError:
                n_bytes = 0
            self._left = _behind(pieces, n_bytes)
            is_left = bool(self._left)
        if is_left:
            self._wake(self.flush)

    def write(self, *pieces: bytes) -> None:
        """Send what is left of earlier answers, and this."""
        self.flush()
        if len(pieces) == 1:
            self._transport.write(pieces[0])
        else:
            self._transport.writelines(pieces)

    def flush(self) -> None:
        """Take the permission back, and give what is left to the transport: what that is given next comes behind it.

        Waits for a worker that sends, which does not take long.
        """
        # In this order: what a worker leaves is there when it lets go of the lock.
        if not self._lock.locked() and not self._left and not self._may_send:
            return
        with self._lock:
            self._may_send = False
            left, self._left = self._left, []
        if left:
            self._transport.writelines(left)

    def close(self) -> None:
        """To be called before the descriptor is closed: no worker uses it any more, and what is left is dropped."""
        with self._lock:
            self._may_send = False
            self._fd = -1
            self._left = []


def _behind(pieces: Sequence[Buffer], n_bytes: int) -> list[Buffer]:
    """The pieces without the first bytes."""
    left: list[Buffer] = []
    for piece in pieces:
        if n_bytes < len(piece):
            left.append(memoryview(piece)[n_bytes:] if n_bytes else piece)
        n_bytes = max(0, n_bytes - len(piece))
    return left
