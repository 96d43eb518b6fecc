"""Replays of an encoder: launched, waited for, and followed by a second one in normal form where that helps."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Literal

import numpy as np

from gpu_core.encoding import Lease, Times
from gpu_core.waiting import AdaptiveWait, SpinWait, Waited, sharpen_sleep

Kind = Literal["first", "second", "pieces"]
"""Over documents; over the same documents once more, in normal form; over pieces of some."""


@dataclass(slots=True)
class Replay:
    """One replay on its way."""

    lease: Lease
    n_bytes: int
    n_documents: int
    flags: int
    resident: bool = False
    kind: Kind = "first"
    launched_ns: int = 0


class Replays:
    """Launches replays, and waits for them in one of the ways of `GpuOptions.wait`."""

    def __init__(self, wait: str) -> None:
        """On the thread that waits, whose sleeps are to end in time."""
        self._wait, self._spin = wait, SpinWait()
        # Each kind takes its own time: a second replay is two kernels, and pieces are nearly all merges.
        self._adaptive: dict[Kind, AdaptiveWait] = {
            "first": AdaptiveWait(),
            "second": AdaptiveWait(),
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
        replay.launched_ns = begin
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
        # Memory that the first one takes is no part of what replays take.
        replay.kind, replay.launched_ns = "second", time.perf_counter_ns()
        times.launch_ns += replay.launched_ns - begin
        return True
