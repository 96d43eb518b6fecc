"""What host and device agree on about ids as decimal numbers: structs, constants, memory. Runs without a GPU.

The structs are declared once more in `kernels/decimal.cu`; a test compares the two.
"""

from __future__ import annotations

import numpy as np

from gpu_core.layout import Buffer, Kernel, n_id_tiles

MAX_TEXT = 11
"""Bytes of an id and its comma at most."""
ROOM = 2
"""Bytes of decimal text for each byte of a context's capacity; prose takes 1.3, and what does not fit is left out."""

_POINTER = "<u8"
DECIMAL_BATCH = np.dtype(
    [
        ("ids", _POINTER),
        ("document_tokens", _POINTER),
        ("encoded", _POINTER),
        ("written_ids", _POINTER),
        ("written_tokens", _POINTER),
        ("decimals", _POINTER),
        ("document_decimals", _POINTER),
        ("completion", _POINTER),
        ("states", _POINTER),
        ("control", _POINTER),
    ],
)
"""Addresses of one execution context. The first three are what a replay left on the device, with its completion."""
DECIMAL_JOB = np.dtype([("epoch", "<u8"), ("n_documents", "<u4"), ("room", "<u4")])
"""Passed by value with each launch. `epoch` is that of the replay, `room` the bytes that there are for text."""
DECIMAL_CONTROL = np.dtype([("blocks_done", "<u4"), ("reserved", "<u4")])

DECIMAL_KERNEL = Kernel("decimal", "decimal.cu", ("DECIMAL_BATCH", "DECIMAL_JOB"), 256)
"""Its grid is `n_id_tiles(n_bytes)` blocks; those beyond the ids exit at once."""


def decimal_results(capacity: int, max_documents: int) -> tuple[Buffer, ...]:
    """Pinned memory of a context for the text of ids: digits and a comma for each, and where each document's begins."""
    return (
        Buffer("decimals", "u1", ROOM * capacity),
        Buffer("document_decimals", "<u4", max_documents + 1),
    )


def decimal_memory(capacity: int) -> tuple[Buffer, ...]:
    """Device memory of a context, zero at first; `completion` is where the replay writes its own."""
    return (
        Buffer("control", "u1", DECIMAL_CONTROL.itemsize, zeroed=True),
        Buffer("completion", "<u8", 2, zeroed=True),
        Buffer("states", "<u8", n_id_tiles(capacity), zeroed=True),
    )
