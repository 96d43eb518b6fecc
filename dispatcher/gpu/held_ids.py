"""Ids that are handed out where the GPU wrote them: views that keep a slot from being filled again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray


class Holds:
    """All holds on one slot. The last one to end gives it back, whichever thread or garbage collector ends it."""

    __slots__ = ("_give_back", "_tokens")

    def __init__(self, n_holds: int, give_back: Callable[[], None]) -> None:
        """`give_back` must not block: it may run at any point of any thread."""
        self._tokens = list(range(n_holds))
        self._give_back = give_back

    def leave(self) -> None:
        """One hold ends. No lock: taking a token is one step, and exactly one holder takes number 0."""
        if self._tokens.pop() == 0:
            self._give_back()


class Hold:
    """The right to read a slot. It ends with `release`, or when nothing refers to it any more."""

    __slots__ = ("_holds", "_once")

    def __init__(self, holds: Holds) -> None:
        self._holds = holds
        self._once = [None]

    def release(self) -> None:
        """End it; from any thread, and as often as one likes."""
        try:
            self._once.pop()
        except IndexError:
            return
        self._holds.leave()

    __del__ = release


class HeldIds(np.ndarray[tuple[Any, ...], np.dtype[np.uint8]]):
    """Packed ids in the memory of a slot, as bytes, read-only. The slot is held by this array and all views of it."""

    __slots__ = ("hold",)

    hold: object
    """A `Hold`, or what else keeps the slot as long as something refers to it. Slices have none: they refer here."""

    def release(self) -> None:
        """Give the slot back now; this array and all views of it may change from now on."""
        self.hold = None


def held_ids(id_bytes: NDArray[np.uint8], hold: object) -> HeldIds:
    """A view of some ids of a slot, read-only as these are. See `HeldIds.hold`."""
    view = id_bytes.view(HeldIds)
    view.hold = hold
    return view
