"""The memory that a frontend and an engine share."""

import contextlib
import gc
import mmap
import os

import numpy as np
import pytest

from dispatcher.gpu.arena import arena_bytes, make_arena, map_arena, slot_places
from gpu_core.host_device import HostDevice
from gpu_core.options import GpuOptions
from tests.engine_rig import added, holdings

OPTIONS = GpuOptions(size_classes_bytes=(4096, 65536, 1 << 20), contexts_per_class=3)


def test_places_do_not_touch() -> None:
    """Slots lie one after the other, each at a page, smallest class first, with room for all of their arrays."""
    places = slot_places(OPTIONS)
    assert [place.size.capacity for place in places] == [4096] * 3 + [65536] * 3 + [1 << 20] * 3
    assert [place.number for place in places] == [0, 1, 2] * 3
    end = 0
    for place in places:
        assert place.offset == end
        assert place.offset % mmap.PAGESIZE == 0
        assert place.n_bytes >= place.block.n_bytes
        end += place.n_bytes
    assert arena_bytes(places) == end


def test_a_budget_leaves_out_the_largest() -> None:
    """Both sides keep the same classes of a budget."""
    places = slot_places(GpuOptions(size_classes_bytes=(4096, 65536), memory_budget_bytes=200_000))
    assert [place.size.capacity for place in places] == [4096, 4096]


def test_both_sides_see_the_same_arrays() -> None:
    """What the frontend writes into a slot is what the context reads, and the other way round; slots keep apart."""
    places = slot_places(OPTIONS)
    fd, frontend = make_arena(arena_bytes(places))
    engine = map_arena(fd, arena_bytes(places))
    os.close(fd)
    device = HostDevice(lambda document: [(byte, 0) for byte in document], token_starts=False)
    slots = [place.slot(i, "key", frontend) for i, place in enumerate(places)]
    contexts = [device.context(place.size, place.pinned(engine)) for place in places]
    for i, slot in enumerate(slots):
        assert len(slot.text) == slot.size.capacity == len(slot.ids)
        assert len(slot.document_starts) == len(slot.document_tokens) == slot.size.max_documents + 1
        slot.text[:3] = bytes([i, i + 1, i + 2])
        slot.document_starts[:3] = (0, 1, 3)
        contexts[i].launch(3, 2, 1, False)
    for i, place in enumerate(places):
        assert contexts[i].poll(1)
        place.reasons(engine)[:2] = (i, 7)
    for i, (slot, place) in enumerate(zip(slots, places, strict=True)):
        assert slot.ids[:3].tolist() == [i, i + 1, i + 2]
        assert slot.document_tokens[:3].tolist() == [0, 1, 3]
        assert place.reasons(frontend)[:2].tolist() == [i, 7]


def test_memory_lives_as_long_as_its_views() -> None:
    """A slot that somebody still reads keeps its memory; with the last one it goes."""
    places = slot_places(OPTIONS)
    fd, memory = make_arena(arena_bytes(places))
    own = os.fstat(fd).st_ino
    os.close(fd)
    ids = places[0].slot(0, "key", memory).ids
    ids[:2] = (1, 2)
    del memory
    gc.collect()
    assert ids[:2].tolist() == [1, 2]
    assert _n_open(own) == 1
    del ids
    gc.collect()
    assert _n_open(own) == 0


def test_memory_that_cannot_be_had() -> None:
    """An arena that the system refuses is an error, and leaves nothing open."""
    before = holdings()
    with pytest.raises(OSError, match=r"."):
        make_arena(1 << 62)
    assert added(before) == []


def test_new_memory_is_zero() -> None:
    """An arena starts empty."""
    fd, memory = make_arena(1 << 16)
    os.close(fd)
    assert not np.frombuffer(memory, np.uint8).any()


def _n_open(inode: int) -> int:
    """Descriptors of one file; arenas of other tests may be about to go."""
    found = 0
    for entry in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            found += os.fstat(int(entry)).st_ino == inode
    return found
