"""Choice of the way in and out, and the memory that follows from it."""

import pytest

from gpu_core.arena import HEADER_ROOM, arrange
from gpu_core.layout import HEADER, workspace
from gpu_core.options import GpuOptions
from gpu_core.transfer import MAPPED_DOCUMENTS, Transfer, choose, used_by


@pytest.mark.parametrize("capacity", GpuOptions().size_classes_bytes)
def test_every_choice_is_captured(capacity: int) -> None:
    """Whatever a batch of a class may ask for was captured with it."""
    known = used_by(capacity)
    for n_bytes in {0, 1, capacity // 4, capacity // 3, capacity - 1, capacity}:
        for n_documents in (0, 1, MAPPED_DOCUMENTS, MAPPED_DOCUMENTS + 1, 10**5):
            for resident in (False, True):
                choice = choose(n_bytes, n_documents, resident)
                assert choice in known
                assert (choice.results == "resident") == resident


@pytest.mark.parametrize("token_starts", [False, True])
@pytest.mark.parametrize("capacity", [1, 833, 4096, 1 << 20])
def test_arrays_do_not_overlap(capacity: int, token_starts: bool) -> None:
    """Arrays lie one behind the other, aligned, and the header right before the text on both sides."""
    arena = arrange(capacity, 64, token_starts, used_by(capacity))
    sizes = {buffer.name: buffer.n_bytes for buffer in workspace(capacity, 64, token_starts)} | {"counters": 16}
    for block in (arena.pinned, arena.device):
        end = 0
        for name, offset in sorted(block.offsets.items(), key=lambda item: item[1]):
            assert offset >= end
            end = offset + sizes[name]
        assert end <= block.n_bytes
        assert block.offsets["text"] - block.offsets["header"] == HEADER_ROOM >= HEADER.itemsize
        assert block.offsets["text"] % 16 == 0
        assert ("token_starts" in block.offsets) == token_starts


def test_device_memory_only_for_what_is_used() -> None:
    """A class that maps everything needs only the state of the kernels on the device."""
    mapped = arrange(4096, 64, False, (Transfer("mapped", "mapped"),))
    assert "ids" not in mapped.device.offsets
    assert "text" not in mapped.device.offsets
    assert mapped.device.address(1 << 20, "ids") == 0
    assert mapped.device.address(1 << 20, "control") == 1 << 20


def test_workspace_is_small() -> None:
    """All device memory of a large class is less than 24 bytes per byte of capacity."""
    for capacity in (1 << 20, 16 << 20):
        arena = arrange(capacity, capacity // 8, True, used_by(capacity))
        assert arena.device.n_bytes < 24 * capacity
