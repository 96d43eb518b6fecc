"""The CPU on which a thread runs fastest: those of a virtual machine differ, as others may share what is below them.

cpu = FastestCpu.probe(step)
with cpu.pinned():          this thread only; those that it starts in here inherit it
    ...
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

PROBE_S = 0.04
"""Time for each CPU in each of the two rounds."""


@dataclass(frozen=True, slots=True)
class FastestCpu:
    """What a probe of all CPUs found."""

    medians_ns: dict[int, float]
    """Of each CPU that the process may use: what a step took there, in the worse of two rounds."""

    @classmethod
    def probe(cls, step: Callable[[], object], probe_s: float = PROBE_S) -> FastestCpu:
        """Repeat a step on each CPU in turn, twice. Each was fast both times, or counts as slow."""
        allowed = os.sched_getaffinity(0)
        medians = dict.fromkeys(sorted(allowed), 0.0)
        try:
            for _ in range(2):
                for cpu, worst in medians.items():
                    os.sched_setaffinity(0, {cpu})
                    medians[cpu] = max(worst, _median_ns(step, probe_s))
        finally:
            os.sched_setaffinity(0, allowed)
        return cls(medians)

    @property
    def number(self) -> int:
        """The fastest one."""
        return min(self.medians_ns, key=self.medians_ns.__getitem__)

    @contextmanager
    def pinned(self) -> Iterator[None]:
        """Keep this thread on the fastest CPU."""
        allowed = os.sched_getaffinity(0)
        os.sched_setaffinity(0, {self.number})
        try:
            yield
        finally:
            os.sched_setaffinity(0, allowed)


def _median_ns(step: Callable[[], object], seconds: float) -> float:
    samples: list[int] = []
    end = time.perf_counter_ns() + int(seconds * 1e9)
    while not samples or time.perf_counter_ns() < end:
        begin = time.perf_counter_ns()
        step()
        samples.append(time.perf_counter_ns() - begin)
    return statistics.median(samples)
