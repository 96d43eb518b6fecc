"""An engine process without a GPU that answers after a fixed time and encodes nothing, for what is around replays.

    python -m tests.benchmarks.still_engine MICROSECONDS ...   (the arguments of `dispatcher.gpu.engine_process` follow)

Every 4 bytes of a document count as one token; the ids are whatever the memory holds.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable

import numpy as np

from dispatcher.gpu.child import python_command
from dispatcher.gpu.engine_process import main
from gpu_core.execution import ExecutionContext
from gpu_core.host_device import HostContext, HostDevice, HostGpu
from gpu_core.ladder import SizeClass
from gpu_core.options import GpuOptions

BYTES_PER_TOKEN = 4


def still_engine_command(replay_us: float) -> list[str]:
    """The program of an engine whose replays take so long."""
    return [*python_command("tests.benchmarks.still_engine"), str(replay_us)]


def still_gpu(replay_us: float) -> Callable[[GpuOptions], HostGpu]:
    """The same for an engine in this process."""
    return lambda options: HostGpu(lambda key, tables: StillDevice(lambda _: 0, replay_s=replay_us / 1e6))


class StillDevice(HostDevice):
    """Replays take `replay_s` and write no ids."""

    def context(self, size: SizeClass, pinned: memoryview | None = None) -> ExecutionContext:
        """See `Device.context`."""
        return StillContext(self, size, False, pinned)


class StillContext(HostContext):
    """See `StillDevice`."""

    _end_ns = 0
    _count = 0

    def launch(self, n_bytes: int, n_documents: int, flags: int, resident: bool) -> None:
        """See `ExecutionContext.launch`."""
        n = n_documents + 1
        np.floor_divide(self.document_starts[:n], BYTES_PER_TOKEN, out=self.document_tokens[:n])
        self._count = n_bytes // BYTES_PER_TOKEN
        self._end_ns = time.perf_counter_ns() + int(self._device.replay_s * 1e9)

    def poll(self, n_times: int) -> bool:
        """See `ExecutionContext.poll`."""
        return time.perf_counter_ns() >= self._end_ns

    def any_flagged(self) -> bool:
        """See `ExecutionContext.any_flagged`."""
        return False

    def n_tokens(self) -> int:
        """See `ExecutionContext.n_tokens`."""
        return self._count


if __name__ == "__main__":
    os._exit(main(sys.argv[2:], still_gpu(float(sys.argv[1]))))
