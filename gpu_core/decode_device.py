"""Decoding on a GPU: memory of one context, and launches of the kernel over it."""

from __future__ import annotations

import ctypes
from typing import Any

from numpy.typing import NDArray

from gpu_core.cuda import Launch, cupy, device_address, driver, enqueue, host_bytes, launch_of, runtime, stream_status
from gpu_core.decode_layout import DECODE_KERNEL, DecodeArena
from gpu_core.errors import DeviceFault


class CudaDecodeMemory:
    """See `DecodeMemory`: launches without a graph, because a launch says how large it is."""

    def __init__(self, kernel: int, tables: NDArray[Any], arena: DecodeArena, kept: object) -> None:
        """`kept` is what the kernel and the tables need to stay."""
        self._kernel, self._tables, self._kept = kernel, tables, kept
        self._stream = cupy.cuda.Stream(non_blocking=True)
        self._device_memory = cupy.cuda.Memory(arena.device.n_bytes)
        self._pinned_memory = cupy.cuda.PinnedMemory(arena.pinned.n_bytes)
        self._host = int(self._pinned_memory.ptr)
        self.pinned_address, self.device_address = device_address(self._host), int(self._device_memory.ptr)
        runtime.memsetAsync(self.device_address, 0, arena.device.n_bytes, self._stream.ptr)
        ctypes.memset(self._host, 0, arena.pinned.n_bytes)
        self.pinned = host_bytes(self._host, arena.pinned.n_bytes, self._pinned_memory)
        self._launches: dict[tuple[int, int], Launch] = {}
        self.synchronize()

    def launch(self, n_blocks: int, batch: NDArray[Any], job: NDArray[Any]) -> None:
        """See `DecodeMemory.launch`."""
        # A context launches with the same few structs again and again.
        known = self._launches.get((id(batch), id(job)))
        if known is None:
            known = launch_of(self._kernel, 1, DECODE_KERNEL.threads, self._tables, batch, job)
            self._launches[id(batch), id(job)] = known
        try:
            enqueue(known, self._stream.ptr, n_blocks)
        except driver.CUDADriverError as error:
            raise DeviceFault(str(error)) from None

    def copy_in(self, pinned_offset: int, device_offset: int, n_bytes: int) -> None:
        """See `DecodeMemory.copy_in`."""
        target, source = self.device_address + device_offset, self._host + pinned_offset
        try:
            runtime.memcpyAsync(target, source, n_bytes, runtime.memcpyHostToDevice, self._stream.ptr)
        except runtime.CUDARuntimeError as error:
            raise DeviceFault(str(error)) from None

    def alive(self) -> None:
        """See `DecodeMemory.alive`."""
        stream_status(self._stream.ptr)

    def synchronize(self) -> None:
        """See `DecodeMemory.synchronize`."""
        try:
            self._stream.synchronize()
        except runtime.CUDARuntimeError as error:
            raise DeviceFault(str(error)) from None
