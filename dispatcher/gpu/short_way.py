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
import threading
from collections import deque
from collections.abc import Callable, Sized
from typing import NamedTuple, Protocol

from dispatcher.costs import content_kind
from dispatcher.failures import where
from dispatcher.gpu.account import MEASURED, Account
from dispatcher.gpu.batch import Former
from dispatcher.gpu.group import ENGINE_LOST, EncodedGroup, Group, OnDone, answer
from dispatcher.gpu.held_ids import HeldIds
from dispatcher.gpu.link import Completion, EngineLink, EngineLost
from dispatcher.gpu.model_queue import ModelQueue
from dispatcher.gpu.reserved_text import Lease, ReservedText, lease_of
from dispatcher.gpu.results import Reader
from gpu_core.layout import FLAG_IDS

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


class ShortWay:
    """Of one model on one engine. `take` from any thread; the engine's lock guards what it changes."""

    __slots__ = (
        "_findings",
        "_former",
        "_link",
        "_lock",
        "_n_taken",
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
        self.noted: deque[tuple[Ordinary, int, int, int, int, int]] = deque()
        """Texts that are not counted yet: whose, bytes, tokens, nanoseconds of the replay and of the engine for it,
        capacity of the slot."""

    def open(self, finding: Finding) -> None:
        """A text took the ordinary way in its slot, and nothing was out of the ordinary."""
        self._findings[finding.kind] = finding, self._wall() + OPEN_NS

    def close(self) -> None:
        """The next text takes the ordinary way."""
        self._findings.clear()

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
                    _note(error)
                ways.end(ENGINE_LOST)
                is_lost = True
            if begin_ns:
                self.cpu_ns = ways.clocks.cpu() - begin_ns, self.cpu_ns[1]
        finally:
            lock.release()
        if is_lost or ways.events:
            ways.pump()
        return call


class ShortWays:
    """Of one engine."""

    def __init__(
        self,
        link: EngineLink,
        former: Former,
        lock: threading.Lock,
        reader: Reader,
        account: Account,
        events: Sized,
        end: Callable[[str], None],
        pump: Callable[[], None],
    ) -> None:
        """`lock` is the route's, under which `end` ends the engine; `events` wait for it, and `pump` sees to them."""
        self.flights: dict[int, Flight] = {}
        """By slot. Whoever takes one out answers it: any thread may launch, and end the engine, meanwhile."""
        self.is_closed = False
        self.link, self.former, self.lock, self.events, self.end, self.pump = link, former, lock, events, end, pump
        self.clocks = account.clocks
        self._account, self._tally, self._reader = account, account.tally, reader
        self._n_turns = 0
        self._ways: dict[str, ShortWay] = {}
        self._wait_one: Callable[[int, float], int] | None = getattr(link, "wait_one", None)

    def of(self, queue: ModelQueue) -> ShortWay:
        """The way of a model."""
        way = self._ways.get(queue.key)
        if way is None or way.queue is not queue:
            with self.lock:
                way = self._ways.get(queue.key)
                if way is None or way.queue is not queue:
                    way = self._ways[queue.key] = ShortWay(self, queue)
        return way

    @property
    def launched_ns(self) -> list[int]:
        """When each text under way was launched."""
        return [flight[-1] for flight in tuple(self.flights.values())]

    def forget(self, model_key: str) -> None:
        """A model is gone; its texts that are under way are still answered."""
        way = self._ways.pop(model_key, None)
        if way is not None:
            way.close()
            self._settle(way)

    def turn(self, timeout_s: float) -> bool:
        """Wait for the only text that is under way, and answer; false if there is more to see to."""
        flights, wait_one, former = self.flights, self._wait_one, self.former
        if wait_one is None or self.events or former.n_ahead or former.starved:
            return False
        numbers = tuple(flights)
        if len(numbers) != 1:
            return False
        begin_ns = self._measures()
        try:
            n_tokens = wait_one(numbers[0], timeout_s)
        except Exception as error:  # the ordinary wait meets it, too
            _note(error)
            return False
        if n_tokens < 0:
            return False
        flight = flights.pop(numbers[0], None)
        if flight is not None:
            self._answer(flight, n_tokens, self.clocks.wall() - flight[-1], 0, begin_ns)
        return True

    def ended(self, completions: list[Completion]) -> list[Completion]:
        """Answer the texts among those whose end was seen on the ordinary way; the others."""
        if not self.flights:
            return completions
        others: list[Completion] = []
        for completion in completions:
            begin_ns = self._measures()
            flight = self.flights.pop(completion.slot.number, None)
            if flight is None:
                others.append(completion)
                continue
            self._tally.n_second += completion.n_second
            if completion.needs_cpu:
                self._fall_back(flight, completion)
            else:
                self._answer(flight, completion.n_tokens, completion.replay_ns, completion.engine_cpu_ns, begin_ns)
        return others

    def close(self) -> list[Group]:
        """Under the lock: the engine is lost, and these have no answer."""
        self.is_closed = True
        self.settle()
        groups: list[Group] = []
        while self.flights:
            try:
                _, flight = self.flights.popitem()
            except KeyError:  # another thread answered it
                break
            way, _call, text, lease, *_ = flight
            self._tally.lost(way.queue.counted_as, lease.slot.size.capacity, len(text), 1)
            groups.append(_group(flight))
        return groups

    def settle(self) -> None:
        """Count what was noted; from any thread."""
        for way in tuple(self._ways.values()):
            self._settle(way)

    def _measures(self) -> int:
        """The CPU clock, for one turn in `MEASURED`; 0 for the others."""
        self._account.is_stale = True
        self._n_turns += 1
        return 0 if self._n_turns % MEASURED else self.clocks.cpu()

    def _fall_back(self, flight: Flight, completion: Completion) -> None:
        """The device did not answer a text."""
        way, _call, text, lease, *_ = flight
        tally, queue = self._tally, way.queue
        self._has_ended(queue)
        way.close()
        tally.needs_cpu.update(completion.needs_cpu.values())
        took_ns = completion.replay_ns, completion.engine_cpu_ns
        tally.completed(queue.counted_as, lease.slot.size.capacity, len(text), 1, *took_ns, *way.cpu_ns)
        group = _group(flight)
        group.needs_cpu = dict(completion.needs_cpu)
        group.n_tokens, group.ids, group.n_left, group.settled = [0], [None], 0, True
        answer(group.on_done, group)

    def _answer(self, flight: Flight, n_tokens: int, replay_ns: int, engine_cpu_ns: int, begin_ns: int) -> None:
        way, _call, text, lease, on_done, ordinary, _ = flight
        slot, noted, n_bytes, ids = lease.slot, way.noted, len(text), None
        self._has_ended(way.queue)
        if n_tokens << 2 >= self._reader.hold_from:
            self._reader.n_views += 1
            ids = slot.id_bytes[: n_tokens << 2].view(HeldIds)
            ids.hold = lease
        if begin_ns:
            way.cpu_ns = way.cpu_ns[0], self.clocks.cpu() - begin_ns
        # Before the callback, which may look, or never return here.
        noted.append((ordinary, n_bytes, n_tokens, replay_ns, engine_cpu_ns, slot.size.capacity))
        try:
            on_done(EncodedGroup([slot.ids[:n_tokens].tobytes() if ids is None else ids], [n_tokens], "gpu"), None)
        except Exception as failure:
            what = {"error": type(failure).__name__, "where": where(failure)}
            log.error("a result could not be handed over", extra=what)
        if len(noted) >= MAX_NOTED or engine_cpu_ns or self.is_closed or way.queue.is_forgotten:
            self._settle(way)

    def _has_ended(self, queue: ModelQueue) -> None:
        # Anew each time: others launch meanwhile.
        load, left = queue.load, [len(flight[2]) for flight in tuple(self.flights.values()) if flight[0].queue is queue]
        load.alone_launched_bytes = sum(left)
        if not left:
            load.alone_launched_ns = 0

    def _settle(self, way: ShortWay) -> None:
        tally, noted, counted_as = self._tally, way.noted, way.queue.counted_as
        tally.n_views = self._reader.n_views
        while noted:
            try:
                ordinary, n_bytes, n_tokens, replay_ns, engine_cpu_ns, capacity = noted.popleft()
            except IndexError:  # another thread counts, too
                return
            tally.completed(counted_as, capacity, n_bytes, 1, replay_ns, engine_cpu_ns, *way.cpu_ns)
            ordinary.count_choice()
            ordinary.count(1, n_bytes, n_tokens)


def _group(flight: Flight) -> Group:
    """The same text on the ordinary way."""
    _way, call, text, _lease, on_done, ordinary, _ = flight
    ordinary.count_choice()
    group, again = ordinary.again(text, on_done)
    call.goes_on(again)
    return group


def _note(error: Exception) -> None:
    log.error("the GPU route failed", extra={"error": type(error).__name__, "where": where(error)})
