"""What the host and the device agree on: structs, kernels, and the memory of one size class. Runs without a GPU.

The structs are declared once more in `kernels/structs.cuh`; a test compares sizes and offsets with the compiled
source. Pointers are device addresses; a pointer of pinned, mapped host memory is one too, so `text`, `ids` and
`completion` may live on either side.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

THREADS = 256
"""Threads of a block of `encode`."""
WINDOW = 1024
"""Bytes that a block classifies: 32 words of 32 mask bits, one word for each lane of a warp."""
HALO_LEFT = 64
"""Bytes of context before the tile."""
TILE, BRIDGE_TILE = 896, 832
"""Bytes whose pre-tokens a block owns: a pre-token belongs to the tile in which it starts. BPE over characters looks
further ahead, and its tile is smaller."""
HALO_RIGHT = WINDOW - HALO_LEFT - BRIDGE_TILE
"""Bytes behind the tile of BPE over characters."""
MAX_PRETOKEN = 512
"""A longer pre-token sends its document to the CPU."""
MAX_LITERAL = HALO_LEFT
"""An added token that is longer than this, in bytes, makes a tokenizer unsupported on the device."""
MAX_CAPACITY = (1 << 26) - (1 << 16)
"""Bytes of one replay at most: a tile state holds a token count of 26 bits."""
MAX_WALK = 1 << 20
"""Bytes that a block looks beyond its window for the start of a run of digits, or the end of a run of blanks."""

TILE_IDS = 1024
"""Ids of a block of `decode` and of `decimal`."""

CHUNK = 8192
"""Bytes that a block copies at a time."""
MAX_FETCHERS = 32
"""Blocks of a replay that copy."""
ARRIVED_STRIDE = 16
"""Words from a chunk's epoch to the next one's."""

FLAG_IDS = 1
"""Header flag: write ids. Without it the replay only counts."""
FLAG_TOKEN_STARTS = 2
"""Header flag: write the byte position of each token's first byte, in the text of the whole batch."""
FLAG_NORMAL_FORM = 4
"""Header flag: the gaps between added tokens are in normal form, so that the quick check is left out."""
FLAG_DECIMALS = 8
"""Of a launch, beside the flags of the header (`header_flags`): ids as decimal numbers (`gpu_core.decimal_layout`)."""

HEADER = np.dtype(
    [("epoch", "<u8"), ("n_bytes", "<u4"), ("n_documents", "<u4"), ("flags", "<u4"), ("reserved", "<u4")],
)
"""Filled by the host for each replay. `epoch` grows by one with every replay on the same memory and starts at 1."""

COMPLETION = np.dtype([("epoch", "<u8"), ("n_tokens", "<u4"), ("any_flagged", "<u4")])
"""Written by the last block. `epoch` comes last, after all other results are visible."""

CONTROL = np.dtype([("sums", "<u8")])
"""Sums over the blocks of a replay, which the last one clears. Zeroed once."""

FETCHED = np.dtype([("epoch", "<u8"), ("sizes", "<u8"), ("reserved", "<u8", (14,))])
"""The header as blocks that fetch hand it on; 0 until it is there. The replay before the one that uses it clears it."""

_POINTER = "<u8"
BATCH = np.dtype(
    [
        ("header", _POINTER),
        ("text", _POINTER),
        ("document_starts", _POINTER),
        ("ids", _POINTER),
        ("token_starts", _POINTER),
        ("document_tokens", _POINTER),
        ("document_flags", _POINTER),
        ("tile_states", _POINTER),
        ("control", _POINTER),
        ("completion", _POINTER),
        ("reasons", _POINTER),
        ("fetched", _POINTER),
        ("arrived", _POINTER),
        ("next_fetched", _POINTER),
        ("far_text", _POINTER),
        ("far_document_starts", _POINTER),
        ("n_fetchers", "<u4"),
        ("reserved", "<u4"),
    ],
)
"""Addresses of one execution context, fixed at capture. See `workspace` for sizes; `completion` may be 0.

With `n_fetchers`, so many blocks more than there are tiles begin by copying text and document starts from the far
addresses. `fetched` and `next_fetched` are the two halves of one buffer, and change places with every such replay.
"""

TABLES = np.dtype(
    [
        ("ascii", _POINTER),
        ("class_pages", _POINTER),
        ("class_blocks", _POINTER),
        ("nfc_pages", _POINTER),
        ("nfc_blocks", _POINTER),
        ("short_slots", _POINTER),
        ("long_slots", _POINTER),
        ("merge_slots", _POINTER),
        ("byte_ids", _POINTER),
        ("literal_slots", _POINTER),
        ("literal_bigrams", _POINTER),
        ("pool", _POINTER),
        ("ascii_pairs", _POINTER),
        ("pair_bits", _POINTER),
        ("character_pages", _POINTER),
        ("character_blocks", _POINTER),
        ("runs", _POINTER),
        ("run_ids", _POINTER),
        *((f"short_{factor}", "<u4") for factor in ("a0", "a1", "a2", "a3", "b0", "b1", "b2", "b3", "shift")),
        *((f"merge_{factor}", "<u4") for factor in ("a0", "a1", "b0", "b1", "shift")),
        *((f"long_{factor}", "<u4") for factor in ("a0", "a1", "b0", "b1", "shift")),
        *((f"literal_{factor}", "<u4") for factor in ("a0", "a1", "b0", "b1", "shift")),
        ("pair_a", "<u4"),
        ("pair_b", "<u4"),
        ("max_literal", "<u4"),
        ("n_runs", "<u4"),
    ],
)
"""Addresses and masks of one tokenizer's tables, in the order of `gpu_core.tables.Tables.arrays`."""

