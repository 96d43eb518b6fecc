"""What waits for one model on one GPU, the free slots of its ladder, and the batches that are made of both."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from dispatcher.gpu.group import Group
from dispatcher.gpu.link import Slot
from dispatcher.gpu.reserved_text import Lease
from dispatcher.policy import GpuLoad
from gpu_core.layout import FLAG_DECIMALS, FLAG_IDS, FLAG_NORMAL_FORM

GAP_STEP = 0.1
LONGEST_GAP_NS = 1_000_000
"""A longer pause says no more about how often documents come."""


class Batch:
    """What one replay encodes."""

    __slots__ = (
        "count_only",
        "flags",
        "launched_ns",
        "lease",
        "n_bytes",
        "n_documents",
        "piece",
        "queue",
        "shares",
        "slot",
        "stage_cpu_ns",
        "wants_decimals",
    )

    def __init__(
        self,
        queue: ModelQueue,
        slot: Slot,
        n_bytes: int,
        n_documents: int,
        count_only: bool,
        shares: list[tuple[Group, Sequence[int] | None]],
        piece: Alone | None = None,
        launched_ns: int = 0,
        lease: Lease | None = None,
    ) -> None:
        """`shares`: groups and which of their documents, None = all; empty for a document that has it alone, `piece`.

        `lease`: of a slot that its text was written to from outside.
        """
        self.queue, self.slot = queue, slot
        self.n_bytes, self.n_documents = n_bytes, n_documents
        self.count_only, self.shares, self.piece, self.lease = count_only, shares, piece, lease
        self.launched_ns, self.stage_cpu_ns = launched_ns, 0
        if piece is not None:
            first = piece.group
            self.wants_decimals = first.wants_decimals and piece.number is None
        else:
            first = shares[0][0]
            self.wants_decimals = first.wants_decimals or any([group.wants_decimals for group, _numbers in shares[1:]])
        """Whether ids of some document are to be written as decimal numbers, too. Those of pieces are not."""
        flags = 0 if count_only else FLAG_IDS
        if first.normal_form:
            flags |= FLAG_NORMAL_FORM
        self.flags = flags | FLAG_DECIMALS if self.wants_decimals else flags
        """Of its launch. All texts were rewritten to normal form, or none."""


@dataclass(slots=True)
class Alone:
    """A document, or a piece of one, that gets a replay of its own."""

    group: Group
    document: int
    start: int
    end: int
    number: int | None = None
    """Which piece it is; None = the whole document."""


@dataclass(slots=True)
class Taken:
    """What a batch is made of, while it is put together."""

    shares: list[tuple[Group, Sequence[int] | None]] = field(default_factory=list)
    n_bytes: int = 0
    n_documents: int = 0
    count_only: bool = True

    def add(self, group: Group, numbers: Sequence[int] | None, n_bytes: int, n_documents: int) -> None:
        """Take some documents of a group; None = all."""
        self.shares.append((group, numbers))
        self.n_bytes += n_bytes
        self.n_documents += n_documents
        self.count_only = self.count_only and group.count_only
        group.waiting_bytes -= n_bytes
        group.n_waiting -= n_documents


def part_of(group: Group, room: int, capacity: int, n_room: int) -> tuple[Sequence[int], int]:
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


def groups_of(item: object) -> list[Group]:
    """The groups behind a group or a batch; of anything else, none."""
    if isinstance(item, Batch):
        groups = [group for group, _numbers in item.shares]
        return groups if item.piece is None else [*groups, item.piece.group]
    return [item] if isinstance(item, Group) else []


def leased(queue: ModelQueue, group: Group, launched_ns: int) -> Batch:
    """The batch of a document that lies in its slot already."""
    n_bytes, lease = group.n_bytes, group.lease
    assert lease is not None
    slot = lease.slot
    slot.starts[0], slot.starts[1] = 0, n_bytes
    group.n_waiting = group.waiting_bytes = 0
    piece = Alone(group, 0, 0, n_bytes)
    return Batch(queue, slot, n_bytes, 1, group.count_only, [], piece, launched_ns, lease)


class ModelQueue:
    """Documents of one model that wait, and the free slots of its ladder."""

    def __init__(self, key: str, slots: Sequence[Slot], alone_over_bytes: int, max_batch_bytes: int) -> None:
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
        self.gap_ns = 0.0
        """Time between two documents that share replays, lately."""
        self._launched_ns = 0
        self.n_waiting = 0
        """Documents in `shared`."""
        self.is_forgotten = False
        self.quiet_ns: dict[tuple[str, int, int], int] = {}
        """Until when replays of a kind and of size classes say nothing new (`account.Account`)."""
        self.load = GpuLoad(
            ready=True,
            alone_over_bytes=min(alone_over_bytes, self.top.capacity),
            max_batch_bytes=min(max_batch_bytes, self.top.capacity),
        )

    @property
    def counted_as(self) -> str:
        """The model that its replays are counted for: none in particular once it was forgotten."""
        return "" if self.is_forgotten else self.key

    def largest_free(self) -> int:
        """The largest class with a free slot; -1 when there is none."""
        at = len(self.free) - 1
        while at >= 0 and not self.free[at]:
            at -= 1
        return at

    def note_gap(self, now_ns: int, n_documents: int) -> None:
        """A shared replay is launched: learn how often documents come."""
        elapsed_ns = now_ns - self._launched_ns
        self._launched_ns = now_ns
        if elapsed_ns > LONGEST_GAP_NS:
            elapsed_ns = LONGEST_GAP_NS
        self.gap_ns += GAP_STEP * (elapsed_ns / n_documents - self.gap_ns)

    def take_slot(self, n_bytes: int, n_documents: int) -> Slot | None:
        """A free slot of the smallest class that holds so much."""
        for at, free in enumerate(self.free):
            if free:
                size = self.sizes[at]
                if n_bytes <= size.capacity and n_documents <= size.max_documents:
                    return free.pop()
        return None

    def sort_out(self, group: Group) -> bool:
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
            elif length > self.load.alone_over_bytes:
                alone.append(Alone(group, document, 0, length))
            else:
                order.append(document)
        if any(piece.end - piece.start > self.top.capacity for piece in alone):
            return False
        group.order, group.n_waiting = order, len(order)
        group.waiting_bytes = sum(group.lengths[document] for document in order)
        self.alone += alone
        self.load.alone_waiting_bytes += sum(piece.end - piece.start for piece in alone)
        return True

    def hold(self, slot: Slot) -> bool:
        """Whether a slot may be kept from replays: only if another one of its size or more is left for them."""
        at = self.class_of[slot.number]
        if sum(self.n_slots[at:]) - sum(self.n_held[at:]) < 2:
            return False
        self.n_held[at] += 1
        return True

    def lease(self, n_bytes: int) -> Slot | None:
        """A free slot for a text that is written to it from outside; it is held."""
        slot = self.take_slot(n_bytes, 1)
        if slot is not None and not self.hold(slot):
            self.free[self.class_of[slot.number]].append(slot)
            return None
        return slot

    def close(self) -> None:
        """The engine is gone: nothing is launched any more. Lets go of the slots, whose memory is large, at once."""
        self.load.ready = False
        self.shared.clear()
        self.alone.clear()
        self.filled.clear()
        self.under_way.clear()
        for free in self.free:
            free.clear()
