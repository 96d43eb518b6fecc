"""Waiting for sockets with timeouts of microseconds.

`epoll` counts whole milliseconds, which is more than a short request takes; `select` counts microseconds, and an epoll
is itself something that can be selected on. A sleeping thread still wakes tens of microseconds late, so the last part
of a wait is spent looking.
"""

from __future__ import annotations

import ctypes
import select
import time

PR_SET_TIMERSLACK = 29
SPIN_NS = 60_000
"""The last part of a wait."""
NS_OF_MS = 1_000_000
LONG_NS = 3 * NS_OF_MS
"""Enough for whole milliseconds, of which `epoll` makes more of a part."""
READ, WRITE = select.EPOLLIN, select.EPOLLOUT


class Poller:
    """Sockets of one thread, by file descriptor."""

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self.spun_ns = 0
        """Time spent looking when there was nothing else to do."""
        _wake_on_time()

    def add(self, fd: int, events: int) -> None:
        """Watch a new descriptor."""
        self._epoll.register(fd, events)

    def change(self, fd: int, events: int) -> None:
        """Watch a known descriptor for other events."""
        self._epoll.modify(fd, events)

    def remove(self, fd: int) -> None:
        """Forget a descriptor."""
        self._epoll.unregister(fd)

    def wait(self, timeout_ns: int) -> list[tuple[int, int]]:
        """What is ready now; if nothing is, what is ready first within the timeout."""
        if timeout_ns >= LONG_NS:
            # Most waits end here, with one system call where the other way takes three.
            until_ns = time.monotonic_ns() + timeout_ns
            if ready := self._epoll.poll((timeout_ns - SPIN_NS - NS_OF_MS) * 1e-9):
                return ready
            timeout_ns = until_ns - time.monotonic_ns()
        ready = self._epoll.poll(0)
        if ready or timeout_ns <= 0:
            return ready
        if timeout_ns <= SPIN_NS:
            return self._look(timeout_ns)
        select.select([self._epoll], (), (), (timeout_ns - SPIN_NS) * 1e-9)
        return self._epoll.poll(0)

    def _look(self, timeout_ns: int) -> list[tuple[int, int]]:
        begin = now = time.monotonic_ns()
        ready: list[tuple[int, int]] = []
        while not ready and now < begin + timeout_ns:
            ready = self._epoll.poll(0)
            now = time.monotonic_ns()
        self.spun_ns += now - begin
        return ready

    def close(self) -> None:
        """Free the descriptor."""
        self._epoll.close()


def _wake_on_time() -> None:
    """Ask the kernel not to delay this thread's timers (by 50 us, usually) to save wake-ups."""
    try:
        ctypes.CDLL(None).prctl(PR_SET_TIMERSLACK, 1, 0, 0, 0)
    except (OSError, AttributeError):
        # Not Linux's libc: wake-ups are a little late, and the result says by how much requests were.
        return
