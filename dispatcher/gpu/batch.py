"""What goes into the next replay. Pure decisions: no threads, no clock, no engine.

    add ─► shared ─────────────────────────────► next ─► under way ─► ended ─► (results are read) ─► give_back
       └─► alone ─► reserve ─► filled ─────────────┘

Documents share replays, oldest first, as many as the largest free slot holds; the replay takes the smallest free slot
that fits. A document over `alone_over_bytes` gets a slot of its own, is filled ahead, and such documents take one place
of those under way together: the others pass beside it, and between two of them. A group larger than a batch goes behind
the others after each batch that takes a part of it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from operator import itemgetter

from dispatcher.gpu.group import NO_SLOT, NOT_READY, UNREADABLE, Group
from dispatcher.gpu.link import Slot
from dispatcher.gpu.model_queue import Alone, Batch, ModelQueue, Taken, leased, part_of
from gpu_core.ladder import SizeClass

FILLED_AHEAD = 2
"""Slots of documents alone that are being filled or wait for their place."""


@dataclass(frozen=True, slots=True)
class RouteLimits:
    """Bounds of batches and waits."""

    max_in_flight: int = 2
    """Replays under way at a time."""
    max_batch_bytes: int = 1 << 20
    """Text of a shared replay: beyond this it only takes longer."""
    alone_over_bytes: int = 1 << 18
    """A longer document gets a replay of its own."""
    beside_documents: int = 4
    """While a shared replay of a model is under way, the next one is launched with so many documents at least, ..."""
    beside_bytes: int = 1 << 15
    """... or so much text, ..."""
    beside_gap_ns: int = 50_000
    """... or at once when documents come so long apart lately: a replay costs the host the same for one document and
    for many, which matters when there are many."""
    hold_from_bytes: int = 1 << 16
    """Ids of a document that are handed out without a copy, in bytes."""
    silent_after_s: float = 3.0
    """A replay that takes longer is a hung engine."""


_Candidate = tuple[tuple[bool, int], ModelQueue, bool]


@dataclass(slots=True)
class Former:
    """Forms the batches of one engine. Every method under the route's lock."""

    limits: RouteLimits
    queues: dict[str, ModelQueue] = field(default_factory=dict)
    n_under_way: int = 0
    n_alone_under_way: int = 0
    n_ahead: int = 0
    starved: bool = False
    """Something waits for a slot."""
    unwanted: list[tuple[Group, str]] = field(default_factory=list)
    """Groups that left the queue, with the reason; whoever holds the lock tells them."""
    is_full: bool = False
    """Nothing is launched before a replay ends, unless so much comes at once that it is worth while."""
    _alone_yields: bool = False
    """A document alone ended, and no shared replay was launched since."""

    @property
    def is_idle(self) -> bool:
        """Nothing waits for a launch or for a slot, and nobody to be told that nothing comes."""
        for queue in self.queues.values():
            if queue.shared or queue.filled or queue.alone:
                return False
        return not self.unwanted

    def open(self, key: str, slots: Sequence[Slot]) -> ModelQueue:
        """A queue for a model with these slots, all free."""
        limits = self.limits
        queue = self.queues[key] = ModelQueue(key, slots, limits.alone_over_bytes, limits.max_batch_bytes)
        return queue

    def add(self, queue: ModelQueue, group: Group) -> None:
        """Queue a group; what does not fit any slot and was not cut leaves at once."""
        load = queue.load
        if queue.is_forgotten:
            self._leave(group, NOT_READY)
            return
        if group.lease is not None:
            self._add_filled(queue, group)
        elif group.n_bytes > load.alone_over_bytes and not queue.sort_out(group):
            self._leave(group, NO_SLOT)
        elif group.n_waiting:
            queue.shared.append(group)
            queue.n_waiting += group.n_waiting
            load.waiting_bytes += group.waiting_bytes

    def next(self, now_ns: int) -> Batch | None:
        """The batch to launch now, around the document that waits longest and can be launched; None when none can.

        It counts as under way from now on.
        """
        self.starved = False
        if self.n_under_way >= self.limits.max_in_flight:
            return None
        if len(self.queues) == 1:
            (queue,) = self.queues.values()
            if not queue.filled:
                return self._first_shared(queue, now_ns)
        for _, queue, is_alone in sorted(self._candidates(now_ns), key=itemgetter(0)):
            batch = queue.filled.popleft() if is_alone else self._next_shared(queue, now_ns)
            if batch is not None:
                batch.launched_ns = now_ns
                self._note(batch)
                return batch
        return None

    def _first_shared(self, queue: ModelQueue, now_ns: int) -> Batch | None:
        """The next batch where nothing but documents of one model that share replays can be launched."""
        batch = self._next_shared(queue, now_ns) if queue.shared and self._is_queue_worth(queue) else None
        if batch is not None:
            batch.launched_ns = now_ns
            self._note_shared(batch)
        return batch

    def at_once(self, queue: ModelQueue, group: Group) -> Batch | None:
        """The batch of one group that would be the next one as soon as the group is queued; None if it has to wait.

        It counts as under way from now on.
        """
        n_bytes, now_ns = group.n_bytes, group.queued_ns
        if (
            self.n_under_way >= self.limits.max_in_flight
            or queue.is_forgotten
            or queue.shared
            or queue.filled
            or queue.alone
            or self.unwanted
            or (len(self.queues) > 1 and not self.is_idle)
            or ((group.cancelled or group.deadline_ns) and group.why_unwanted(now_ns))
        ):
            return None
        if n_bytes > queue.load.alone_over_bytes:
            if group.lease is None or self.n_alone_under_way:
                return None
            batch = leased(queue, group, now_ns)
            self._note_alone(batch)
            return batch
        n_documents = group.n_waiting
        if queue.under_way and not self._is_worth(queue, n_documents, n_bytes):
            return None
        if (slot := queue.take_slot(n_bytes, n_documents)) is None:
            return None
        group.n_waiting = group.waiting_bytes = 0
        batch = Batch(queue, slot, n_bytes, n_documents, group.count_only, [(group, None)], None, now_ns)
        self._note_shared(batch)
        return batch

    def reserve_at_once(self, queue: ModelQueue, group: Group) -> Batch | None:
        """What `reserve` would give for the only document of a group once it is queued; None if it has to wait."""
        if (
            self.n_ahead >= FILLED_AHEAD
            or group.n_left != 1
            or group.n_bytes > queue.top.capacity
            or queue.is_forgotten
            or not self.is_idle
            or group.why_unwanted(group.queued_ns)
            or (slot := queue.take_slot(group.n_bytes, 1)) is None
        ):
            return None
        self.n_ahead += 1
        queue.load.alone_waiting_bytes += group.n_bytes
        group.n_waiting = group.waiting_bytes = 0
        piece = Alone(group, 0, 0, group.n_bytes)
        return Batch(queue, slot, group.n_bytes, 1, group.count_only, [], piece)

    def reserve(self, now_ns: int) -> Batch | None:
        """A slot for the oldest document alone, to be filled outside the lock and handed to `filled`."""
        if self.n_ahead >= FILLED_AHEAD:
            return None
        queues = [queue for queue in self.queues.values() if queue.alone]
        if not queues:
            return None
        for queue in sorted(queues, key=lambda queue: queue.alone[0].group.queued_ns):
            while queue.alone and (reason := queue.alone[0].group.why_unwanted(now_ns)):
                self._drop_alone(queue, queue.alone.popleft(), reason)
            if not queue.alone:
                continue
            piece = queue.alone[0]
            n_bytes = piece.end - piece.start
            slot = queue.take_slot(n_bytes, 1)
            if slot is None:
                self.starved = True
                continue
            queue.alone.popleft()
            self.n_ahead += 1
            return Batch(queue, slot, n_bytes, 1, piece.group.count_only, [], piece)
        return None

    def filled(self, queue: ModelQueue, batch: Batch) -> None:
        """A reserved slot holds its text."""
        queue.filled.append(batch)
        if queue.is_forgotten:
            self._empty(queue)

    def filled_at_once(self, batch: Batch, now_ns: int) -> bool:
        """Whether a document is the next one now that it is filled; then it counts as under way."""
        assert batch.piece is not None
        if (
            self.n_under_way >= self.limits.max_in_flight
            or self.n_alone_under_way
            or batch.queue.is_forgotten
            or not self.is_idle
            or batch.piece.group.why_unwanted(now_ns)
        ):
            return False
        batch.launched_ns = now_ns
        self._note(batch)
        return True

    def refused(self, queue: ModelQueue, batch: Batch) -> None:
        """A reserved slot could not be filled."""
        self.n_ahead -= 1
        self.give_back(queue, batch.slot)
        assert batch.piece is not None
        self._drop_alone(queue, batch.piece, UNREADABLE)

    def ended(self, batch: Batch) -> None:
        """A replay ended; its place is free, its slot is not yet."""
        self.n_under_way -= 1
        queue = batch.queue
        load, under_way = queue.load, queue.under_way
        self.is_full = False
        if batch.piece is not None:
            self.n_alone_under_way -= 1
            self._alone_yields = True
            load.alone_launched_ns = load.alone_launched_bytes = 0
        else:
            under_way.remove(batch)
        if self.n_under_way:
            gap_ns = self.limits.beside_gap_ns
            self.is_full = any([other.under_way and other.gap_ns < gap_ns for other in self.queues.values()])
        if under_way:
            load.launched_ns, load.launched_bytes = under_way[0].launched_ns, under_way[0].n_bytes
        else:
            load.launched_ns = load.launched_bytes = 0

    def give_back(self, queue: ModelQueue, slot: Slot) -> None:
        """The results of a slot were read or are not wanted."""
        queue.free[queue.class_of[slot.number]].append(slot)

    def unhold(self, queue: ModelQueue, slot: Slot) -> None:
        """Nobody reads a held slot any more."""
        queue.n_held[queue.class_of[slot.number]] -= 1
        self.give_back(queue, slot)

    def forget(self, queue: ModelQueue) -> None:
        """The engine will not serve a model any more; what waits for it leaves, what is under way ends as usual."""
        del self.queues[queue.key]
        queue.is_forgotten = True
        queue.load.ready = False
        self._empty(queue)

    def waiting(self) -> Iterator[Group]:
        """The groups of everything that is not under way; a group may come more than once."""
        for queue in self.queues.values():
            yield from queue.shared
            yield from (piece.group for piece in queue.alone)
            yield from (batch.piece.group for batch in queue.filled if batch.piece is not None)

    def _candidates(self, now_ns: int) -> list[_Candidate]:
        """(place in the order, queue, whether it is a document alone).

        By age; but between two documents alone the others have a turn, whatever they are worth, so that none of them
        waits for two.
        """
        found: list[_Candidate] = []
        if not self.n_alone_under_way:
            for queue in self.queues.values():
                if queue.filled and (oldest := self._first_filled(queue, now_ns)) is not None:
                    found.append(((self._alone_yields, oldest.queued_ns), queue, True))
        is_turn = bool(found)
        for queue in self.queues.values():
            if queue.shared and (is_turn or self._is_queue_worth(queue)):
                found.append(((False, queue.shared[0].queued_ns), queue, False))
        return found

    def _is_queue_worth(self, queue: ModelQueue) -> bool:
        return not queue.under_way or self._is_worth(queue, queue.n_waiting, queue.load.waiting_bytes)

    def _is_worth(self, queue: ModelQueue, n_documents: int, n_bytes: int) -> bool:
        """Whether so much is launched beside a replay that is under way."""
        limits = self.limits
        return (
            n_documents >= limits.beside_documents
            or n_bytes >= limits.beside_bytes
            or queue.gap_ns >= limits.beside_gap_ns
        )

    def _next_shared(self, queue: ModelQueue, now_ns: int) -> Batch | None:
        largest = queue.largest_free()
        if largest < 0:
            self.starved = True
            return None
        taken = self._take(queue, queue.sizes[largest], now_ns)
        if not taken.shares:
            self.starved = bool(queue.shared)
            return None
        n_bytes, n_documents = taken.n_bytes, taken.n_documents
        queue.n_waiting -= n_documents
        queue.load.waiting_bytes -= n_bytes
        slot = queue.take_slot(n_bytes, n_documents)
        assert slot is not None, "the largest free slot holds what was taken for it"
        return Batch(queue, slot, n_bytes, n_documents, taken.count_only, taken.shares)

    def _take(self, queue: ModelQueue, size: SizeClass, now_ns: int) -> Taken:
        """The oldest groups that fit together; of one that is more than a batch, a part."""
        room, n_room = min(size.capacity, queue.load.max_batch_bytes), size.max_documents
        taken = Taken()
        shared = queue.shared
        while shared:
            group = shared[0]
            if (group.cancelled or group.deadline_ns or group.settled) and (reason := group.why_unwanted(now_ns)):
                self._drop_shared(queue, shared.popleft(), reason)
                continue
            if taken.shares and group.normal_form is not taken.shares[0][0].normal_form:
                break  # it is said of a whole replay
            n_bytes, n_documents = group.waiting_bytes, group.n_waiting
            if n_bytes <= room and n_documents <= n_room:
                numbers = None if group.order is None else group.order[group.next :]
                taken.add(shared.popleft(), numbers, n_bytes, n_documents)
                room -= n_bytes
                n_room -= n_documents
                continue
            if not taken.shares:
                part, part_bytes = part_of(group, room, size.capacity, n_room)
                if part:
                    taken.add(shared.popleft(), part, part_bytes, len(part))
                    group.next += len(part)
                    group.queued_ns = now_ns
                    if group.n_waiting:
                        shared.append(group)
            break
        return taken

    def _note(self, batch: Batch) -> None:
        if batch.piece is None:
            self._note_shared(batch)
            return
        self.n_ahead -= 1
        batch.queue.load.alone_waiting_bytes -= batch.n_bytes
        self._note_alone(batch)

    def _note_alone(self, batch: Batch) -> None:
        load = batch.queue.load
        self.n_under_way += 1
        self.n_alone_under_way += 1
        self.is_full = self.is_full or self.n_under_way >= self.limits.max_in_flight
        load.alone_launched_ns, load.alone_launched_bytes = batch.launched_ns, batch.n_bytes

    def _note_shared(self, batch: Batch) -> None:
        self.n_under_way += 1
        self._alone_yields = False
        queue, now_ns = batch.queue, batch.launched_ns
        queue.note_gap(now_ns, batch.n_documents)
        if self.n_under_way >= self.limits.max_in_flight or queue.gap_ns < self.limits.beside_gap_ns:
            self.is_full = True
        if not queue.under_way:
            queue.load.launched_ns, queue.load.launched_bytes = now_ns, batch.n_bytes
        queue.under_way.append(batch)

    def _add_filled(self, queue: ModelQueue, group: Group) -> None:
        """Queue a document that was written to its slot already."""
        queue.filled.append(leased(queue, group, 0))
        queue.load.alone_waiting_bytes += group.n_bytes
        self.n_ahead += 1

    def _first_filled(self, queue: ModelQueue, now_ns: int) -> Group | None:
        """The group whose document is filled and goes next; those before it that are not wanted leave."""
        filled = queue.filled
        while filled:
            batch = filled[0]
            assert batch.piece is not None
            if not (reason := batch.piece.group.why_unwanted(now_ns)):
                return batch.piece.group
            filled.popleft()
            self.n_ahead -= 1
            if batch.lease is None:
                self.give_back(queue, batch.slot)
            self._drop_alone(queue, batch.piece, reason)
        return None

    def _drop_shared(self, queue: ModelQueue, group: Group, reason: str) -> None:
        queue.n_waiting -= group.n_waiting
        queue.load.waiting_bytes -= group.waiting_bytes
        self._leave(group, reason)

    def _drop_alone(self, queue: ModelQueue, piece: Alone, reason: str) -> None:
        queue.load.alone_waiting_bytes -= piece.end - piece.start
        self._leave(piece.group, reason)

    def _empty(self, queue: ModelQueue) -> None:
        for group in queue.shared:
            self._leave(group, NOT_READY)
        for piece in queue.alone:
            self._leave(piece.group, NOT_READY)
        self.n_ahead -= len(queue.filled)
        for batch in queue.filled:
            if batch.piece is not None:
                self._leave(batch.piece.group, NOT_READY)
        queue.shared.clear()
        queue.alone.clear()
        queue.filled.clear()

    def _leave(self, group: Group, reason: str) -> None:
        if not group.settled:
            group.settled = True
            self.unwanted.append((group, reason))
