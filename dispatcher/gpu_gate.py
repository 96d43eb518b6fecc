"""Fair shares of a GPU: what waits on its route is bounded, and beyond that groups wait here, fair between flows.

    groups ─► [little on the route?] ─ yes ─────────────────────────► route: first in, first out ─► answered ─╮
                       ╰─ no ─► by flow (`dispatcher.flow_queue`) ─► ▲ the next one, as room gets free ◄──────╯

A flow is what one client asks of one model. So a flood of one client delays another by what the route may hold, which
is a few milliseconds of replays, and not by all that is in flight.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol

from dispatcher.admission import Uncounted
from dispatcher.failures import where
from dispatcher.flow_queue import FlowQueue
from dispatcher.gpu.group import UNREADABLE, Group, answer
from dispatcher.policy import GpuLoad

log = logging.getLogger("sidetok.gpu_gate")

ROUTE_BYTES = 16 << 20
"""On the route at once: enough to keep a GPU busy, 2 ms or so of replays."""
GROUP_BYTES = 1024
"""What a group counts beside its bytes."""


class Submits(Protocol):
    """The route of one GPU."""

    def submit(self, group: Group) -> None:
        """See `dispatcher.gpu.route.GpuRoute`."""


@dataclass(slots=True)
class _Waiting:
    group: Group
    route: Submits
    slot: Uncounted
    flow: str


class GpuGate:
    """In front of one GPU. Every method may be called from any thread."""

    def __init__(self, route_bytes: int = ROUTE_BYTES) -> None:
        self._route_bytes = route_bytes
        self._lock = threading.Lock()
        self._waiting: FlowQueue[_Waiting] = FlowQueue()
        self._on_route = 0
        self._is_letting = False

    @property
    def is_full(self) -> bool:
        """Whether groups wait, so that those of different flows should not be one."""
        return len(self._waiting) > 0

    def submit(self, route: Submits, group: Group, flow: str) -> None:
        """Submit a group now or when it is its turn; never waits."""
        size = group.n_bytes + GROUP_BYTES
        group.on_done = partial(self._done, size, group.on_done)
        group.on_fallback = partial(self._fell_back, size, group.on_fallback)
        with self._lock:
            if self._on_route >= self._route_bytes or len(self._waiting):
                self._waiting.append(_Waiting(group, route, Uncounted(size), flow))
                return
            self._on_route += size
        _hand_over(route, group)

    def with_waiting(self, load: GpuLoad) -> GpuLoad:
        """The queue of the route for a model, and what waits here as if it were there already."""
        n_bytes = self._waiting.n_bytes
        return replace(load, waiting_bytes=load.waiting_bytes + n_bytes) if n_bytes else load

    def _done(self, size: int, on_done: Callable[[Group], object], group: Group) -> None:
        self._leave(size)
        on_done(group)

    def _fell_back(self, size: int, on_fallback: Callable[[Group, str], object], group: Group, reason: str) -> None:
        self._leave(size)
        on_fallback(group, reason)

    def _leave(self, size: int) -> None:
        """A group is off the route. Those that follow may come back in `submit`, so one thread at a time lets in."""
        with self._lock:
            self._on_route -= size
            if self._is_letting or not len(self._waiting):
                return
            self._is_letting = True
        while (item := self._next()) is not None:
            _hand_over(item.route, item.group)

    def _next(self) -> _Waiting | None:
        with self._lock:
            if self._on_route < self._route_bytes and len(self._waiting):
                item = self._waiting.popleft()
                self._on_route += item.slot.n_bytes
                return item
            self._is_letting = False
            return None


def _hand_over(route: Submits, group: Group) -> None:
    """To the route. What it fails to take falls back: nobody else would tell it, and it would count for ever."""
    try:
        route.submit(group)
    except BaseException as error:
        log.error("a GPU route failed to take a group", extra={"error": type(error).__name__, "where": where(error)})
        # Whatever of it is queued leaves.
        group.cancelled = group.settled = True
        answer(group.on_fallback, group, UNREADABLE)
