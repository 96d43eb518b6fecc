"""A GPU of this process that launches from C, as far as a host can play one: what is called in the place of CUDA.

Four bytes of a text are one token, whose id they are. A replay is complete when it was launched; or, `is_held`, when
the test says so; or, with `replay_s`, so much later, on a thread of the device.
"""

from __future__ import annotations

import ctypes
import heapq
import threading
import time
from collections.abc import Callable
from itertools import count

import numpy as np

from gpu_core.cuda import address_of
from gpu_core.execution import DirectLaunch, ExecutionContext
from gpu_core.host_device import HostContext, HostDevice, HostGpu
from gpu_core.ladder import SizeClass
from gpu_core.layout import COMPLETION, HEADER, REASON_NOT_NORMAL
from gpu_core.options import GpuOptions
from gpu_core.waiting import is_reached

FAILED = 719
"""What a launch gives when the device is broken."""
_Launch = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)


class DirectDevice(HostDevice):
    """See above."""

    def __init__(self, replay_s: float = 0.0) -> None:
        super().__init__(lambda document: 0, replay_s=replay_s)
        self.contexts: list[DirectContext] = []
        self.is_held = self.is_flagged = self.is_broken = False
        self.n_direct = self.n_launched = 0
        """Launches from C, and from Python."""
        self.launch = _Launch(self._launch)
        self._due: list[tuple[float, int, DirectContext, int]] = []
        self._has_due = threading.Condition()
        self._number = count()
        if replay_s:
            threading.Thread(target=self._complete, daemon=True).start()

    def context(self, size: SizeClass, pinned: memoryview | None = None) -> ExecutionContext:
        """See `Device.context`."""
        context = DirectContext(self, size, pinned)
        self.contexts.append(context)
        return context

    def begin(self, context: DirectContext) -> None:
        """A replay of a context was launched."""
        if self.replay_s:
            with self._has_due:
                due = time.monotonic() + self.replay_s, next(self._number), context, context.epoch
                heapq.heappush(self._due, due)
                self._has_due.notify()
        elif not self.is_held:
            context.complete()

    def _launch(self, graph: int, stream: int) -> int:
        self.n_direct += 1
        if self.is_broken:
            return FAILED
        self.begin(self.contexts[stream - 1])
        return 0

    def _complete(self) -> None:
        while True:
            with self._has_due:
                while not self._due or (left_s := self._due[0][0] - time.monotonic()) > 0:
                    self._has_due.wait(left_s if self._due else None)
                _, _, context, epoch = heapq.heappop(self._due)
            assert context.epoch == epoch, "a replay was launched before the one before it was complete"
            context.complete()


class DirectContext(HostContext):
    """See `ExecutionContext`."""

    def __init__(self, device: DirectDevice, size: SizeClass, pinned: memoryview | None) -> None:
        super().__init__(device, size, False, pinned)
        self.direct_device = device
        self.number = len(device.contexts) + 1
        self.header, self.completion = np.zeros(1, HEADER)[0:1], np.zeros(1, COMPLETION)[0:1]
        self.counts = memoryview(bytearray(16)).cast("Q")
        self.told: list[int] = []
        """Bytes of replays that were launched from C and then awaited from Python."""
        self._word = self.completion["epoch"].view(np.uint64).data

    def launch(self, n_bytes: int, n_documents: int, flags: int, resident: bool) -> None:
        """See `ExecutionContext.launch`."""
        self.counts[0] += 1
        self.header[0] = self.counts[0], n_bytes, n_documents, flags, 0
        self.direct_device.n_launched += 1
        self.direct_device.begin(self)

    def direct(self) -> DirectLaunch:
        """See `ExecutionContext.direct`."""
        launch = ctypes.cast(self.direct_device.launch, ctypes.c_void_p).value or 0
        places = (self.header, self.completion, self.document_starts)
        header, completion, starts = (place.ctypes.data for place in places)
        return DirectLaunch(launch, (1, 2), self.number, header, completion, starts, address_of(self.counts), 4096)

    def launched_directly(self, n_bytes: int) -> None:
        """See `ExecutionContext.launched_directly`."""
        self.told.append(n_bytes)

    @property
    def epoch(self) -> int:
        """Of the last replay."""
        return int(self.header["epoch"][0])

    def complete(self) -> None:
        """The replay ends."""
        n_bytes, n_documents = int(self.header["n_bytes"][0]), int(self.header["n_documents"][0])
        starts = self.document_starts[: n_documents + 1]
        assert n_documents == 0 or int(starts[-1]) == n_bytes
        n_tokens = n_bytes // 4
        self.ids[:n_tokens] = np.frombuffer(self.text[: 4 * n_tokens], np.uint32)
        np.floor_divide(starts, 4, out=self.document_tokens[: n_documents + 1])
        self._reasons[:n_documents] = REASON_NOT_NORMAL if self.direct_device.is_flagged else 0
        self.completion["n_tokens"], self.completion["any_flagged"] = n_tokens, self.direct_device.is_flagged
        self._word[0] = self.epoch

    def poll(self, n_times: int) -> bool:
        """See `ExecutionContext.poll`."""
        return is_reached(self._word, self.counts[0], n_times)

    def any_flagged(self) -> bool:
        """See `ExecutionContext.any_flagged`."""
        return bool(self.completion["any_flagged"][0])

    def n_tokens(self) -> int:
        """See `ExecutionContext.n_tokens`."""
        return int(self.completion["n_tokens"][0])

    def launch_normalized(self) -> bool:
        """See `ExecutionContext.launch_normalized`."""
        return False

    def alive(self) -> None:
        """See `ExecutionContext.alive`."""


def direct_gpu(device: Callable[[], DirectDevice]) -> Callable[[GpuOptions], HostGpu]:
    """What makes a GPU whose tokenizers are all served by such devices."""
    return lambda options: HostGpu(lambda key, tables: device())
