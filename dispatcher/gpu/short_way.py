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
from dispatcher.gpu.reserved_text import Lease, ReservedText
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

    def count(self, n_documents: int, n_bytes: int, n_tokens: int) -> None:
        """Count texts that took the short way, and the choices of their route; from any thread."""


class Finding(NamedTuple):
    """What the ordinary way found out about a text."""

    asked: tuple[object, ...]
    """What its caller asked for."""
    kind: str
    """Texts of this kind of content only; empty = of any."""
    max_bytes: int
    ordinary: Ordinary


class ShortCall:
    """A text on the short way."""

    __slots__ = ("_again", "_is_cancelled", "launched_ns", "lease", "n_bytes", "on_done", "ordinary", "text", "way")

    def __init__(self, way: ShortWay, text: ReservedText, lease: Lease, on_done: OnDone, ordinary: Ordinary) -> None:
        self.way, self.text, self.lease, self.on_done, self.ordinary = way, text, lease, on_done, ordinary
        self._is_cancelled = False
        self._again: Cancels | None = None
        self.n_bytes = self.launched_ns = 0

    def cancel(self) -> None:
        """Nobody waits for it any more; see `dispatcher.group_call`."""
        self._is_cancelled = True
        if self._again is not None:
            self._again.cancel()

    def group(self) -> Group:
        """The same on the ordinary way."""
        group, self._again = self.ordinary.again(self.text, self.on_done)
        if self._is_cancelled:
            self._again.cancel()
        return group


