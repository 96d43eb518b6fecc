"""Views of a slot: it is given back once, when the last of them ends."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from dispatcher.gpu.held_ids import HeldIds, Hold, Holds, held_ids
from dispatcher.gpu.link import SlotBytes


class Slots:
    """Counts what is given back."""

    def __init__(self, n_holds: int) -> None:
        self.n_back = 0
        self.ids = np.arange(100, dtype=np.uint32)
        self.id_bytes = self.ids.view(np.uint8).view(SlotBytes)
        self.id_bytes.flags.writeable = False
        self.holds = Holds(n_holds, self._back)

    def view(self, begin: int, end: int) -> HeldIds:
        """Some ids."""
        return held_ids(self.id_bytes[begin << 2 : end << 2], Hold(self.holds))

    def _back(self) -> None:
        self.n_back += 1


def test_ids_are_read_only_bytes() -> None:
    """Packed little-endian, without a copy."""
    slots = Slots(1)
    view = slots.view(2, 4)
    assert bytes(view) == b"\2\0\0\0\3\0\0\0"
    assert len(view) == 8
    slots.ids[2] = 9
    assert bytes(view.data[:4]) == b"\t\0\0\0"
    with pytest.raises(ValueError, match="read-only"):
        view[0] = 1


def test_released_once() -> None:
    """However often it is released and let go."""
    slots = Slots(1)
    view = slots.view(0, 9)
    view.release()
    view.release()
    del view
    gc.collect()
    assert slots.n_back == 1


def test_the_last_one_gives_back() -> None:
    """Released or let go, in any order."""
    slots = Slots(3)
    first, second, third = slots.view(0, 1), slots.view(1, 2), slots.view(2, 3)
    second.release()
    del first
    assert slots.n_back == 0
    third.release()
    assert slots.n_back == 1


@pytest.mark.parametrize(
    "part_of",
    [
        lambda view: view[4:8],
        lambda view: view.data,
        lambda view: memoryview(view.data[4:8]),
        lambda view: view.reshape(4, 8)[1:],
        lambda view: np.frombuffer(view, "<u4"),
        lambda view: np.frombuffer(view.data, "<u4"),
        lambda view: np.frombuffer(view[4:8], np.uint8)[1:],
        np.asarray,
        lambda view: view.view(np.ndarray)[1:],
        lambda view: view.view("<u4"),
    ],
    ids=[
        *("slice", "memoryview", "slice of a memoryview", "reshaped", "from buffer", "from its memoryview"),
        *("from a slice", "as array", "plain view", "as numbers"),
    ],
)
def test_any_view_of_it_keeps_the_slot(part_of: Callable[[HeldIds], Any]) -> None:
    """The array itself may be gone."""
    slots = Slots(1)
    kept = part_of(slots.view(0, 8))
    gc.collect()
    assert slots.n_back == 0
    del kept
    gc.collect()
    assert slots.n_back == 1


def test_a_part_of_it_has_nothing_to_release() -> None:
    """Only the array that was handed out has, so that a slice cannot take the slot from the others."""
    slots = Slots(1)
    view = slots.view(0, 8)
    part = view[4:8]
    assert isinstance(part, HeldIds)
    part.release()
    assert slots.n_back == 0


def test_many_threads_release() -> None:
    """The slot is given back exactly once."""
    for _ in range(50):
        slots = Slots(8)
        views = [slots.view(0, 1) for _ in range(8)]
        threads = [threading.Thread(target=view.release) for view in views for _ in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert slots.n_back == 1
