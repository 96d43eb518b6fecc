"""Choice of the way in and out, and the memory of a context."""

import pytest

from gpu_core.arena import ALIGNMENT, arrange
from gpu_core.decimal_layout import decimal_results
from gpu_core.layout import workspace
from gpu_core.transfer import MAPPED_DOCUMENTS, MAPPED_TEXT_BYTES, TRANSFERS, choose


def test_small_text_is_read_where_it_lies() -> None:
    """Neither many bytes nor many documents are read over the bus; only resident results stay on the device."""
    for resident in (False, True):
        results = "resident" if resident else "mapped"
        assert choose(MAPPED_TEXT_BYTES, MAPPED_DOCUMENTS, resident) == ("mapped", results)
        assert choose(MAPPED_TEXT_BYTES + 1, 1, resident) == ("fetched", results)
        assert choose(1, MAPPED_DOCUMENTS + 1, resident) == ("fetched", results)
        assert choose(0, 0, resident) in TRANSFERS


@pytest.mark.parametrize("token_starts", [False, True])
@pytest.mark.parametrize("capacity", [1, 833, 4096, 1 << 20])
def test_arrays_do_not_overlap(capacity: int, token_starts: bool) -> None:
    """Arrays lie one behind the other, aligned; text has a copy on both sides, state lies on the device only."""
    arena = arrange(capacity, 64, token_starts)
    buffers = (*workspace(capacity, 64, token_starts), *decimal_results(capacity, 64))
    sizes = {buffer.name: buffer.n_bytes for buffer in buffers}
    for block in (arena.pinned, arena.device):
        end = 0
        for name, offset in sorted(block.offsets.items(), key=lambda item: item[1]):
            assert offset >= end
            assert offset % ALIGNMENT == 0
            end = offset + sizes[name]
        assert end <= block.n_bytes
        assert ("token_starts" in block.offsets) == token_starts
    both = arena.pinned.offsets.keys() & arena.device.offsets.keys()
    assert both - {"token_starts"} == {"header", "text", "document_starts", "ids", "document_tokens"}
    assert {"decimals", "document_decimals"} <= arena.pinned.offsets.keys()
    assert arena.device.address(1 << 20, "control") == 1 << 20
    assert arena.device.address(1 << 20, "completion") == 0


def test_workspace_is_small() -> None:
    """All device memory of a large class is less than 24 bytes per byte of capacity."""
    for capacity in (1 << 20, 16 << 20):
        assert arrange(capacity, capacity // 8, True).device.n_bytes < 24 * capacity
