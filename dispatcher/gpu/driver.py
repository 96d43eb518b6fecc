"""GPU routes that are driven by their caller, who has an event loop of its own: no thread has to be woken for a replay.

    loop: driver.fileno() is readable ─► driver.turn() ─► launches, results, callbacks
    a caller without a loop: driver.rest(seconds) ─► waits, and takes the turns that there are

Submitting is as from any thread; all else happens in `turn` and `rest`, on the caller's thread. The end of a replay on
an engine of this process makes nothing readable: that takes `rest`.
"""

from __future__ import annotations

import contextlib
import os
import select
import threading
from collections import deque

from dispatcher.gpu.group import ENGINE_SILENT, NOT_READY
from dispatcher.gpu.local_link import LocalLink
from dispatcher.gpu.process_link import ProcessLink
from dispatcher.gpu.readable import wait_readable
from dispatcher.gpu.route import GpuRoute
from dispatcher.gpu.short_ways import ShortWays


class RouteDriver:
    """Turns any number of routes. `serve` and `wake` from any thread, `turn` and `close` from one."""

    def __init__(self) -> None:
        self._poll = select.epoll()
        self._news_fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._poll.register(self._news_fd, select.EPOLLIN)
        self._driven: tuple[_Driven, ...] = ()
        self._has_news = self._is_turning = self._closed = False
        self._local: LocalLink | None = None
        """The engine of this process, if there is one: it is alone then."""
        self._short: ShortWays | None = None
        """Its texts that need no turn of the route."""
        self._lock = threading.Lock()
        """Of the descriptor of news, between `wake` and `close`."""

    def fileno(self) -> int:
        """A descriptor that is readable when `turn` has something to do."""
        return self._poll.fileno()

    def add(self, route: GpuRoute) -> None:
        """Drive a route, too; on the thread that serves its links."""
        self._driven = (*self._driven, _Driven(route))

    def serve(self, route: GpuRoute, link: ProcessLink | LocalLink) -> None:
        """Serve a route through a link, from the next turn on."""
        next(driven for driven in self._driven if driven.route is route).links.append(link)
        self.wake()

    def wake(self) -> None:
        """Let there be a turn: a link is lost, or new."""
        self._has_news = True
        # The thread that drives may end it meanwhile.
        local = self._local
        if local is not None:
            local.interrupt()
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

    def rest(self, seconds: float) -> bool:
        """Wait until there is something to do, or for so long, and do it; whether there was.

        While an engine of this process is busy and would not begin with more, it takes until one of its replays ends.
        """
        local = self._local
        if self._is_turning or self._closed:
            return False
        if local is None or self._has_news:
            is_ready = self._has_news or wait_readable(self._poll.fileno(), seconds)
            if is_ready:
                self.turn()
            return is_ready
        self._is_turning = True
        try:
            short = self._short
            if short is not None:
                if (native := short.native) is not None:
                    if native.turn(seconds) is not False:
                        return True
                    if native.n_flying:
                        short.adopt_late()
                if short.flights and short.turn(seconds):
                    short.calm()
                    return True
            driven = self._driven[0]
            is_busy = local.is_busy
            is_full = local.may_oversleep = is_busy and driven.route.is_full
            if reason := driven.route.turn(FULL_S if is_full else seconds):
                self._end(driven, local, reason)
            elif short is not None:
                short.calm()
            return is_busy
        finally:
            self._is_turning = False

    @property
    def is_busy(self) -> bool:
        """Whether replays are under way on an engine of this process."""
        local, short = self._local, self._short
        return local is not None and (local.is_busy or (short is not None and short.n_under_way > 0))

    def close(self) -> None:
        """End all routes: what is queued or in flight falls back."""
        for driven in self._driven:
            driven.route.close()
        with self._lock:
            if not self._closed:
                self._closed = True
                os.close(self._news_fd)
                self._poll.close()

    def _begin(self, driven: _Driven, link: ProcessLink | LocalLink) -> None:
        driven.link = link
        driven.route.attach(link)
        if isinstance(link, LocalLink):
            self._local, self._short = link, driven.route.short
        link.watch(lambda fd: self._poll.register(fd, select.EPOLLIN))

    def _turn(self, driven: _Driven, link: ProcessLink | LocalLink) -> None:
        if (short := self._short) is not None:
            short.adopt_late()
        reason = driven.route.turn(0.0)
        if reason:
            self._end(driven, link, reason)
        elif self._local is None and driven.route.is_filling:
            link.interrupt()

    def _end(self, driven: _Driven, link: ProcessLink | LocalLink, reason: str) -> None:
        """The engine of a link ended."""
        driven.link = self._local = self._short = None
        if not self._closed:
            link.watch(self._poll.unregister)
        end_engine(link, reason)
        if driven.links:
            self.wake()


FULL_S = 0.1
SILENT = "a replay was not finished in time"
UNUSABLE = "its answers could not be used"
"""Why an engine is ended by its route. The second: it may live on, and say nonsense; only a new one is served again."""


def end_engine(link: ProcessLink | LocalLink, reason: str) -> None:
    """End an engine that its route gave up for a reason of `group.FALLBACK_REASONS`, unless it has ended."""
    if reason == ENGINE_SILENT:
        link.kill(SILENT)
    elif reason != NOT_READY:
        link.kill(UNUSABLE)


class _Driven:
    """A route, the link that it is served through, and those that come after."""

    def __init__(self, route: GpuRoute) -> None:
        self.route = route
        self.link: ProcessLink | LocalLink | None = None
        self.links: deque[ProcessLink | LocalLink] = deque()
