"""Joining pieces on a GPU: what a context needs for it, made when the first pieces come."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from gpu_core.arena import place
from gpu_core.cuda import cupy, device_address, enqueue, host_bytes, launch_of, runtime
from gpu_core.join_layout import JOIN_BATCH, JOIN_JOB, JOIN_KERNEL, join_memory, max_pieces, n_blocks


@dataclass(frozen=True, slots=True)
class Sides:
    """Addresses of what a replay leaves on the device, and of the results in pinned memory, as fields of the batch."""

    encoded: dict[str, int]
    results: dict[str, int]


class CudaJoin:
    """Memory of one context, and launches of the kernel over it."""

    def __init__(self, kernel: int, capacity: int, sides: Sides, stream: int) -> None:
        """Raises `OutOfMemoryError` of CuPy, or `CUDARuntimeError`."""
        self._kernel, self._stream = kernel, stream
        block = place(join_memory(capacity))
        self._memory = cupy.cuda.Memory(block.n_bytes)
        base = int(self._memory.ptr)
        runtime.memsetAsync(base, 0, block.n_bytes, stream)
        n_bytes = 4 * max_pieces(capacity)
        self._pinned_memory = cupy.cuda.PinnedMemory(2 * n_bytes)
        host = int(self._pinned_memory.ptr)
        self.places, self._reports = host_bytes(host, 2 * n_bytes, self._pinned_memory).view(np.uint32).reshape(2, -1)
        self.replay_completion = block.address(base, "completion")
        """Where the replay over the pieces writes that it is complete, which nobody reads."""
        batch = np.zeros((), dtype=JOIN_BATCH)
        own = {name: block.address(base, name) for name in ("states", "control")}
        pinned = device_address(host)
        own |= {"places": pinned, "reports": pinned + n_bytes}
        for name, address in (sides.encoded | sides.results | own).items():
            batch[name] = address
        self._job = np.zeros((), dtype=JOIN_JOB)
        self._launch = launch_of(kernel, 1, JOIN_KERNEL.threads, batch, self._job)

    def launch(self, epoch: int, n_bytes: int, n_pieces: int, flags: int) -> None:
        """Behind the replay with this epoch, on its stream."""
        self._job[()] = (epoch, n_bytes, n_pieces, flags, 0)
        enqueue(self._launch, self._stream, n_blocks(n_pieces))

    def reports(self, n_pieces: int) -> NDArray[Any]:
        """Of the last launch, which is over, in pinned memory."""
        return self._reports[:n_pieces]
