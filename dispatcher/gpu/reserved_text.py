"""Memory of a slot that a caller writes a text to, where the GPU reads it: nothing is copied.

    text = route.reserve(key, n_bytes) ─► the caller writes ─► a group of `text[:n]` alone ─► replay in that slot

The slot is no other text's until nothing refers to the text any more and nobody reads ids there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from dispatcher.gpu.link import Slot

if TYPE_CHECKING:
    from dispatcher.gpu.native_way import NativePlace
    from dispatcher.gpu.route import GpuRoute
    from dispatcher.gpu.short_way import ShortWay


class Ending:
    """Gives a slot back when nothing refers to this any more."""

    __slots__ = ("_give_back",)

    def __init__(self, give_back: Callable[[], None]) -> None:
        """`give_back` must not block: it may run at any point of any thread."""
        self._give_back = give_back

    def __del__(self) -> None:
        self._give_back()


class Lease:
    """The right to a slot. Ends when nothing refers to it any more: a text, its group, its batch, views of its ids."""

    __slots__ = ("_ending", "place", "route", "slot", "unused", "way")

    def __init__(self, route: GpuRoute, way: ShortWay, slot: Slot, ending: object) -> None:
        """`way`: of the model on one engine. `ending` gives the slot back when it ends, which it does with this."""
        self.route, self.way, self.slot = route, way, slot
        self.place: NativePlace | None = way.place(slot)
        self._ending, self.unused = ending, [None]
        """`unused` has one entry, until a group has the slot. To take it is one step, on whichever thread."""

    def use(self, queue: object) -> bool:
        """Let a group of this queue have the slot; true once, and for no other engine's queue."""
        if self.way.queue is not queue:
            return False
        try:
            self.unused.pop()
        except IndexError:
            return False
        return True


class ReservedText(np.ndarray[tuple[Any, ...], np.dtype[np.uint8]]):
    """Writable bytes, in a slot or, without a lease, in ordinary memory. Slices of it have the same lease."""

    __slots__ = ("lease", "memory")

    lease: Lease | None
    memory: memoryview | None
    """All of it, unless it is a slice: what `data` would have to be made for."""

    def __new__(cls, memory: memoryview, lease: Lease | None = None) -> Self:
        """All of `memory`."""
        # Over the memory itself: NumPy would let a plain view refer to an array below this one, and not to the lease.
        text = super().__new__(cls, (len(memory),), np.uint8, memory)
        text.lease, text.memory = lease, memory
        return text

    def __array_finalize__(self, other: object) -> None:
        """See NumPy."""
        self.lease, self.memory = getattr(other, "lease", None), None


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
