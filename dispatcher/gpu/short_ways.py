"""All short ways of one engine: what is under way, awaited and answered; see `short_way`.

    NativeWay (C: nothing else is under way) ── adopt ─► flights ── flagged, lost ─► groups

Without the C module, or on an engine of another process, all texts are among the flights from the beginning.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Sized
from functools import partial
from typing import TYPE_CHECKING

from dispatcher.costs import ASCII, MIXED, WIDE
from dispatcher.failures import where
from dispatcher.gpu.account import MEASURED, Account
from dispatcher.gpu.batch import Former
from dispatcher.gpu.group import ENGINE_LOST, EncodedGroup, Group, answer
from dispatcher.gpu.held_ids import HeldIds
from dispatcher.gpu.link import Completion, EngineLink, Slot
from dispatcher.gpu.local_link import LocalLink
from dispatcher.gpu.model_queue import ModelQueue
from dispatcher.gpu.reserved_text import Ending, Lease, ReservedText
from dispatcher.gpu.results import Reader
from dispatcher.gpu.short_way import MAX_NOTED, Flight, Note, ShortCall, ShortWay, group_of, log_error

if TYPE_CHECKING:
    from dispatcher.gpu.native_way import NativeWay

log = logging.getLogger("sidetok.short_way")


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
        self.native = self._make_native()
        """The same in C, for texts that nothing else is beside; `adopt` takes them from there."""

    def of(self, queue: ModelQueue) -> ShortWay:
        """The way of a model."""
        way = self._ways.get(queue.key)
        if way is None or way.queue is not queue:
            with self.lock:
                way = self._ways.get(queue.key)
                if way is None or way.queue is not queue:
                    if way is not None:
                        way.forget()
                    way = self._ways[queue.key] = ShortWay(self, queue)
        return way

    def ending(
        self,
        let_go: Callable[[ModelQueue, Slot, bool], None],
        returned: deque[tuple[Callable[[ModelQueue, Slot], None], ModelQueue, Slot]],
        queue: ModelQueue,
        slot: Slot,
    ) -> object:
        """What lets go of a held slot when nothing refers to it any more; or returns it, if nothing waits for slots."""
        give_back = partial(let_go, queue, slot, True)
        if (native := self.native) is None:
            return Ending(give_back)
        from dispatcher.gpu.native_way import NativeEnding

        return NativeEnding(native, give_back, returned.append, (self.former.unhold, queue, slot))

    @property
    def n_under_way(self) -> int:
        """Texts under way."""
        native = self.native
        return len(self.flights) + (0 if native is None else native.n_flying)

    @property
    def launched_ns(self) -> list[int]:
        """When each text under way was launched."""
        launched = [flight[-1] for flight in tuple(self.flights.values())]
        native = self.native
        return launched if native is None or not (began_ns := native.began_ns) else [*launched, began_ns]

    def disturb(self) -> None:
        """Something else is about to be under way, or to wait; from any thread, before it is."""
        if (native := self.native) is not None:
            native.is_quiet = False

    def calm(self) -> None:
        """C may launch from now on, if nothing is under way or waits; by the thread that drives."""
        native, link, former = self.native, self.link, self.former
        if native is None or native.is_quiet or not native.n_findings or not isinstance(link, LocalLink):
            return
        if self.flights or not link.is_still:
            return
        link.prepare()
        self._account.is_stale = True
        # First said and then looked at: whoever begins with something meanwhile says so afterwards.
        native.calm()
        waits = former.n_under_way or former.n_ahead or former.starved or not former.is_idle
        if waits or self.is_closed or self.events or self.flights or not link.is_still:
            native.is_quiet = False

    def adopt(self) -> None:
        """Under the lock: texts that C launched go on here."""
        native, link = self.native, self.link
        if native is None or not isinstance(link, LocalLink):
            return
        while (given := native.give_up()) is not None:
            place, way, call, text, lease, on_done, ordinary, began_ns = given
            load, n_bytes = way.queue.load, len(text)
            self.flights[lease.slot.number] = way, call, text, lease, on_done, ordinary, began_ns
            load.alone_launched_bytes += n_bytes
            load.alone_launched_ns = began_ns
            link.launched_directly(place, n_bytes, began_ns)

    def adopt_late(self) -> None:
        """The same without the lock."""
        if (native := self.native) is not None and native.n_flying:
            with self.lock:
                self.adopt()

    def forget(self, model_key: str) -> None:
        """A model is gone; its texts that are under way are still answered."""
        way = self._ways.pop(model_key, None)
        if way is not None:
            way.forget()
            self.adopt_late()
            self.settle()
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
            log_error(error)
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
        self.adopt()
        self.settle()
        groups: list[Group] = []
        while self.flights:
            try:
                _, flight = self.flights.popitem()
            except KeyError:  # another thread answered it
                break
            way, _call, text, lease, *_ = flight
            self._tally.lost(way.queue.counted_as, lease.slot.size.capacity, len(text), 1)
            groups.append(group_of(flight))
        return groups

    def settle(self) -> None:
        """Count what was noted; from any thread."""
        if (native := self.native) is not None:
            cpu_ns, self._reader.n_native = (native.launch_cpu_ns, native.turn_cpu_ns), native.n_views
            for way, ordinary, n_bytes, capacity, n_tokens, replay_ns in native.drain():
                self._count(way, cpu_ns, (ordinary, n_bytes, n_tokens, replay_ns, 0, capacity))
            self._tally.n_views = self._reader.n_views
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
        group = group_of(flight)
        group.needs_cpu = dict(completion.needs_cpu)
        group.n_tokens, group.ids, group.n_left, group.settled = [0], [None], 0, True
        answer(group.on_done, group)

    def _answer(self, flight: Flight, n_tokens: int, replay_ns: int, engine_cpu_ns: int, begin_ns: int) -> None:
        way, _call, text, lease, on_done, ordinary, _ = flight
        slot, noted, n_bytes, ids = lease.slot, way.noted, len(text), None
        self._has_ended(way.queue)
        if n_tokens << 2 >= self._reader.hold_from:
            self._reader.n_read += 1
            ids = slot.id_bytes[: n_tokens << 2].view(HeldIds)
            ids.hold = lease
        if begin_ns:
            way.cpu_ns = way.cpu_ns[0], self.clocks.cpu() - begin_ns
        # Before the callback, which may look, or never return here.
        noted.append((ordinary, n_bytes, n_tokens, replay_ns, engine_cpu_ns, slot.size.capacity))
        try:
            on_done(EncodedGroup([slot.ids[:n_tokens].tobytes() if ids is None else ids], [n_tokens], "gpu"), None)
        except Exception as failure:
            _log_failure(failure)
        if (native := self.native) is not None and isinstance(self.link, LocalLink) and self.link.may_be_direct(slot):
            native.expect(way, n_bytes, self.link.predicted_ns(slot, n_bytes))
        if len(noted) >= MAX_NOTED or engine_cpu_ns or self.is_closed or way.queue.is_forgotten:
            self._settle(way)

    def _has_ended(self, queue: ModelQueue) -> None:
        # Anew each time: others launch meanwhile.
        load, left = queue.load, [len(flight[2]) for flight in tuple(self.flights.values()) if flight[0].queue is queue]
        load.alone_launched_bytes = sum(left)
        if not left:
            load.alone_launched_ns = 0

    def _settle(self, way: ShortWay) -> None:
        noted = way.noted
        self._tally.n_views = self._reader.n_views
        while noted:
            try:
                note = noted.popleft()
            except IndexError:  # another thread counts, too
                return
            self._count(way, way.cpu_ns, note)

    def _count(self, way: ShortWay, cpu_ns: tuple[int, int], note: Note) -> None:
        ordinary, n_bytes, n_tokens, replay_ns, engine_cpu_ns, capacity = note
        self._tally.completed(way.queue.counted_as, capacity, n_bytes, 1, replay_ns, engine_cpu_ns, *cpu_ns)
        ordinary.count_choice()
        ordinary.count(1, n_bytes, n_tokens)

    def _make_native(self) -> NativeWay | None:
        if not isinstance(self.link, LocalLink):
            return None
        try:
            from dispatcher.gpu.native_way import NativeWay
        except ImportError:  # the package is not compiled
            return None
        self.link.native = native = NativeWay(
            text_type=ReservedText,
            ids_type=HeldIds,
            lease_type=Lease,
            call_type=ShortCall,
            result_type=EncodedGroup,
            kinds=(ASCII, MIXED, WIDE),
            route="gpu",
            hold_from=self._reader.hold_from,
            on_failed_launch=self._failed_launch,
            on_failed_callback=_log_failure,
            on_full=self.settle,
        )
        return native

    def _failed_launch(self, status: int) -> None:
        """The driver did not launch a text."""
        with self.lock:
            self.adopt()
            if isinstance(self.link, LocalLink):
                self.link.kill(f"CUDA error {status}")
            self.end(ENGINE_LOST)
        self.pump()


def _log_failure(failure: Exception) -> None:
    what = {"error": type(failure).__name__, "where": where(failure)}
    log.error("a result could not be handed over", extra=what)
