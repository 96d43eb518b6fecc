"""What goes into the next replay. Pure decisions: no threads, no clock, no engine.

    add ─► shared ─────────────────────────────► next ─► under way ─► ended ─► (results are read) ─► give_back
       └─► alone ─► reserve ─► filled ─────────────┘

Documents share replays, oldest first, as many as the largest free slot holds; the replay takes the smallest free slot
that fits. A document over `alone_over_bytes` gets a slot of its own, is filled ahead, and such documents take one place
of those under way together: the others pass beside it, and between two of them. A group larger than a batch goes behind
the others after each batch that takes a part of it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from dispatcher.gpu.group import NO_SLOT, NOT_READY, UNREADABLE, Group
from dispatcher.gpu.link import Slot
from dispatcher.policy import GpuLoad
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
    beside_documents: int = 8
    """While a shared replay of a model is under way, the next one is launched with so many documents at least, ..."""
    beside_bytes: int = 1 << 16
    """... or so much text: a replay costs the host the same for one document and for many."""
    hold_from_bytes: int = 1 << 16
    """Ids of a document that are handed out without a copy, in bytes."""
    silent_after_s: float = 3.0
    """A replay that takes longer is a hung engine."""


@dataclass(slots=True, eq=False)
class Batch:
    """What one replay encodes."""

    queue: ModelQueue
    slot: Slot
    n_bytes: int
    n_documents: int
    count_only: bool
    shares: list[tuple[Group, Sequence[int] | None]]
    """Groups and which of their documents; None = all of them."""
    piece: Alone | None = None
    """The document that has it alone."""
    launched_ns: int = 0
    stage_cpu_ns: int = 0


@dataclass(slots=True)
class Alone:
    """A document, or a piece of one, that gets a replay of its own."""

    group: Group
    document: int
    start: int
    end: int
    number: int | None = None
    """Which piece it is; None = the whole document."""


class ModelQueue:
    """Documents of one model that wait, and the free slots of its ladder."""

    def __init__(self, key: str, slots: Sequence[Slot], limits: RouteLimits) -> None:
        self.key = key
        self.sizes = sorted({slot.size for slot in slots}, key=lambda size: size.capacity)
        self.top = self.sizes[-1]
        self.class_of = {slot.number: self.sizes.index(slot.size) for slot in slots}
        self.free: list[list[Slot]] = [[] for _ in self.sizes]
        for slot in slots:
            self.free[self.class_of[slot.number]].append(slot)
        self.n_slots = [len(free) for free in self.free]
        self.n_held = [0] * len(self.sizes)
        self.shared: deque[Group] = deque()
        self.alone: deque[Alone] = deque()
        self.filled: deque[Batch] = deque()
        self.under_way: list[Batch] = []
        """Shared replays, the oldest first."""
        self.n_waiting = 0
        """Documents in `shared`."""
        self.is_forgotten = False
        self.load = GpuLoad(
            ready=True,
            alone_over_bytes=min(limits.alone_over_bytes, self.top.capacity),
            max_batch_bytes=min(limits.max_batch_bytes, self.top.capacity),
        )

    def largest_free(self) -> int:
        """The largest class with a free slot; -1 when there is none."""
        return next((at for at in range(len(self.free) - 1, -1, -1) if self.free[at]), -1)

    def take_slot(self, n_bytes: int, n_documents: int) -> Slot | None:
        """A free slot of the smallest class that holds so much."""
        for size, free in zip(self.sizes, self.free, strict=True):
            if free and n_bytes <= size.capacity and n_documents <= size.max_documents:
                return free.pop()
        return None


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
    _alone_yields: bool = False
    """A document alone ended, and no shared replay was launched since."""

    def add(self, queue: ModelQueue, group: Group) -> None:
        """Queue a group; what does not fit any slot and was not cut leaves at once."""
        load = queue.load
        if queue.is_forgotten:
            self._leave(group, NOT_READY)
            return
        if group.n_bytes > load.alone_over_bytes and not self._sort_out(queue, group):
            self._leave(group, NO_SLOT)
            return
        if group.n_waiting:
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
        for _place, queue, is_alone in sorted(self._candidates(now_ns), key=lambda candidate: candidate[0]):
            batch = queue.filled.popleft() if is_alone else self._next_shared(queue, now_ns)
            if batch is not None:
                batch.launched_ns = now_ns
                self._note(batch)
                return batch
        return None

    def reserve(self, now_ns: int) -> Batch | None:
        """A slot for a document alone, to be filled outside the lock and handed to `filled`."""
        if self.n_ahead >= FILLED_AHEAD:
            return None
        for queue in self.queues.values():
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

    def refused(self, queue: ModelQueue, batch: Batch) -> None:
        """A reserved slot could not be filled."""
        self.n_ahead -= 1
        self.give_back(queue, batch.slot)
        assert batch.piece is not None
        self._drop_alone(queue, batch.piece, UNREADABLE)

    def ended(self, batch: Batch) -> None:
        """A replay ended; its place is free, its slot is not yet."""
        self.n_under_way -= 1
        load = batch.queue.load
        if batch.piece is not None:
            self.n_alone_under_way -= 1
            self._alone_yields = True
            load.alone_launched_ns = load.alone_launched_bytes = 0
            return
        under_way = batch.queue.under_way
        under_way.remove(batch)
        load.launched_ns, load.launched_bytes = (
            (under_way[0].launched_ns, under_way[0].n_bytes) if under_way else (0, 0)
        )

    def give_back(self, queue: ModelQueue, slot: Slot) -> None:
        """The results of a slot were read or are not wanted."""
        queue.free[queue.class_of[slot.number]].append(slot)

    def hold(self, queue: ModelQueue, slot: Slot) -> bool:
        """Whether results may stay in the slot: only if another one of its size or more is left for replays."""
        at = queue.class_of[slot.number]
        if sum(queue.n_slots[at:]) - sum(queue.n_held[at:]) < 2:
            return False
        queue.n_held[at] += 1
        return True

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

    def _candidates(self, now_ns: int) -> list[tuple[tuple[bool, int], ModelQueue, bool]]:
        """(place in the order, queue, whether it is a document alone).

        By age; but between two documents alone the others have a turn, whatever they are worth, so that none of them
        waits for two.
        """
        found: list[tuple[tuple[bool, int], ModelQueue, bool]] = []
        queues = self.queues.values()
        for queue in queues:
            self._drop_unwanted(queue, now_ns)
        alone = [queue for queue in queues if queue.filled] if not self.n_alone_under_way else []
        for queue in alone:
            piece = queue.filled[0].piece
            assert piece is not None
            found.append(((self._alone_yields, piece.group.queued_ns), queue, True))
        for queue in queues:
            if queue.shared and (alone or self._is_worth(queue)):
                found.append(((False, queue.shared[0].queued_ns), queue, False))
        return found

    def _is_worth(self, queue: ModelQueue) -> bool:
        return (
            not queue.under_way
            or queue.n_waiting >= self.limits.beside_documents
            or queue.load.waiting_bytes >= self.limits.beside_bytes
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

    def _take(self, queue: ModelQueue, size: SizeClass, now_ns: int) -> _Taken:
        """The oldest groups that fit together; of one that is more than a batch, a part."""
        room, n_room = min(size.capacity, queue.load.max_batch_bytes), size.max_documents
        taken = _Taken()
        shared = queue.shared
        while shared:
            group = shared[0]
            if reason := group.why_unwanted(now_ns):
                self._drop_shared(queue, shared.popleft(), reason)
                continue
            if taken.n_bytes + group.waiting_bytes <= room and taken.n_documents + group.n_waiting <= n_room:
                numbers = None if group.order is None else group.order[group.next :]
                taken.add(shared.popleft(), numbers, group.n_waiting, group.waiting_bytes)
                continue
            if not taken.shares:
                part, part_bytes = _part(group, room, size.capacity, n_room)
                if part:
                    group.next += len(part)
                    group.queued_ns = now_ns
                    taken.add(shared.popleft(), part, len(part), part_bytes)
                    if group.n_waiting:
                        shared.append(group)
            break
        return taken

    def _note(self, batch: Batch) -> None:
        load = batch.queue.load
        self.n_under_way += 1
        if batch.piece is not None:
            self.n_ahead -= 1
            self.n_alone_under_way += 1
            load.alone_waiting_bytes -= batch.n_bytes
            load.alone_launched_ns, load.alone_launched_bytes = batch.launched_ns, batch.n_bytes
            return
        self._alone_yields = False
        under_way = batch.queue.under_way
        under_way.append(batch)
        if len(under_way) == 1:
            load.launched_ns, load.launched_bytes = batch.launched_ns, batch.n_bytes

    def _sort_out(self, queue: ModelQueue, group: Group) -> bool:
        """Queue the documents that get replays of their own; false when one of them fits no slot."""
        alone: list[Alone] = []
        order: list[int] = []
        cuts = group.cuts or {}
        for document, length in enumerate(group.lengths):
            if document in cuts:
                alone += [
                    Alone(group, document, piece.start, piece.end, number)
                    for number, piece in enumerate(cuts[document])
                ]
            elif document in group.needs_cpu:
                continue
            elif length > queue.load.alone_over_bytes:
                alone.append(Alone(group, document, 0, length))
            else:
                order.append(document)
        if any(piece.end - piece.start > queue.top.capacity for piece in alone):
            return False
        group.order, group.n_waiting = order, len(order)
        group.waiting_bytes = sum(group.lengths[document] for document in order)
        queue.alone += alone
        queue.load.alone_waiting_bytes += sum(piece.end - piece.start for piece in alone)
        return True

    def _drop_unwanted(self, queue: ModelQueue, now_ns: int) -> None:
        shared, filled = queue.shared, queue.filled
        while shared and (reason := shared[0].why_unwanted(now_ns)):
            self._drop_shared(queue, shared.popleft(), reason)
        while filled:
            batch = filled[0]
            assert batch.piece is not None
            if not (reason := batch.piece.group.why_unwanted(now_ns)):
                return
            filled.popleft()
            self.n_ahead -= 1
            self.give_back(queue, batch.slot)
            self._drop_alone(queue, batch.piece, reason)

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


@dataclass(slots=True)
class _Taken:
    """What a batch is made of."""

    shares: list[tuple[Group, Sequence[int] | None]] = field(default_factory=list)
    n_bytes: int = 0
    n_documents: int = 0
    count_only: bool = True

    def add(self, group: Group, numbers: Sequence[int] | None, n_documents: int, n_bytes: int) -> None:
        self.shares.append((group, numbers))
        self.n_bytes += n_bytes
        self.n_documents += n_documents
        self.count_only = self.count_only and group.count_only
        group.n_waiting -= n_documents
        group.waiting_bytes -= n_bytes


def _part(group: Group, room: int, capacity: int, n_room: int) -> tuple[Sequence[int], int]:
    """As many of the documents that a group has left as fit, and their bytes; one at least if the slot holds it."""
    if group.order is None:
        group.order = range(len(group.lengths))
    left: Sequence[int] = group.order[group.next : group.next + n_room]
    n_bytes = 0
    for n_taken, document in enumerate(left):
        length = group.lengths[document]
        if n_bytes + length > room and (n_taken or length > capacity):
            return left[:n_taken], n_bytes
        n_bytes += length
    return left, n_bytes
