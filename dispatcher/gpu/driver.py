"""GPU routes that are driven by their caller, who has an event loop of its own: no thread has to be woken for a replay.

    loop: driver.fileno() is readable ─► driver.turn() ─► launches, results, callbacks

Submitting is as from any thread; all else happens in `turn`, on the caller's thread.
"""

from __future__ import annotations

import contextlib
import os
import select
import threading
from collections import deque

from dispatcher.gpu.group import ENGINE_SILENT, NOT_READY
from dispatcher.gpu.process_link import ProcessLink
from dispatcher.gpu.route import GpuRoute


class RouteDriver:
    """Turns any number of routes. `serve` and `wake` from any thread, `turn` and `close` from one."""

    def __init__(self) -> None:
        self._poll = select.epoll()
        self._news_fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._poll.register(self._news_fd, select.EPOLLIN)
        self._driven: tuple[_Driven, ...] = ()
        self._has_news = self._is_turning = self._closed = False
        self._lock = threading.Lock()
        """Of the descriptor of news, between `wake` and `close`."""

    def fileno(self) -> int:
        """A descriptor that is readable when `turn` has something to do."""
        return self._poll.fileno()

    def add(self, route: GpuRoute) -> None:
        """Drive a route, too; on the thread that serves its links."""
        self._driven = (*self._driven, _Driven(route))

    def serve(self, route: GpuRoute, link: ProcessLink) -> None:
        """Serve a route through a link, from the next turn on."""
        next(driven for driven in self._driven if driven.route is route).links.append(link)
        self.wake()

    def wake(self) -> None:
        """Let there be a turn: a link is lost, or new."""
        self._has_news = True
        with self._lock:
            if not self._closed:
                os.eventfd_write(self._news_fd, 1)

    def turn(self) -> None:
        """Take results, launch, call back; never waits. At least ten times a second, and when `fileno` is readable."""
        if self._is_turning or self._closed:
            return
        self._is_turning = True
        try:
            if self._has_news:
                self._has_news = False
                with contextlib.suppress(BlockingIOError):
                    os.eventfd_read(self._news_fd)
            for driven in self._driven:
                if driven.link is None and driven.links:
                    self._begin(driven, driven.links.popleft())
                if driven.link is not None:
                    self._turn(driven, driven.link)
        finally:
            self._is_turning = False

    def close(self) -> None:
        """End all routes: what is queued or in flight falls back."""
        for driven in self._driven:
            driven.route.close()
        with self._lock:
            if not self._closed:
                self._closed = True
                os.close(self._news_fd)
                self._poll.close()

    def _begin(self, driven: _Driven, link: ProcessLink) -> None:
        driven.link = link
        driven.route.attach(link)
        link.watch(lambda fd: self._poll.register(fd, select.EPOLLIN))

    def _turn(self, driven: _Driven, link: ProcessLink) -> None:
        reason = driven.route.turn(0.0)
        if not reason:
            if driven.route.is_filling:
                link.interrupt()
            return
        driven.link = None
        link.watch(self._poll.unregister)
        if reason == ENGINE_SILENT:
            link.kill(SILENT)
        elif reason != NOT_READY:
            link.kill(UNUSABLE)
        if driven.links:
            self.wake()


SILENT = "a replay was not finished in time"
UNUSABLE = "its answers could not be used"
"""Why an engine is ended by its route. The second: it may live on, and say nonsense; only a new one is served again."""


class _Driven:
    """A route, the link that it is served through, and those that come after."""

    def __init__(self, route: GpuRoute) -> None:
        self.route = route
        self.link: ProcessLink | None = None
        self.links: deque[ProcessLink] = deque()
