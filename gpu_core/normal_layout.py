"""What host and device agree on about text in normal form (NFC): structs, constants, memory. Runs without a GPU.

The structs are declared once more in `kernels/normalize.cu`; a test compares the two.
"""

from __future__ import annotations

import numpy as np

from gpu_core.layout import HEADER, Buffer, Kernel, n_tiles, workspace

WINDOW, HALO = 1024, 128
"""Bytes that a block looks at, and those of them before its tile; as many lie behind it."""
TILE = WINDOW - 2 * HALO
"""Bytes of the source text whose segments a block owns: a segment belongs to the tile in which it starts."""
MAX_SEGMENT = 120
"""Bytes of a segment that is rewritten at most."""
MAX_PARTS = 32
"""Code points of its canonical decomposition at most."""
MAX_RESULT = 120
"""Bytes of its normal form at most."""
MAX_GROWTH = 3
"""Bytes of normal form for each byte of a segment at most."""

_POINTER = "<u8"
NORMAL_TABLES = np.dtype(
    [
        ("class_pages", _POINTER),
        ("class_blocks", _POINTER),
        ("detail_pages", _POINTER),
        ("detail_blocks", _POINTER),
        ("decompositions", _POINTER),
        ("compositions", _POINTER),
        ("a0", "<u4"),
        ("a1", "<u4"),
        ("b0", "<u4"),
        ("b1", "<u4"),
        ("shift", "<u4"),
        ("reserved", "<u4"),
        ("endings", "<u4", (4,)),
        ("letters", "<u4", (4,)),
    ],
)
"""Passed by value: see `gpu_core.normal_tables.NormalTables`, which fills it."""
NORMAL_BATCH = np.dtype(
    [
        ("source_text", _POINTER),
        ("source_starts", _POINTER),
        ("text", _POINTER),
        ("document_starts", _POINTER),
        ("header", _POINTER),
        ("document_flags", _POINTER),
        ("encode_control", _POINTER),
        ("states", _POINTER),
        ("control", _POINTER),
    ],
)
"""Addresses of one execution context. The first two are what a replay read. Text, document starts and header are
written, as `layout.BATCH` has them; document flags and control are those of the replay that follows.
"""
NORMAL_JOB = np.dtype(
    [("epoch", "<u8"), ("n_bytes", "<u4"), ("n_documents", "<u4"), ("flags", "<u4"), ("capacity", "<u4")],
)
"""Passed by value with each launch. `epoch` and `flags` are those of the replay that follows, whose header gets
`FLAG_NORMAL_FORM` besides; `n_bytes` are those of the source text, `capacity` is the room for text."""
NORMAL_CONTROL = np.dtype([("sums", "<u8")])

NORMAL_KERNEL = Kernel("normalize", "normalize.cu", ("NORMAL_TABLES", "NORMAL_BATCH", "NORMAL_JOB"), 256)
"""Its grid is `n_tiles(n_bytes, TILE)` blocks."""


def normal_memory(capacity: int, max_documents: int) -> tuple[Buffer, ...]:
    """Device memory of a context: what the kernel writes for the replay that follows, and its own."""
    of_replay = {buffer.name: buffer for buffer in workspace(capacity, max_documents, token_starts=False)}
    return (
        Buffer("control", "<u8", 1, zeroed=True),
        Buffer("states", "<u8", n_tiles(capacity, TILE), zeroed=True),
        Buffer("header", "u1", HEADER.itemsize),
        of_replay["text"],
        of_replay["document_starts"],
    )
