"""Sizes of an execution context."""

import pytest

from gpu_core import layout


def test_workspace_takes_at_most_24_bytes_for_each_byte_of_capacity() -> None:
    """With token starts, and with a document for every 8 bytes."""
    for capacity in (4096, 1 << 20, 16 << 20):
        buffers = layout.workspace(capacity, capacity // 8, token_starts=True)
        assert sum(buffer.n_bytes for buffer in buffers) <= 24 * capacity


def test_workspace_has_a_buffer_for_every_pointer_of_the_batch() -> None:
    """Part for part, in the same order; behind them are those of the text that blocks fetch."""
    names = [buffer.name for buffer in layout.workspace(4096, 1, True)]
    assert names == list(layout.BATCH.names or ())[: len(names)]


@pytest.mark.parametrize(("n_bytes", "n"), [(0, 1), (1, 1), (layout.TILE, 1), (layout.TILE + 1, 2)])
def test_number_of_tiles(n_bytes: int, n: int) -> None:
    """An empty text has one tile, which writes its results."""
    assert layout.n_tiles(n_bytes, layout.TILE) == n
