"""Memory of a slot that a caller writes a text to, where the GPU reads it: nothing is copied.

    text = route.reserve(key, n_bytes) ─► the caller writes ─► a group of `text[:n]` alone ─► replay in that slot

The slot is no other text's until nothing refers to the text any more and nobody reads ids there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from dispatcher.gpu.held_ids import Hold, Holds
from dispatcher.gpu.link import Slot

if TYPE_CHECKING:
    from dispatcher.gpu.route import GpuRoute


class Lease:
    """The right of a text to its slot. Ends when nothing refers to it any more: its text, a group of it, a batch."""

    __slots__ = ("_holds", "_queue", "_spare", "_unused", "route", "slot")

    def __init__(self, route: GpuRoute, queue: object, slot: Slot, give_back: Callable[[], None]) -> None:
        """`queue`: the slot's, of one engine. `give_back` must not block: it may run at any point of any thread."""
        self.route, self.slot = route, slot
        self._queue = queue
        self._holds = Holds(2, give_back)
        self._spare, self._unused = [None], [None]

    def use(self, queue: object) -> bool:
        """Let a group of this queue have the slot; true once, and for no other engine's queue."""
        if self._queue is not queue:
            return False
        try:
            self._unused.pop()
        except IndexError:
            return False
        return True

    def hold(self) -> Hold:
        """The right to read ids of the slot, beyond the text's; once."""
        self._spare.pop()
        return Hold(self._holds)

    def __del__(self) -> None:
        self._holds.leave()
        if self._spare:
            self._holds.leave()


class ReservedText(np.ndarray[tuple[Any, ...], np.dtype[np.uint8]]):
    """Writable bytes, in a slot or, without a lease, in ordinary memory. Slices of it have the same lease."""

    lease: Lease | None = None
    memory: memoryview | None = None
    """All of it, unless it is a slice: what `data` would have to be made for."""

    def __new__(cls, memory: memoryview, lease: Lease | None = None) -> Self:
        """All of `memory`."""
        # Over the memory itself: NumPy would let a plain view refer to an array below this one, and not to the lease.
        text = super().__new__(cls, (len(memory),), np.uint8, memory)
        text.lease, text.memory = lease, memory
        return text

    def __array_finalize__(self, other: object) -> None:
        """See NumPy."""
        self.lease = getattr(other, "lease", None)


def bytes_of(text: ReservedText) -> memoryview:
    """The text, as long as something refers to the array."""
    return text.data if text.memory is None else text.memory


def lease_of(text: ReservedText) -> Lease | None:
    """The lease, if a replay can read the text as it is: it begins where its slot does."""
    lease = text.lease
    if lease is None or text.memory is not None:
        return lease
    if text.dtype != np.uint8 or not text.flags.c_contiguous:
        return None
    return lease if _address(text) == _address(lease.slot.text) else None


def _address(memory: Any) -> int:
    return int(np.frombuffer(memory, np.uint8).__array_interface__["data"][0])


def ordinary_text(n_bytes: int) -> ReservedText:
    """The same in memory that no GPU reads."""
    return ReservedText(memoryview(bytearray(n_bytes)))
