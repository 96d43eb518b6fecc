"""The route's side of one engine incarnation: who does what on which thread, and what happens when it ends.

Whatever changes the queue is an event in a deque, which any thread may append to; but a group that comes while nobody
has the lock is queued, or launched, at once. `pump` takes the lock only if it is free: whoever holds it looks for
events again after letting go, so none is left behind, and no thread ever waits for another one that fills a slot.
Callbacks run outside the lock.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from typing import Any

from dispatcher.failures import where
from dispatcher.gpu.account import Account, Clocks, OnReplay
from dispatcher.gpu.batch import Former, RouteLimits
from dispatcher.gpu.group import ENGINE_LOST, ENGINE_SILENT, UNREADABLE, Group, answer
from dispatcher.gpu.link import Completion, EngineLink, EngineLost, Slot
from dispatcher.gpu.model_queue import Batch, ModelQueue, groups_of
from dispatcher.gpu.results import Reader
from dispatcher.gpu.route_tally import RouteTally
from dispatcher.gpu.short_ways import ShortWays
from dispatcher.gpu.staging import STEP_BYTES, fill_alone, fill_shared

log = logging.getLogger("sidetok.gpu_route")


class Incarnation:
    """Batches for one link, until it is lost. `submit` from any thread, `turn` from the route's."""

    def __init__(
        self, link: EngineLink, limits: RouteLimits, clocks: Clocks, tally: RouteTally, on_replay: OnReplay
    ) -> None:
        self.link = link
        self.former = Former(limits)
        self.over = ""
        """Why it ended; empty while it serves."""
        self._limits, self._clocks, self._tally = limits, clocks, tally
        self._account = Account(clocks, tally, on_replay)
        self._lock = threading.Lock()
        self._events: deque[tuple[Callable[[ModelQueue, Any], None], ModelQueue, Any]] = deque()
        self._returned: deque[tuple[Callable[[ModelQueue, Slot], None], ModelQueue, Slot]] = deque()
        """Slots that are free again while nothing waits for one: no reason to do anything."""
        self._in_flight: dict[int, Batch] = {}
        self._to_fill: deque[Batch] = deque()
        self._filling: tuple[Batch, int] | None = None
        self._to_tell: deque[tuple[Group, str]] = deque()
        self._reader = Reader(limits.hold_from_bytes, self._may_hold, self._let_go, tally.n_views)
        ends = self._end, self._pump
        self.short = ShortWays(link, self.former, self._lock, self._reader, self._account, self._events, *ends)
        self._look_ns = self._turn_thread = 0
        """The second: the thread that is in `turn`, and does not wait there."""

    def queue_of(self, model_key: str) -> ModelQueue | None:
        """The queue of a model, made on first use; None when the engine does not serve it."""
        queue = self.former.queues.get(model_key)
        if queue is None and self.link.slots(model_key):
            with self._lock:
                queue = self.former.queues.get(model_key)
                # It may have been withdrawn and forgotten meanwhile.
                if queue is None and (slots := self.link.slots(model_key)):
                    queue = self.former.open(model_key, slots)
            self._pump()
        return queue

    def submit(self, queue: ModelQueue, group: Group) -> None:
        """Queue a group, and launch and fill what can be."""
        if self._events or not self._take(queue, group):
            self._events.append((self.former.add, queue, group))
        if self._events or self._to_tell:
            self._pump()
        if self._to_fill:
            self._fill_ready(group)

    def reserve(self, queue: ModelQueue, n_bytes: int) -> tuple[Slot, object] | None:
        """A slot for a text from outside, and what gives it back when it ends; None when none can be spared."""
        self._pump()
        with self._lock:
            self._take_back()
            slot = None if self.over else queue.lease(n_bytes)
        self._pump()
        return None if slot is None else (slot, self.short.ending(self._let_go, self._returned, queue, slot))

    @property
    def is_filling(self) -> bool:
        """A slot is to be filled by the next turn, which does not wait."""
        return self._filling is not None or bool(self._to_fill)

    def turn(self, timeout_s: float) -> None:
        """Wait for completions, launch what has formed meanwhile, then hand out results."""
        account = self._account
        if not timeout_s or account.is_stale or not account.n_turns:
            account.begin_turn(not timeout_s)
        try:
            completions = self.link.wait(0.0 if self._filling is not None or self._to_fill else timeout_s)
        except EngineLost:
            self.end(ENGINE_LOST)
            return
        now_ns = 0
        if completions or self._events or self._returned or self._filling is not None or self._to_fill:
            self._turn_thread = threading.get_ident()
            try:
                now_ns = self._go_on(completions)
            finally:
                self._turn_thread = 0
        now_ns = now_ns or self._clocks.wall()
        if now_ns >= self._look_ns:
            self._look(now_ns)

    def _go_on(self, completions: list[Completion]) -> int:
        """When results were at hand; 0 if there were none."""
        ended: list[tuple[Batch, Completion]] = []
        former = self.former
        completions = self.short.ended(completions)
        with self._lock:
            if self._returned:
                self._take_back()
            for completion in completions:
                batch = self._in_flight.pop(completion.slot.number, None)
                if batch is not None:
                    former.ended(batch)
                    ended.append((batch, completion))
            if not self.over and (self._events or not former.is_idle or former.starved):
                self._advance()
        if self._events or self._to_tell:
            self._pump()
        now_ns = self._deliver(ended) if ended else 0
        if self._filling is not None or self._to_fill:
            self._fill_step()
        if former.starved and self._returned:
            # Something came to wait for a slot while it was given back.
            with self._lock:
                self._advance()
        if self._events or self._to_tell:
            self._pump()
        return now_ns

    def forget(self, model_key: str) -> None:
        """Launch nothing more of a model; what waits falls back."""
        with self._lock:
            queue = self.former.queues.get(model_key)
            if queue is not None:
                self.former.forget(queue)
                self._advance()
        self._pump()

    def end(self, reason: str) -> None:
        """Everything that is queued or in flight falls back; later groups do at once."""
        with self._lock:
            self._end(reason)
        self._pump()

    def _pump(self) -> None:
        """Apply events unless another thread does, and tell those whose group left."""
        while self._events and self._lock.acquire(False):
            try:
                self._advance()
            finally:
                self._lock.release()
        if self._to_tell:
            self._tell()

    def _take(self, queue: ModelQueue, group: Group) -> bool:
        """Launch or queue a group without an event; false if somebody has the lock."""
        if not self._lock.acquire(False):
            return False
        try:
            if self.over:
                return False
            former = self.former
            if self._returned:
                self._take_back()
            batch = former.at_once(queue, group)
            if batch is not None:
                self._launch(batch)
                return True
            is_long = group.n_bytes > queue.load.alone_over_bytes
            if is_long and group.lease is None and (batch := former.reserve_at_once(queue, group)) is not None:
                self._to_fill.append(batch)
                return True
            former.add(queue, group)
            if is_long or former.unwanted or former.n_under_way < self._limits.max_in_flight:
                self._advance()
        except Exception as error:
            self._fail(error, group)
        finally:
            self._lock.release()
        return True

    def _advance(self) -> None:
        """Under the lock: apply events, launch, and reserve slots. Never raises: the engine ends instead."""
        try:
            self._apply_and_launch()
        except Exception as error:
            self._fail(error)

    def _fail(self, error: Exception, item: object = None) -> None:
        log.error("the GPU route failed", extra={"error": type(error).__name__, "where": where(error)})
        self._end(ENGINE_LOST)
        self._settle(item)

    def _apply_and_launch(self) -> None:
        events, former = self._events, self.former
        self._take_back()
        while events:
            apply, queue, item = events.popleft()
            if self.over:
                self._settle(item)
            else:
                apply(queue, item)
        if self.over:
            return
        if former.is_idle:
            former.starved = False
            return
        now_ns = self._clocks.wall()
        while (batch := former.next(now_ns)) is not None:
            if not self._launch(batch):
                return
            if former.is_idle:
                return
        while (batch := former.reserve(now_ns)) is not None:
            self._to_fill.append(batch)
        if former.unwanted:
            self._to_tell += former.unwanted
            former.unwanted.clear()

    def _launch(self, batch: Batch) -> bool:
        """Under the lock: fill a shared batch and start it; false when the engine is gone."""
        cpu_ns = 0 if threading.get_ident() == self._turn_thread else self._account.begin_launch(batch)
        if batch.piece is None:
            try:
                fill_shared(batch)
            except Exception:  # something that is no bytes, or no memory
                self._refuse(batch)
                return True
        self._in_flight[batch.slot.number] = batch
        try:
            self.link.launch(batch.slot, batch.n_bytes, batch.n_documents, batch.flags)
        except EngineLost:
            self._end(ENGINE_LOST)
            return False
        if cpu_ns:
            self._account.end_launch(batch, cpu_ns)
        return True

    def _refuse(self, batch: Batch) -> None:
        """Under the lock: the slot cannot be filled, so the batch is not launched."""
        self.former.ended(batch)
        self.former.give_back(batch.queue, batch.slot)
        for group, _numbers in batch.shares:
            self._settle(group, UNREADABLE)

    def _deliver(self, ended: list[tuple[Batch, Completion]]) -> int:
        """Read results, then call back: slots are free before anybody does something with the ids."""
        finished: list[Group] = []
        for batch, completion in ended:
            try:
                finished += self._reader.read(batch, completion)
            except Exception as error:
                self._lose_results(batch, error)
        if self._events or self._to_tell:
            self._pump()
        now_ns = self._clocks.wall()
        account = self._account
        account.were_read(len(ended))
        for group in finished:
            group.settled = True
            group.replayed_ns = now_ns
            answer(group.on_done, group)
        # Nobody waits for the rest.
        self._tally.n_views = self._reader.n_views
        account.ended(ended, now_ns)
        account.end_turn()
        return now_ns

    def _lose_results(self, batch: Batch, error: Exception) -> None:
        """What an engine wrote makes no sense: it cannot be trusted any more."""
        log.error("results of the GPU engine cannot be read", extra={"error": type(error).__name__})
        with self._lock:
            self._settle(batch, UNREADABLE)
            self._end(ENGINE_LOST)

    def _fill_ready(self, own: Group) -> None:
        """Fill reserved slots, each by the thread that takes it; the long ones of others are left to the route's."""
        while True:
            try:
                batch = self._to_fill[0]
                if batch.n_bytes > STEP_BYTES and (batch.piece is None or batch.piece.group is not own):
                    self.link.interrupt()
                    return
                batch = self._to_fill.popleft()
            except IndexError:
                return
            self._fill(batch, 0, batch.n_bytes)

    def _fill_step(self) -> None:
        """The route's thread fills in steps, because completions may come meanwhile."""
        filling, self._filling = self._filling, None
        if filling is None:
            try:
                filling = self._to_fill.popleft(), 0
            except IndexError:
                return
        batch, n_filled = filling
        n_filled = self._fill(batch, n_filled, STEP_BYTES)
        if n_filled < batch.n_bytes:
            self._filling = batch, n_filled
            if self.over:
                # Another thread ended it during the step, and did not see this batch.
                with self._lock:
                    self._settle(batch)
                self._filling = None

    def _fill(self, batch: Batch, n_filled: int, n_bytes: int) -> int:
        is_turn = threading.get_ident() == self._turn_thread
        cpu_ns = 0 if is_turn else self._clocks.cpu()
        apply: Callable[[ModelQueue, Batch], None] = self.former.filled
        try:
            n_filled = fill_alone(batch, n_filled, n_bytes)
        except Exception:  # something that is no bytes, or no memory
            apply, n_filled = self.former.refused, batch.n_bytes
        if not is_turn:
            batch.stage_cpu_ns += self._clocks.cpu() - cpu_ns
        if n_filled == batch.n_bytes and not (apply == self.former.filled and self._launch_filled(batch)):
            self._events.append((apply, batch.queue, batch))
            self._pump()
        return n_filled

    def _launch_filled(self, batch: Batch) -> bool:
        """Launch a document whose slot holds it, if nothing is in front of it; false if it has to queue."""
        if self._events or not self._lock.acquire(False):
            return False
        try:
            if self.over or not self.former.filled_at_once(batch, self._clocks.wall()):
                return False
            self._launch(batch)
        except Exception as error:
            self._fail(error, batch)
        finally:
            self._lock.release()
        return True

    def _take_back(self) -> None:
        """Under the lock: slots that were returned are free."""
        returned = self._returned
        while returned:
            apply, queue, slot = returned.popleft()
            apply(queue, slot)

    def _may_hold(self, queue: ModelQueue, slot: Slot) -> bool:
        with self._lock:
            self._take_back()
            return queue.hold(slot)

    def _let_go(self, queue: ModelQueue, slot: Slot, was_held: bool) -> None:
        """A slot is free again. Does not block: the garbage collector may call it anywhere."""
        if self.over:
            return
        former = self.former
        apply = former.unhold if was_held else former.give_back
        if former.starved or queue.shared or queue.filled or queue.alone:
            self._events.append((apply, queue, slot))
            if was_held and former.starved:
                self.link.interrupt()
        else:
            self._returned.append((apply, queue, slot))

    def _look(self, now_ns: int) -> None:
        """End the engine when a replay takes too long."""
        if self.over:
            return
        silent_ns = int(self._limits.silent_after_s * 1e9)
        self._look_ns = now_ns + silent_ns // 8
        with self._lock:
            began = [batch.launched_ns for batch in self._in_flight.values()]
            launched_ns = min([*began, *self.short.launched_ns], default=now_ns)
        self._pump()
        if now_ns - launched_ns > silent_ns:
            log.error("the GPU engine does not answer", extra={"in_flight": len(self._in_flight)})
            self.end(ENGINE_SILENT)

    def _end(self, reason: str) -> None:
        """Under the lock. Slots that threads are filling come as events later."""
        if self.over:
            return
        self.over = reason
        for batch in self._in_flight.values():
            self._tally.lost(batch.queue.counted_as, batch.slot.size.capacity, batch.n_bytes, batch.n_documents)
        filling, self._filling = self._filling, None
        for item in (*self._in_flight.values(), *self._to_fill, *(filling or ())[:1], *self.short.close()):
            self._settle(item)
        self._in_flight.clear()
        self._to_fill.clear()
        for group in self.former.waiting():
            self._settle(group)
        self._to_tell += self.former.unwanted
        self.former.unwanted.clear()
        for queue in self.former.queues.values():
            queue.close()

    def _settle(self, item: Any, reason: str = "") -> None:
        """Under the lock: the groups behind a group, a batch or a slot will be told that nothing comes."""
        for group in groups_of(item):
            if not group.settled:
                group.settled = True
                self._to_tell.append((group, reason or self.over))

    def _tell(self) -> None:
        while self._to_tell:
            try:
                group, reason = self._to_tell.popleft()
            except IndexError:
                return
            self._tally.fell_back(reason)
            answer(group.on_fallback, group, reason)