class ShortWay:
    """Of one model on one engine. `take` from any thread; the engine's lock guards what it changes."""

    __slots__ = (
        "_finding",
        "_former",
        "_link",
        "_lock",
        "_n_taken",
        "_open_until_ns",
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
        self._finding: Finding | None = None
        self._open_until_ns = self._n_taken = 0
        self.cpu_ns = 0, 0
        """CPU time of launching a text, and of the turn that takes its result; measured for one in `MEASURED`."""
        self.noted: deque[tuple[Ordinary, int, int, int, int]] = deque()
        """Texts that are not counted yet: whose, bytes, tokens, nanoseconds of the replay, capacity of the slot."""

    def open(self, finding: Finding) -> None:
        """A text took the ordinary way, and nothing was out of the ordinary."""
        self._finding, self._open_until_ns = finding, self._wall() + OPEN_NS

    def close(self) -> None:
        """The next text takes the ordinary way."""
        self._open_until_ns, self._finding = 0, None

    def take(self, text: ReservedText, lease: Lease, on_done: OnDone, asked: tuple[object, ...]) -> ShortCall | None:
        """Launch a text that has this lease; None if it has to take the ordinary way."""
        finding, memory, lock, ways = self._finding, text.memory, self._lock, self._ways
        if finding is None or memory is None or finding.asked != asked:
            return None
        n_bytes, now_ns = len(memory), self._wall()
        if now_ns >= self._open_until_ns or n_bytes > finding.max_bytes:
            return None
        if (finding.kind and content_kind(memory) != finding.kind) or not lock.acquire(False):
            return None
        is_lost, flights = False, ways.flights
        try:
            if self._former.n_under_way or len(flights) >= MAX_FLIGHTS or ways.is_closed or self.queue.is_forgotten:
                return None
            try:
                lease.unused.pop()  # see `Lease.use`
            except IndexError:
                return None
            self._n_taken += 1
            begin_ns = 0 if self._n_taken % MEASURED else ways.clocks.cpu()
            slot = lease.slot
            starts = slot.starts
            starts[0], starts[1] = 0, n_bytes
            call = ShortCall(self, text, lease, on_done, finding.ordinary)
            call.n_bytes, call.launched_ns = n_bytes, now_ns
            flights[slot.number] = call
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
        self.flights: dict[int, ShortCall] = {}
        """Texts under way, by slot. Whoever takes one out answers it."""
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
            way = self._ways[queue.key] = ShortWay(self, queue)
        return way

    @property
    def launched_ns(self) -> list[int]:
        """When each text under way was launched; under the lock."""
        return [call.launched_ns for call in self.flights.values()]

    def forget(self, model_key: str) -> None:
        """A model is gone; its texts that are under way are still answered."""
        way = self._ways.pop(model_key, None)
        if way is not None:
            way.close()
            self._settle(way)

    def turn(self, timeout_s: float) -> bool:
        """Wait for the only text that is under way, and answer; false if there is more to see to."""
        flights, wait_one, former = self.flights, self._wait_one, self.former
        if len(flights) != 1 or wait_one is None or self.events or former.n_ahead or former.starved:
            return False
        (number,) = flights
        self._n_turns += 1
        begin_ns = 0 if self._n_turns % MEASURED else self.clocks.cpu()
        try:
            n_tokens = wait_one(number, timeout_s)
        except Exception as error:  # the ordinary wait meets it, too
            _note(error)
            return False
        if n_tokens < 0:
            return False
        call = flights.pop(number, None)
        if call is None:  # the engine was ended meanwhile
            return True
        self._account.is_stale = True
        if begin_ns:
            call.way.cpu_ns = call.way.cpu_ns[0], self.clocks.cpu() - begin_ns
        self._answer(call, n_tokens, self.clocks.wall() - call.launched_ns)
        return True

    def ended(self, completions: list[Completion]) -> list[Completion]:
        """Answer the texts among those whose end was seen on the ordinary way; the others."""
        if not self.flights:
            return completions
        others: list[Completion] = []
        for completion in completions:
            call = self.flights.pop(completion.slot.number, None)
            if call is None:
                others.append(completion)
                continue
            self._account.is_stale = True
            self._tally.n_second += completion.n_second
            self._tally.engine_cpu_ns += completion.engine_cpu_ns
            if completion.needs_cpu:
                self._fall_back(call, completion)
            else:
                self._answer(call, completion.n_tokens, completion.replay_ns)
        return others

    def close(self) -> list[Group]:
        """Under the lock: the engine is lost, and these have no answer."""
        self.is_closed = True
        self.settle()
        groups: list[Group] = []
        while self.flights:
            _, call = self.flights.popitem()
            self._tally.lost(call.way.queue.counted_as, call.lease.slot.size.capacity, call.n_bytes, 1)
            groups.append(call.group())
        return groups

    def settle(self) -> None:
        """Count what was noted; from any thread."""
        for way in tuple(self._ways.values()):
            self._settle(way)

    def _fall_back(self, call: ShortCall, completion: Completion) -> None:
        """The device did not answer a text."""
        way, tally = call.way, self._tally
        way.close()
        tally.needs_cpu.update(completion.needs_cpu.values())
        capacity = call.lease.slot.size.capacity
        tally.completed(way.queue.counted_as, capacity, call.n_bytes, 1, completion.replay_ns, 0, *way.cpu_ns)
        group = call.group()
        group.needs_cpu = dict(completion.needs_cpu)
        group.n_tokens, group.ids, group.n_left, group.settled = [0], [None], 0, True
        answer(group.on_done, group)

    def _answer(self, call: ShortCall, n_tokens: int, replay_ns: int) -> None:
        slot, noted, ids = call.lease.slot, call.way.noted, None
        if n_tokens << 2 >= self._reader.hold_from:
            self._reader.n_views += 1
            ids = slot.id_bytes[: n_tokens << 2].view(HeldIds)
            ids.hold = call.lease
        try:
            call.on_done(EncodedGroup([slot.ids[:n_tokens].tobytes() if ids is None else ids], [n_tokens], "gpu"), None)
        except Exception as failure:
            what = {"error": type(failure).__name__, "where": where(failure)}
            log.error("a result could not be handed over", extra=what)
        noted.append((call.ordinary, call.n_bytes, n_tokens, replay_ns, slot.size.capacity))
        if len(noted) >= MAX_NOTED:
            self._settle(call.way)

    def _settle(self, way: ShortWay) -> None:
        tally, noted, counted_as = self._tally, way.noted, way.queue.counted_as
        tally.n_views = self._reader.n_views
        while noted:
            try:
                ordinary, n_bytes, n_tokens, replay_ns, capacity = noted.popleft()
            except IndexError:  # another thread counts, too
                return
            tally.completed(counted_as, capacity, n_bytes, 1, replay_ns, 0, *way.cpu_ns)
            ordinary.count(1, n_bytes, n_tokens)


def _note(error: Exception) -> None:
    log.error("the GPU route failed", extra={"error": type(error).__name__, "where": where(error)})
