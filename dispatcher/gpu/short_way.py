"""The short way of one long text that lies in its slot: it is launched, awaited and answered with few steps.

    a text on the ordinary way, answered ─► open for `OPEN_NS` ─► text, text, text ─► one on the ordinary way, ...

Long texts come seldom, and after a rest of a millisecond nothing that a step needs is in a cache: it takes five times
as long as in a loop. So what the ordinary way found out about such a text (its route, that its ids are the result)
holds for those that follow, while nothing else is under way, and what metrics count is only noted here. Whatever is
out of the ordinary about a text goes on where all others do: when others come meanwhile, when it is late, when the
device does not answer it, when the engine is lost.
"""

from __future__ import annotations

import logging
from collections import deque
from typing import TYPE_CHECKING, NamedTuple, Protocol

from dispatcher.costs import content_kind
from dispatcher.failures import where
from dispatcher.gpu.account import MEASURED
from dispatcher.gpu.group import ENGINE_LOST, Group, OnDone
from dispatcher.gpu.link import EngineLost, Slot
from dispatcher.gpu.local_link import LocalLink
from dispatcher.gpu.model_queue import ModelQueue
from dispatcher.gpu.reserved_text import Lease, ReservedText, lease_of
from gpu_core.layout import FLAG_IDS

if TYPE_CHECKING:
    from dispatcher.gpu.native_way import NativePlace
    from dispatcher.gpu.short_ways import ShortWays

log = logging.getLogger("sidetok.short_way")

OPEN_NS = 200_000_000
"""After so long a text takes the ordinary way again, where costs are observed and the route is chosen."""
MAX_FLIGHTS = 4
"""Texts under way at a time."""
MAX_NOTED = 32
"""Texts that are noted before they are counted."""


class Cancels(Protocol):
    """A call."""

    def cancel(self) -> None:
        """Nobody waits for it any more."""


class Ordinary(Protocol):
    """The way that all others go."""

    def again(self, text: ReservedText, on_done: OnDone) -> tuple[Group, Cancels]:
        """A text as a group, whose callbacks tell `on_done`, and its call."""

    def count_choice(self) -> None:
        """Count the choice of the route for a text; from any thread."""

    def count(self, n_documents: int, n_bytes: int, n_tokens: int) -> None:
        """Count texts that were answered; from any thread."""


class Finding(NamedTuple):
    """What the ordinary way found out about a text."""

    asked: tuple[object, ...]
    """What its caller asked for."""
    kind: str
    """Texts of this kind of content only; empty = of any."""
    min_bytes: int
    max_bytes: int
    ordinary: Ordinary


class ShortCall:
    """The call of a text on the short way."""

    __slots__ = ("_again", "_is_cancelled")

    def __init__(self) -> None:
        self._is_cancelled = False
        self._again: Cancels | None = None

    def cancel(self) -> None:
        """Nobody waits for it any more; see `dispatcher.group_call`."""
        self._is_cancelled = True
        if self._again is not None:
            self._again.cancel()

    def goes_on(self, again: Cancels) -> None:
        """Its text takes the ordinary way."""
        self._again = again
        if self._is_cancelled:
            again.cancel()


Flight = tuple["ShortWay", ShortCall, ReservedText, Lease, OnDone, Ordinary, int]
"""A text under way, and when it was launched. A call that is kept keeps nothing of it."""


Note = tuple[Ordinary, int, int, int, int, int]


