"""What host and device agree on about joining pieces: structs, constants, memory. Runs without a GPU.

The structs are declared once more in `kernels/join.cu`; a test compares the two.
"""

from __future__ import annotations

import numpy as np

from gpu_core.layout import Buffer, Kernel

PIECES = 8
"""Pieces of a block."""
SEARCHED = 128
"""Bytes from the beginning of a piece in which a token that it has in common with the one before may begin."""
REFUSED, NO_SEAM = 1, 2
"""Of a report: the device does not answer the piece, or it has no token in common with the one before."""
SHIFT_AT = 2
"""Bit of a report from which on it says how many bytes before the piece a token of the one before begins."""
BYTES_PER_PIECE = 64
"""A context has room for one piece in so many bytes of its capacity; they have more than 100 each."""
MIN_PIECES = 64
"""And for so many at least."""

_POINTER = "<u8"
JOIN_BATCH = np.dtype(
    [
        ("ids", _POINTER),
        ("token_starts", _POINTER),
        ("document_tokens", _POINTER),
        ("document_starts", _POINTER),
        ("document_flags", _POINTER),
        ("places", _POINTER),
        ("joined_ids", _POINTER),
        ("joined_starts", _POINTER),
        ("piece_tokens", _POINTER),
        ("reports", _POINTER),
        ("states", _POINTER),
        ("control", _POINTER),
        ("completion", _POINTER),
    ],
)
"""Addresses of one execution context. The first five are what a replay over the pieces left on the device."""
JOIN_JOB = np.dtype(
    [("epoch", "<u8"), ("n_bytes", "<u4"), ("n_pieces", "<u4"), ("flags", "<u4"), ("reserved", "<u4")],
)
"""Passed by value with each launch. `epoch` is that of the replay, `n_bytes` are those of all pieces."""

JOIN_KERNEL = Kernel("join", "join.cu", ("JOIN_BATCH", "JOIN_JOB"), 256)
"""Its grid is `n_blocks(n_pieces)` blocks."""


def max_pieces(capacity: int) -> int:
    """Pieces that a context has room for."""
    return max(MIN_PIECES, capacity // BYTES_PER_PIECE)


def n_blocks(n_pieces: int) -> int:
    """Blocks that so many pieces need."""
    return max(1, -(-n_pieces // PIECES))


def fits(n_bytes: int, n_pieces: int, capacity: int, max_documents: int) -> bool:
    """Whether pieces can be joined in a context: token starts lie in one half of its ids, which leaves the other."""
    return n_bytes <= starts_at(capacity) and n_pieces <= min(max_pieces(capacity), max_documents)


def starts_at(capacity: int) -> int:
    """Which of a context's ids on the device is the first token start of pieces: a multiple of 32."""
    return capacity // 64 * 32


def join_memory(capacity: int) -> tuple[Buffer, ...]:
    """The device memory of a context that joins, zero at first; `completion` is where the replay writes its own."""
    return (
        Buffer("control", "<u8", 1, zeroed=True),
        Buffer("completion", "<u8", 2, zeroed=True),
        Buffer("states", "<u8", n_blocks(max_pieces(capacity)), zeroed=True),
    )
