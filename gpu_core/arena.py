"""Where the arrays of an execution context lie in its block of pinned memory and its block of device memory.

pinned   completion │ reasons │ header │ document_starts │ text │ ids │ token_starts │ document_tokens
         │ document_decimals │ decimals
device   control │ document_flags │ tile_states │ fetched │ arrived │ and copies of all the others but the completion,
         reasons and what has to do with decimals
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from gpu_core.decimal_layout import decimal_results
from gpu_core.layout import Buffer, workspace

ALIGNMENT = 256
_SHARED = ("header", "document_starts", "text", "ids", "token_starts", "document_tokens")
_PINNED = ("completion", "reasons", *_SHARED, "document_decimals", "decimals")
_DEVICE = ("control", "document_flags", "tile_states", "fetched", "arrived", *_SHARED)


@dataclass(frozen=True, slots=True)
class Block:
    """Offsets of arrays in one piece of memory."""

    offsets: dict[str, int]
    n_bytes: int

    def address(self, base: int, name: str) -> int:
        """Of an array, given that of the block; 0 for an array that is not there."""
        return base + self.offsets[name] if name in self.offsets else 0


def place(buffers: Iterable[Buffer]) -> Block:
    """One behind the other, each at a multiple of `ALIGNMENT`."""
    offsets: dict[str, int] = {}
    end = 0
    for buffer in buffers:
        offsets[buffer.name] = end
        end += -(-buffer.n_bytes // ALIGNMENT) * ALIGNMENT
    return Block(offsets, end)


@dataclass(frozen=True, slots=True)
class Arena:
    """All memory of one execution context."""

    pinned: Block
    device: Block
    lengths: dict[str, int]
    """Items of each array."""


def arrange(capacity: int, max_documents: int, token_starts: bool) -> Arena:
    """Lay out the arrays of `layout.workspace` and `decimal_layout.decimal_results`."""
    all_of_them = *workspace(capacity, max_documents, token_starts), *decimal_results(capacity, max_documents)
    buffers = {buffer.name: buffer for buffer in all_of_them}
    lengths = {name: buffer.length for name, buffer in buffers.items()}
    pinned, device = ([buffers[name] for name in names if lengths[name]] for names in (_PINNED, _DEVICE))
    return Arena(place(pinned), place(device), lengths)