class ShortWay:
    """Of one model on one engine. `take` from any thread; the engine's lock guards what it changes."""

    __slots__ = (
        "_findings",
        "_former",
        "_link",
        "_lock",
        "_n_taken",
        "_places",
        "_wall",
        "_ways",
        "cpu_ns",
        "noted",
        "queue",
    )

    def __init__(self, ways: ShortWays, queue: ModelQueue) -> None:
        self.queue = queue
        self._ways, self._link, self._lock, self._former = ways, ways.link, ways.lock, ways.former
        self._wall = ways.clocks.wall
        self._findings: dict[str, tuple[Finding, int]] = {}
        """By kind of content, and until when they hold."""
        self._n_taken = 0
        self.cpu_ns = 0, 0
        """CPU time of launching a text, and of the turn that takes its result; measured for one in `MEASURED`."""
        self.noted: deque[Note] = deque()
        """Texts that are not counted yet: whose, bytes, tokens, nanoseconds of the replay and of the engine for it,
        capacity of the slot."""
        self._places: dict[int, NativePlace] = {}
        """By slot, where C launches."""

    def open(self, finding: Finding) -> None:
        """A text took the ordinary way in its slot, and nothing was out of the ordinary."""
        until_ns = self._wall() + OPEN_NS
        self._findings[finding.kind] = finding, until_ns
        native = self._ways.native
        if native is not None and self._places:
            asked, kind, min_bytes, max_bytes, ordinary = finding
            native.open(self, ordinary, asked, kind, min_bytes, max_bytes, until_ns)

    def close(self) -> None:
        """The next text takes the ordinary way."""
        self._findings.clear()
        if (native := self._ways.native) is not None:
            native.close(self)

    def place(self, slot: Slot) -> NativePlace | None:
        """What launches a text in a slot from C, where the package is compiled and the engine allows it."""
        native, link = self._ways.native, self._link
        if native is None or not isinstance(link, LocalLink) or self.queue.is_forgotten:
            return None
        found = self._places.get(slot.number)
        if found is None and (direct := link.direct(slot)) is not None:
            from dispatcher.gpu.native_way import NativePlace

            found = NativePlace(native, self, direct[0], slot.id_bytes, direct[1], slot.size.capacity)
            self._places[slot.number] = found
        return found

    def forget(self) -> None:
        """The model is gone."""
        self.close()
        if (native := self._ways.native) is not None:
            native.forget(self)
        for place in tuple(self._places.values()):
            place.close()
        self._places.clear()

    def take(self, text: ReservedText, lease: Lease, on_done: OnDone, asked: tuple[object, ...]) -> ShortCall | None:
        """Launch a text that has this lease; None if it has to take the ordinary way."""
        findings, memory = self._findings, text.memory
        if not findings:
            return None
        if memory is None:
            # A slice: the beginning of a text that became shorter, or not.
            if text.nbytes <= self.queue.load.alone_over_bytes or lease_of(text) is None:
                return None
            memory = text.data
        found = findings.get("")
        if found is None or found[0].asked != asked:
            found = findings.get(content_kind(memory))
            if found is None or found[0].asked != asked:
                return None
        finding, until_ns = found
        n_bytes, now_ns, lock = len(memory), self._wall(), self._lock
        if now_ns >= until_ns or not finding.min_bytes <= n_bytes <= finding.max_bytes or not lock.acquire(False):
            return None
        is_lost, ways, former, queue = False, self._ways, self._former, self.queue
        flights = ways.flights
        try:
            if ways.native is not None:
                ways.adopt()
            # Beside documents that share a replay nothing is launched at once.
            if former.n_under_way != former.n_alone_under_way or len(flights) >= MAX_FLIGHTS:
                return None
            if ways.is_closed or queue.is_forgotten:
                return None
            try:
                lease.unused.pop()  # see `Lease.use`
            except IndexError:
                return None
            self._n_taken += 1
            begin_ns = 0 if self._n_taken % MEASURED else ways.clocks.cpu()
            slot, load, call = lease.slot, queue.load, ShortCall()
            starts = slot.starts
            starts[0], starts[1] = 0, n_bytes
            flights[slot.number] = self, call, text, lease, on_done, finding.ordinary, now_ns
            load.alone_launched_ns, load.alone_launched_bytes = now_ns, load.alone_launched_bytes + n_bytes
            try:
                self._link.launch(slot, n_bytes, 1, FLAG_IDS)
            except Exception as error:
                if not isinstance(error, EngineLost):
                    log_error(error)
                ways.end(ENGINE_LOST)
                is_lost = True
            if begin_ns:
                self.cpu_ns = ways.clocks.cpu() - begin_ns, self.cpu_ns[1]
        finally:
            lock.release()
        if is_lost or ways.events:
            ways.pump()
        return call


def group_of(flight: Flight) -> Group:
    """The same text on the ordinary way."""
    _way, call, text, _lease, on_done, ordinary, _ = flight
    ordinary.count_choice()
    group, again = ordinary.again(text, on_done)
    call.goes_on(again)
    return group


def log_error(error: Exception) -> None:
    """Of the route itself."""
    log.error("the GPU route failed", extra={"error": type(error).__name__, "where": where(error)})
