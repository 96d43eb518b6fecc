"""Second replays in normal form on a GPU: what a context needs for them, made when the first one comes."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpu_core.arena import place
from gpu_core.cuda import Launch, compile_kernels, cupy, enqueue, launch_of, runtime, upload
from gpu_core.doubts import Doubts
from gpu_core.ladder import SizeClass
from gpu_core.layout import n_tiles
from gpu_core.normal_layout import MAX_GROWTH, NORMAL_BATCH, NORMAL_JOB, NORMAL_KERNEL, TILE, normal_memory
from gpu_core.normal_tables import literals_of, normal_tables, obstacle
from gpu_core.tables import Tables


class CudaNormalForms:
    """The kernel and its tables for one tokenizer, shared by its contexts."""

    def __init__(self, tables: Tables) -> None:
        """Raises `DeviceUnavailable`, or `OutOfMemoryError` of CuPy."""
        self._modules: list[Any]
        kernels, self._modules = compile_kernels({}, (NORMAL_KERNEL.name,))
        self.kernel = kernels[NORMAL_KERNEL.name]
        of_all = normal_tables()
        self._memory = upload(of_all.arrays)
        addresses = {name: int(memory.ptr) for name, memory in self._memory.items()}
        self.tables = of_all.struct(addresses, literals_of(tables))
        self.doubts = Doubts()
        """What their replays said."""


def normal_forms_of(tables: Tables) -> CudaNormalForms | None:
    """What brings a tokenizer's text into normal form; None where the device does not (`normal_tables.obstacle`)."""
    return None if obstacle(tables) else CudaNormalForms(tables)


class CudaNormal:
    """Memory of one context, and launches over it: the kernel, and `encode` over what it writes."""

    def __init__(
        self,
        forms: CudaNormalForms,
        size: SizeClass,
        sources: dict[str, tuple[int, ...]],
        told: tuple[int, int],
        stream: int,
    ) -> None:
        """`sources`: where text and document starts lie that a replay read, by the way in; `told`: where document flags
        and control of `encode` lie.

        Raises `OutOfMemoryError` of CuPy, or `CUDARuntimeError`.
        """
        self._capacity, self._stream = size.capacity, stream
        block = place(normal_memory(size.capacity, size.max_documents))
        self._memory = cupy.cuda.Memory(block.n_bytes)
        base = int(self._memory.ptr)
        runtime.memsetAsync(base, 0, block.n_bytes, stream)
        self.inputs = {name: block.address(base, name) for name in ("header", "text", "document_starts")}
        """What `encode` reads, as fields of its batch; it has no blocks that fetch."""
        own = self.inputs | {name: block.address(base, name) for name in ("states", "control")}
        own |= {"document_flags": told[0], "encode_control": told[1]}
        self._job: Any = np.zeros((), dtype=NORMAL_JOB)
        self._launches = {way: self._launch_of(forms, source, own) for way, source in sources.items()}
        self.replays: dict[str, tuple[Launch, int]] = {}
        """`encode` over the inputs and the bytes of its tiles, by where its results go."""

    def launch(self, source: str, results: str, epoch: int, n_bytes: int, n_documents: int, flags: int) -> int:
        """Both kernels behind a replay over so much text, with its flags; the bytes that the second has at most."""
        room = min(self._capacity, MAX_GROWTH * n_bytes)
        self._job[()] = (epoch, n_bytes, n_documents, flags, room)
        enqueue(self._launches[source], self._stream, n_tiles(n_bytes, TILE))
        encode, tile = self.replays[results]
        enqueue(encode, self._stream, n_tiles(room, tile))
        return room

    def _launch_of(self, forms: CudaNormalForms, source: tuple[int, ...], own: dict[str, int]) -> Launch:
        batch: NDArray[Any] = np.zeros((), dtype=NORMAL_BATCH)
        for name, address in (own | dict(zip(("source_text", "source_starts"), source, strict=True))).items():
            batch[name] = address
        return launch_of(forms.kernel, 1, NORMAL_KERNEL.threads, forms.tables, batch, self._job)
