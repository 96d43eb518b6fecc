"""Ids as decimal numbers on a GPU: memory of one context for the kernel, and launches of it."""

from __future__ import annotations

from typing import Any

import numpy as np

from gpu_core.arena import place
from gpu_core.cuda import cupy, enqueue, launch_of, runtime
from gpu_core.decimal_layout import DECIMAL_BATCH, DECIMAL_JOB, DECIMAL_KERNEL, ROOM, decimal_memory
from gpu_core.layout import n_id_tiles


class CudaDecimals:
    """Launches of the kernel behind the replays of one context."""

    def __init__(self, kernel: int, capacity: int, sides: dict[str, int], stream: int) -> None:
        """`sides`: addresses of what a replay leaves on the device and of the results, as fields of the batch.

        Raises `OutOfMemoryError` of CuPy, or `CUDARuntimeError`.
        """
        self._stream, self._room = stream, ROOM * capacity
        block = place(decimal_memory(capacity))
        self._memory = cupy.cuda.Memory(block.n_bytes)
        base = int(self._memory.ptr)
        runtime.memsetAsync(base, 0, block.n_bytes, stream)
        self.replay_completion = block.address(base, "completion")
        """Where the replay writes that it is complete, for the kernel."""
        batch = np.zeros((), dtype=DECIMAL_BATCH)
        own = {name: block.address(base, name) for name in ("states", "control")}
        for name, address in (sides | own | {"encoded": self.replay_completion}).items():
            batch[name] = address
        self._job: Any = np.zeros((), dtype=DECIMAL_JOB)
        self._launch = launch_of(kernel, 1, DECIMAL_KERNEL.threads, batch, self._job)

    def launch(self, epoch: int, n_bytes: int, n_documents: int) -> None:
        """Behind the replay with this epoch, on its stream. There are no more ids than bytes."""
        self._job[()] = (epoch, n_documents, self._room)
        enqueue(self._launch, self._stream, n_id_tiles(n_bytes))
