"""Where the arrays of an execution context lie in its block of pinned memory and its block of device memory.

pinned   completion │ document_starts │ header text │ ids │ token_starts │ document_tokens
device   control counters completion │ document_flags │ tile_states │ [document_starts header text]
         [ids token_starts document_tokens]            in brackets: only if a transfer of the class needs it
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from gpu_core.layout import Buffer, workspace
from gpu_core.transfer import Transfer

ALIGNMENT = 256
HEADER_ROOM = 32
"""The header lies so many bytes before the text, so that one copy takes both."""
COUNTERS = Buffer("counters", "<u4", 4, zeroed=True)
"""What the kernels of `transfer.cu` count with."""
_INPUTS = ("document_starts", "header", "text")
_RESULTS = ("ids", "token_starts", "document_tokens")
_STATE = ("control", "counters", "completion", "document_flags", "tile_states")


@dataclass(frozen=True, slots=True)
class Block:
    """Offsets of arrays in one piece of memory."""

    offsets: dict[str, int]
    n_bytes: int

    def address(self, base: int, name: str) -> int:
        """Of an array, given that of the block; 0 for an array that is not there."""
        return base + self.offsets[name] if name in self.offsets else 0


@dataclass(frozen=True, slots=True)
class Arena:
    """All memory of one execution context."""

    pinned: Block
    device: Block
    lengths: dict[str, int]
    """Items of each array."""


def arrange(capacity: int, max_documents: int, token_starts: bool, transfers: Iterable[Transfer]) -> Arena:
    """Lay out the arrays of `layout.workspace` for the transfers that a class uses."""
    buffers = {buffer.name: buffer for buffer in (*workspace(capacity, max_documents, token_starts), COUNTERS)}
    used = tuple(transfers)
    on_device: tuple[str, ...] = _STATE
    if any(transfer.text_on_device for transfer in used):
        on_device += _INPUTS
    if any(transfer.results_on_device for transfer in used):
        on_device += _RESULTS
    pinned = ("completion", *_INPUTS, *_RESULTS)
    lengths = {name: buffer.length for name, buffer in buffers.items()}
    return Arena(_place(buffers, pinned), _place(buffers, on_device), lengths)


def _place(buffers: dict[str, Buffer], names: tuple[str, ...]) -> Block:
    offsets: dict[str, int] = {}
    end = 0
    for name in names:
        if name == "header" or buffers[name].length == 0:
            continue
        end = -(-end // ALIGNMENT) * ALIGNMENT
        if name == "text":
            offsets["header"] = end + ALIGNMENT - HEADER_ROOM
            end += ALIGNMENT
        offsets[name] = end
        end += buffers[name].n_bytes
    return Block(offsets, -(-end // ALIGNMENT) * ALIGNMENT)
