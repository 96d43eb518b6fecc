"""Waiting for a descriptor to the microsecond. `poll` and `epoll` round what they wait for up to milliseconds."""

from __future__ import annotations

import select
import time

_SET_SIZE = 1024
"""`select` takes no descriptor from here on, and a process may have as many open."""
_STEP_S = 250e-6


def wait_readable(fd: int, seconds: float) -> bool:
    """Wait until a descriptor is readable, or for so long; whether it is."""
    seconds = max(seconds, 0.0)
    if fd < _SET_SIZE:
        return bool(select.select((fd,), (), (), seconds)[0])
    news = select.poll()
    news.register(fd, select.POLLIN)
    if news.poll(int(seconds * 1000)):
        return True
    time.sleep(min(seconds % 1e-3, _STEP_S))
    return bool(news.poll(0))
