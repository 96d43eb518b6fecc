"""What a worker sleeps at, and how it is woken."""

from __future__ import annotations

import os
import sys

_ONCE = (1).to_bytes(8, sys.byteorder)


class Bell:
    """Rung by any thread, waited at by one.

    A `threading.Lock` would do, but who releases it keeps the interpreter meanwhile: the woken thread, often on the
    same CPU, asks for the interpreter at once, sleeps again, and is woken a second time. A system call gives the
    interpreter away.
    """

    __slots__ = ("_fd",)

    def __init__(self) -> None:
        self._fd = os.eventfd(0, os.EFD_CLOEXEC)

    def ring(self) -> None:
        """Wake the thread that waits, or will wait next."""
        # Not `os.eventfd_write` and `os.eventfd_read`: these fail when a signal comes in between.
        os.write(self._fd, _ONCE)

    def wait(self) -> None:
        """Sleep until the bell was rung since the last time."""
        os.read(self._fd, 8)

    def close(self) -> None:
        """Nobody may wait or ring any more."""
        os.close(self._fd)
