"""Replays of an encoder: launched, waited for, and followed by a second one in normal form where that helps."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Literal

import numpy as np

from gpu_core.encoding import Lease, Times
from gpu_core.waiting import AdaptiveWait, SpinWait, Waited, sharpen_sleep

Kind = Literal["raw", "normal", "pieces"]
"""Over documents as they are; over documents that the device brings into normal form; over pieces of some."""


@dataclass(slots=True)
class Replay:
    """One replay on its way."""

    lease: Lease
    n_bytes: int
    n_documents: int
    flags: int
    resident: bool = False
    kind: Kind = "raw"
    launched_ns: int = 0

    def started(self, began_ns: int) -> None:
        """Its launch, or that of a second one, took from `began_ns` until now."""
        if self.kind != "pieces":
            self.kind = "normal" if self.lease.context.in_normal_form else "raw"
        # Memory that the first one in normal form takes is no part of what replays take.
        self.launched_ns = time.perf_counter_ns() if self.kind == "normal" else began_ns


class Replays:
    """Launches replays, and waits for them in one of the ways of `GpuOptions.wait`."""

    def __init__(self, wait: str) -> None:
        """On the thread that waits, whose sleeps are to end in time."""
        self._wait, self._spin = wait, SpinWait()
        # Each kind takes its own time: normal form is a kernel more, and pieces are nearly all merges.
        self._adaptive: dict[Kind, AdaptiveWait] = {
            "raw": AdaptiveWait(),
            "normal": AdaptiveWait(),
            "pieces": AdaptiveWait(),
        }
        if wait == "adaptive":
            sharpen_sleep()

    def launch(self, replay: Replay, times: Times) -> None:
        """Start it. Raises `DeviceFault`."""
        begin, context = time.perf_counter_ns(), replay.lease.context
        if replay.kind == "pieces":
            context.launch_pieces(replay.n_bytes, replay.n_documents, replay.flags)
        else:
            context.launch(replay.n_bytes, replay.n_documents, replay.flags, replay.resident)
        replay.started(begin)
        times.launch_ns += time.perf_counter_ns() - begin

    def finish(self, replay: Replay, times: Times) -> dict[int, int]:
        """Wait until it is complete, and a second one where that helps; document -> why it needs the CPU."""
        context = replay.lease.context
        times.add_wait(self.wait(replay))
        while context.any_flagged():
            if not self._goes_on(replay, times):
                words = context.reasons(replay.n_documents)
                return {int(document): int(words[document]) for document in np.flatnonzero(words)}
            times.add_wait(self.wait(replay))
        return {}

    def wait(self, replay: Replay) -> Waited:
        """Until it is complete. Raises `DeviceFault`."""
        context = replay.lease.context
        if self._wait == "block":
            begin = time.perf_counter_ns()
            context.block()
            end = time.perf_counter_ns()
            return Waited(end - replay.launched_ns, end - begin, 0)
        waiter = self._adaptive[replay.kind] if self._wait == "adaptive" else self._spin
        return waiter.wait(context.poll, context.alive, replay.n_bytes, replay.launched_ns)

    def _goes_on(self, replay: Replay, times: Times) -> bool:
        begin = time.perf_counter_ns()
        if not replay.lease.context.launch_normalized():
            return False
        replay.started(begin)
        times.launch_ns += time.perf_counter_ns() - begin
        return True