EPOCH_SHIFT = 4
"""A word of `document_flags` is `(epoch << EPOCH_SHIFT | reason) & 0xFFFFFFFF`; any other epoch means "not flagged"."""
REASON_TOO_LONG, REASON_NOT_NORMAL = 1, 3
"""What a second replay of other text may answer, see `gpu_core.long_runs` and `gpu_core.normal_form`."""
REASONS = {
    REASON_TOO_LONG: "a pre-token longer than the device handles",
    2: "invalid UTF-8",
    REASON_NOT_NORMAL: "text that is not in normal form",
    4: "an added token with flags, or two that overlap",
    5: "a run of digits, blanks or line ends longer than the device follows",
}
"""Why a document needs the CPU, by the reason in its flag word."""


@dataclass(frozen=True, slots=True)
class Kernel:
    """One entry point of `kernels/encode.cu`."""

    name: str
    source: str
    arguments: tuple[str, ...]
    """Struct dtypes by name in the order of the parameters; each is passed by value."""
    threads: int
    """Threads of a block, one dimension. No dynamic shared memory."""


KERNELS = (Kernel("encode", "encode.cu", ("TABLES", "BATCH"), THREADS),)
"""The nodes of one replay, in order.

The grid of `encode` is `n_fetchers + n_tiles(capacity, tile)` blocks; blocks beyond the live bytes exit at once.
"""


@dataclass(frozen=True, slots=True)
class Buffer:
    """One array of an execution context."""

    name: str
    dtype: str
    length: int
    zeroed: bool = False
    """Whether it must be zero before the first replay. Nothing needs clearing between replays."""

    @property
    def n_bytes(self) -> int:
        """Size in bytes."""
        return self.length * np.dtype(self.dtype).itemsize


def header_flags(flags: int) -> int:
    """Of the flags of a launch, those of its header. Decimals are written from ids, so there are ids then, too."""
    return flags & ~FLAG_DECIMALS | FLAG_IDS if flags & FLAG_DECIMALS else flags


def may_be_normalized(flags: int, reasons: NDArray[np.uint8]) -> bool:
    """Whether another replay with the same flags, over the text in normal form, answers more than one that is complete.

    Token starts would be those of the other text.
    """
    return not flags & (FLAG_NORMAL_FORM | FLAG_TOKEN_STARTS) and bool((reasons == REASON_NOT_NORMAL).any())


def whole_items(n_documents: int) -> int:
    """So many documents or a few more: flag words are read, and reasons written, four at a time."""
    return -(-n_documents // 4) * 4


def n_chunks(capacity: int, max_documents: int) -> int:
    """Chunks of text and of document starts that the largest batch is fetched in."""
    return -(-capacity // CHUNK) + -(-4 * (max_documents + 1) // CHUNK)


def n_tiles(n_bytes: int, tile: int) -> int:
    """Blocks that a text of `n_bytes` needs; an empty one needs a block too, which writes the results."""
    return max(1, -(-n_bytes // tile))


def n_id_tiles(n_ids: int) -> int:
    """Blocks that so many ids need; none need one too, which writes the results."""
    return max(1, -(-n_ids // TILE_IDS))


def workspace(capacity: int, max_documents: int, token_starts: bool) -> tuple[Buffer, ...]:
    """The arrays of an execution context for up to `capacity` bytes in up to `max_documents` documents.

    Named like the fields of `BATCH`. `text` must start at a multiple of 16 bytes; what lies behind the live text is
    read but does not matter. `document_starts` holds `n_documents + 1` positions, the last one is `n_bytes`.
    `document_tokens` likewise. `reasons` are keys of `REASONS`, or 0, of a replay that flags documents.
    """
    return (
        Buffer("header", "u1", HEADER.itemsize),
        Buffer("text", "u1", -(-capacity // 16) * 16 + WINDOW + MAX_PRETOKEN),
        Buffer("document_starts", "<u4", max_documents + 1),
        Buffer("ids", "<u4", capacity),
        Buffer("token_starts", "<u4", capacity if token_starts else 0),
        Buffer("document_tokens", "<u4", max_documents + 1),
        Buffer("document_flags", "<u4", whole_items(max_documents), zeroed=True),
        Buffer("tile_states", "<u8", n_tiles(capacity, BRIDGE_TILE), zeroed=True),
        Buffer("control", "u1", CONTROL.itemsize, zeroed=True),
        Buffer("completion", "u1", COMPLETION.itemsize, zeroed=True),
        Buffer("reasons", "u1", whole_items(max_documents)),
        Buffer("fetched", "u1", 2 * MAX_FETCHERS * FETCHED.itemsize, zeroed=True),
        Buffer("arrived", "<u8", ARRIVED_STRIDE * n_chunks(capacity, max_documents), zeroed=True),
    )


def kernel_directory() -> Path:
    """Where the CUDA sources lie."""
    return Path(__file__).parent / "kernels"
