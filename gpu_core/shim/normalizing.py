"""The normalizing kernel on a host."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpu_core.layout import EPOCH_SHIFT, HEADER, REASON_NOT_NORMAL, n_tiles
from gpu_core.normal_layout import NORMAL_BATCH, NORMAL_JOB, TILE, normal_memory
from gpu_core.normal_tables import literals_of, normal_tables
from gpu_core.shim import PATTERN_BYTE, HostPipeline, aligned, build, numbers_of, pointer
from gpu_core.tables import Tables
from gpu_core.twin_normal import Normalized


class HostNormal:
    """Memory of one context for the kernel; `backwards` runs the threads of a block in the opposite order."""

    def __init__(
        self,
        cache_dir: Path,
        literals: Sequence[bytes],
        capacity: int = 1 << 17,
        max_documents: int = 8192,
        flags: tuple[str, ...] = (),
        *,
        backwards: bool = False,
    ) -> None:
        self.library = ctypes.CDLL(str(build({}, cache_dir, flags, entry="normal_host.cpp")))
        self.backwards = backwards
        self.memory = {
            buffer.name: aligned(np.full(buffer.n_bytes, 0 if buffer.zeroed else PATTERN_BYTE, np.uint8))
            for buffer in normal_memory(capacity, max_documents)
        }
        tables = normal_tables()
        self._arrays = {name: aligned(array) for name, array in tables.arrays.items()}
        self._tables = tables.struct({name: array.ctypes.data for name, array in self._arrays.items()}, literals)
        self._batch = np.zeros((), dtype=NORMAL_BATCH)
        self._flags = np.zeros(max_documents, dtype=np.uint32)
        self.encode_sums = np.zeros(1, dtype=np.uint64)
        self.epoch = 0

    def __call__(self, documents: Sequence[bytes], capacity: int, flags: int = 0) -> Normalized:
        """One launch behind a replay over these documents, with so much room for text.

        `encode_sums` and the header are what the next replay finds.
        """
        self.epoch += 1
        source = aligned(np.frombuffer(b"".join(documents).ljust(4, b"\xff") + b"\xff" * 4, np.uint8))
        starts = np.cumsum([0, *map(len, documents)]).astype(np.uint32)
        self.text[:] = PATTERN_BYTE
        self.encode_sums[:] = 0
        addresses = {
            "source_text": source.ctypes.data,
            "source_starts": starts.ctypes.data,
            "document_flags": self._flags.ctypes.data,
            "encode_control": self.encode_sums.ctypes.data,
        }
        self.launch(addresses, self.epoch, (int(starts[-1]), len(documents)), flags, capacity)
        flagged = self._flags[: len(documents)] == (self.epoch << EPOCH_SHIFT | REASON_NOT_NORMAL)
        ends = self.document_starts[: len(starts)].copy()
        return Normalized(self.text[: ends[-1]].tobytes(), ends, flagged.tolist())

    @property
    def text(self) -> NDArray[np.uint8]:
        """All of the room for text."""
        return self.memory["text"]

    @property
    def document_starts(self) -> NDArray[np.uint32]:
        """Where each document begins."""
        return self.memory["document_starts"].view(np.uint32)

    @property
    def header(self) -> NDArray[Any]:
        """Of the replay that follows."""
        header: NDArray[Any] = self.memory["header"].view(HEADER)[0]
        return header

    def launch(self, addresses: dict[str, int], epoch: int, sizes: tuple[int, int], flags: int, capacity: int) -> None:
        """One launch over a source text of so many bytes in so many documents.

        `addresses`: where the source lies, and what the replay that follows flags documents in, as fields of the batch.
        """
        own = {name: array.ctypes.data for name, array in self.memory.items()}
        for name, address in (own | addresses).items():
            self._batch[name] = address
        job = np.array((epoch, *sizes, flags, capacity), dtype=NORMAL_JOB)
        structs = pointer(self._tables), pointer(self._batch), pointer(job)
        self.library.sidetok_normalize(*structs, n_tiles(sizes[0], TILE), self.backwards)

    def layout_numbers(self) -> list[int]:
        """Constants, sizes and offsets of the compiled source."""
        return numbers_of(self.library.sidetok_normal_layout)


class HostNormalPipeline(HostPipeline):
    """Brings all documents into normal form before it encodes them, as a second replay does."""

    def __init__(self, tables: Tables, cache_dir: Path, capacity: int, max_documents: int = 64) -> None:
        super().__init__(tables, cache_dir, capacity, max_documents)
        self._normal = HostNormal(cache_dir, literals_of(tables), capacity, max_documents)
        for name in ("header", "text", "document_starts"):
            self._batch_struct[name] = self._normal.memory[name].ctypes.data

    def fill(self, documents: list[bytes], flags: int) -> NDArray[np.uint32]:
        """See `HostPipeline.fill`; what a replay reads is what the kernel made of it."""
        starts = super().fill(documents, flags)
        addresses = {name: array.ctypes.data for name, array in self.buffers.items()}
        given = {
            "source_text": addresses["text"],
            "source_starts": addresses["document_starts"],
            "document_flags": addresses["document_flags"],
            "encode_control": addresses["control"],
        }
        self._normal.launch(given, self.epoch, (int(starts[-1]), len(documents)), flags, self.capacity)
        return starts
