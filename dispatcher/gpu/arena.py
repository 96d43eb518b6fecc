"""Where the slots of one tokenizer lie in the memory that the frontend and an engine share.

    slot   pinned block of an execution context (`gpu_core.arena`)
    arena  slot │ slot │ ...   smallest class first, each at a page of its own

Both sides compute the same places from the same options; nothing about them is sent.
"""

from __future__ import annotations

import ctypes
import mmap
import os
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dispatcher.gpu.link import Slot
from gpu_core.arena import Block, arrange
from gpu_core.decimal_layout import ROOM
from gpu_core.ladder import SizeClass, size_classes, within_budget
from gpu_core.options import GpuOptions

_POPULATE_WRITE = 23
"""`MADV_POPULATE_WRITE` (Linux 5.14): the kernel maps pages now, and not one by one at their first use."""


@dataclass(frozen=True, slots=True)
class SlotPlace:
    """Where one slot lies."""

    size: SizeClass
    number: int
    """Which of the contexts of its class."""
    offset: int
    block: Block
    """The pinned block, relative to `offset`."""
    n_bytes: int

    def all_of_it(self, memory: memoryview) -> memoryview:
        """The whole slot, in whole pages."""
        return memory[self.offset : self.offset + self.n_bytes]

    def pinned(self, memory: memoryview) -> memoryview:
        """The part that the execution context gets."""
        return memory[self.offset : self.offset + self.block.n_bytes]

    def reasons(self, memory: memoryview) -> NDArray[np.uint8]:
        """Per document why it needs the CPU, a key of `layout.REASONS`; written only for batches that are flagged."""
        return np.frombuffer(memory, np.uint8, self.size.max_documents, self.offset + self.block.offsets["reasons"])

    def slot(self, number: int, model_key: str, memory: memoryview) -> Slot:
        """The frontend's view, with the number that the slot has in messages."""
        text, decimals = (self.offset + self.block.offsets[name] for name in ("text", "decimals"))
        n_starts = self.size.max_documents + 1
        return Slot(
            number,
            model_key,
            self.size,
            memory[text : text + self.size.capacity],
            self._words(memory, "document_starts", n_starts),
            self._words(memory, "ids", self.size.capacity),
            self._words(memory, "document_tokens", n_starts),
            memory[decimals : decimals + ROOM * self.size.capacity],
            self._words(memory, "document_decimals", n_starts),
        )

    def _words(self, memory: memoryview, name: str, length: int) -> NDArray[np.uint32]:
        return np.frombuffer(memory, np.uint32, length, self.offset + self.block.offsets[name])


def slot_places(options: GpuOptions) -> tuple[SlotPlace, ...]:
    """Every slot that one tokenizer can have, smallest class first."""
    places: list[SlotPlace] = []
    end = 0
    for size in within_budget(size_classes(options), options):
        block = arrange(size.capacity, size.max_documents, options.token_starts).pinned
        n_bytes = -(-block.n_bytes // mmap.PAGESIZE) * mmap.PAGESIZE
        for number in range(options.contexts_per_class):
            places.append(SlotPlace(size, number, end, block, n_bytes))
            end += n_bytes
    return tuple(places)


def arena_bytes(places: tuple[SlotPlace, ...]) -> int:
    """Memory of all slots together."""
    return places[-1].offset + places[-1].n_bytes


def make_arena(n_bytes: int) -> tuple[int, memoryview]:
    """New memory that can be shared: its descriptor, and a view of it. Raises `OSError`."""
    fd = os.memfd_create("sidetok-arena", os.MFD_CLOEXEC)
    try:
        os.ftruncate(fd, n_bytes)
        return fd, map_arena(fd, n_bytes)
    except OSError:
        os.close(fd)
        raise


def map_arena(fd: int, n_bytes: int) -> memoryview:
    """Shared memory in this process, until nothing refers to the view any more; the descriptor may be closed."""
    memory = mmap.mmap(fd, n_bytes)
    array: Any = (ctypes.c_uint8 * n_bytes).from_buffer(memory)
    # Older kernels do not know the advice, and map pages as they are used.
    ctypes.CDLL(None).madvise(ctypes.c_void_p(ctypes.addressof(array)), ctypes.c_size_t(n_bytes), _POPULATE_WRITE)
    del array
    return memoryview(memory)
