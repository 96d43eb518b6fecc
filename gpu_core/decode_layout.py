"""What host and device agree on for decoding: structs of `kernels/decode.cu`, and the memory of one context.

pinned   completion │ sequence_starts │ ids │ sequence_bytes │ bytes
device   control │ tile_states │ sequence_starts (a copy, where there are many)
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from gpu_core.arena import Block, place
from gpu_core.layout import TILE_IDS, Buffer, Kernel, n_id_tiles

STAGE = 8192
"""Bytes that a block puts together at a time."""
INLINE = 12
"""An entry of up to so many bytes lies in its slot, a longer one in the pool."""
SPECIAL = 1 << 31
"""Bit of a slot's last word: left out under `FLAG_SKIP_SPECIAL`. The bits below `LENGTH` are the length in bytes."""
LENGTH = (1 << 30) - 1
FLAG_SKIP_SPECIAL = 1

_POINTER = "<u8"
DECODE_TABLES = np.dtype([("pieces", _POINTER), ("pool", _POINTER), ("n_ids", "<u4"), ("reserved", "<u4")])
DECODE_BATCH = np.dtype(
    [
        ("ids", _POINTER),
        ("sequence_starts", _POINTER),
        ("bytes", _POINTER),
        ("sequence_bytes", _POINTER),
        ("tile_states", _POINTER),
        ("control", _POINTER),
        ("completion", _POINTER),
    ],
)
DECODE_JOB = np.dtype(
    [("epoch", "<u8"), ("n_ids", "<u4"), ("n_sequences", "<u4"), ("flags", "<u4"), ("capacity", "<u4")],
)
"""Passed by value with each launch. `epoch` grows by one on the same memory and starts at 1."""
DECODE_COMPLETION = np.dtype([("epoch", "<u8"), ("n_bytes", "<u4"), ("reserved", "<u4")])
"""`n_bytes` counts what did not fit, too; `epoch` comes last."""
DECODE_CONTROL = np.dtype([("blocks_done", "<u4"), ("reserved", "<u4")])

DECODE_KERNEL = Kernel("decode", "decode.cu", ("DECODE_TABLES", "DECODE_BATCH", "DECODE_JOB"), 256)
"""Its grid is `n_id_tiles(n_ids)` blocks."""


@dataclass(frozen=True, slots=True)
class DecodeArena:
    """Where the arrays of one context lie; the device's part is zero at first."""

    n_ids: int
    n_bytes: int
    n_sequences: int
    pinned: Block
    device: Block


def arrange_decoding(n_ids: int, n_bytes: int, n_sequences: int) -> DecodeArena:
    """Room for so many ids, bytes and sequences in one launch."""
    n_ids, n_bytes = n_id_tiles(n_ids) * TILE_IDS, -(-n_bytes // 16) * 16
    starts = Buffer("sequence_starts", "<u4", n_sequences + 1)
    pinned = (
        Buffer("completion", "u1", DECODE_COMPLETION.itemsize),
        starts,
        Buffer("ids", "<u4", n_ids),
        Buffer("sequence_bytes", "<u4", n_sequences + 1),
        Buffer("bytes", "u1", n_bytes),
    )
    device = (
        Buffer("control", "u1", DECODE_CONTROL.itemsize, zeroed=True),
        Buffer("tile_states", "<u8", n_id_tiles(n_ids), zeroed=True),
        starts,
    )
    return DecodeArena(n_ids, n_bytes, n_sequences, place(pinned), place(device))
