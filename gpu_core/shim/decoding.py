"""The decoding kernel on a host: memory for `gpu_core.decoder` where there is no GPU."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpu_core.decode_context import DecodeMemory
from gpu_core.decode_layout import DecodeArena
from gpu_core.decode_tables import DecodeTables
from gpu_core.shim import aligned, build, numbers_of, pointer


class HostDecodeDevice:
    """See `DecodeDevice`. `backwards` runs the threads of a block in the opposite order."""

    def __init__(self, cache_dir: Path, flags: tuple[str, ...] = (), *, backwards: bool = False) -> None:
        self.library = ctypes.CDLL(str(build({}, cache_dir, flags, entry="decode_host.cpp")))
        self.backwards = backwards
        self.n_launches = 0

    def decode_memories(self, tables: DecodeTables, arena: DecodeArena, n_contexts: int) -> list[DecodeMemory]:
        """See `DecodeDevice.decode_memories`."""
        return [HostDecodeMemory(self, tables, arena) for _ in range(n_contexts)]

    def layout_numbers(self) -> list[int]:
        """Constants, sizes and offsets of the compiled source."""
        return numbers_of(self.library.sidetok_decode_layout)


class HostDecodeMemory:
    """See `DecodeMemory`: everything is over when a launch returns."""

    def __init__(self, device: HostDecodeDevice, tables: DecodeTables, arena: DecodeArena) -> None:
        self._device = device
        self.pinned = aligned(np.zeros(arena.pinned.n_bytes, np.uint8))
        self._memory = aligned(np.zeros(arena.device.n_bytes, np.uint8))
        self.pinned_address, self.device_address = self.pinned.ctypes.data, self._memory.ctypes.data
        self._arrays = {"pieces": aligned(tables.pieces), "pool": aligned(tables.pool)}
        self._tables = tables.struct({name: array.ctypes.data for name, array in self._arrays.items()})

    def launch(self, n_blocks: int, batch: NDArray[Any], job: NDArray[Any]) -> None:
        """See `DecodeMemory.launch`."""
        self._device.n_launches += 1
        structs = [pointer(struct) for struct in (self._tables, batch, job)]
        self._device.library.sidetok_decode(*structs, n_blocks, self._device.backwards)

    def copy_in(self, pinned_offset: int, device_offset: int, n_bytes: int) -> None:
        """See `DecodeMemory.copy_in`."""
        self._memory[device_offset : device_offset + n_bytes] = self.pinned[pinned_offset : pinned_offset + n_bytes]

    def alive(self) -> None:
        """Always."""

    def synchronize(self) -> None:
        """Nothing to wait for."""
