"""Counters that cost little on the hot path: each is owned by one thread and summed when somebody asks.

Nothing here knows Prometheus; `service.metrics` publishes the snapshots.
"""

from __future__ import annotations

import contextlib
import threading
import time
from bisect import bisect_left
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, fields
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

DURATION_BUCKETS_S = (
    *(1e-5, 2.5e-5, 5e-5, 1e-4, 2.5e-4, 5e-4, 1e-3, 2.5e-3, 5e-3),
    *(0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0),
)
"""Upper bounds of the duration histograms, 10 us to 10 s; the last bucket is open."""
_CLOCK_OF_PROCESS = 2
"""Linux: the low bits of the number of a process's CPU clock."""


class Histogram:
    """Counts of durations by bucket. One thread writes; readers may be one observation behind."""

    __slots__ = ("counts", "sum_s")

    def __init__(self) -> None:
        self.counts = [0] * (len(DURATION_BUCKETS_S) + 1)
        self.sum_s = 0.0

    def observe(self, seconds: float) -> None:
        """Count one duration, in seconds."""
        self.counts[bisect_left(DURATION_BUCKETS_S, seconds)] += 1
        self.sum_s += seconds

    def observe_all(self, seconds: NDArray[np.float64]) -> None:
        """Count many."""
        buckets = np.searchsorted(DURATION_BUCKETS_S, seconds)
        counted = np.bincount(buckets, minlength=len(self.counts)).tolist()
        self.counts = [a + b for a, b in zip(self.counts, counted, strict=True)]
        self.sum_s += float(seconds.sum())

    def add(self, other: Histogram) -> None:
        """Add the counts of another histogram to this one."""
        self.counts = [a + b for a, b in zip(self.counts, other.counts, strict=True)]
        self.sum_s += other.sum_s

    @property
    def n(self) -> int:
        """Number of observations."""
        return sum(self.counts)


class WorkKey(NamedTuple):
    """Labels of one row of work."""

    model: str
    route: str


@dataclass(slots=True)
class Work:
    """What one worker did for one model on one route; CPU times are of the thread clock, in ns."""

    decode_body_cpu_ns: int = 0
    encode_cpu_ns: int = 0
    submit_cpu_ns: int = 0
    """Handing documents to the GPU route, and staging them if this thread does it."""
    write_answer_cpu_ns: int = 0
    n_documents: int = 0
    n_tokens: int = 0
    n_bytes: int = 0

    def count(self, n_documents: int, n_bytes: int, n_tokens: int) -> None:
        """Count an answered request."""
        self.n_documents += n_documents
        self.n_bytes += n_bytes
        self.n_tokens += n_tokens

    def add(self, other: Work) -> None:
        """Add the numbers of another row to this one."""
        for number in fields(self):
            setattr(self, number.name, getattr(self, number.name) + getattr(other, number.name))


@dataclass(slots=True)
class WorkerTally:
    """All that one worker thread counts."""

    work: dict[WorkKey, Work] = field(default_factory=dict)
    queue: dict[str, Histogram] = field(default_factory=dict)

    def row(self, model: str, route: str) -> Work:
        """The row of a model and route, made on first use."""
        row: Work | None = self.work.get((model, route))  # type: ignore[call-overload]
        if row is None:
            row = self.work[WorkKey(model, route)] = Work()
        return row

    def queue_of(self, route: str) -> Histogram:
        """The queue histogram of a route, made on first use."""
        histogram = self.queue.get(route)
        if histogram is None:
            histogram = self.queue[route] = Histogram()
        return histogram


def total(tallies: Iterable[WorkerTally]) -> WorkerTally:
    """The sum of several tallies; safe while their owners go on counting."""
    result = WorkerTally()
    for tally in tallies:
        for key, work in dict(tally.work).items():
            result.row(*key).add(work)
        for route, histogram in dict(tally.queue).items():
            result.queue_of(route).add(histogram)
    return result


@dataclass(slots=True)
class _Clock:
    part: str
    thread: threading.Thread | None
    """None for a process."""
    clock: int
    start_ns: int
    used_ns: int = 0
    has_ended: bool = False

    @property
    def is_over(self) -> bool:
        """Whether it stays as it is."""
        return self.has_ended or (self.thread is not None and not self.thread.is_alive())

    def read(self) -> int:
        """CPU time since registration, in ns; of a thread or process that ended what was seen last."""
        if not self.is_over:
            # The thread may end between the question and the look.
            with contextlib.suppress(OSError):
                self.used_ns = time.clock_gettime_ns(self.clock) - self.start_ns
        return self.used_ns

    def end(self) -> None:
        """Read for the last time: before a process is waited for, since its number may then be another one's."""
        self.read()
        self.has_ended = True


class ThreadClocks:
    """CPU clocks of named threads and of processes, readable from any thread (Linux, through their CPU clock ids)."""

    def __init__(self) -> None:
        self._clocks: list[_Clock] = []
        self._ended_ns: dict[str, int] = {}
        self._lock = threading.Lock()

    def register(self, part: str, thread: threading.Thread | None = None) -> _Clock:
        """Count the CPU time of `thread` (default: the calling one) from now on under the name `part`.

        Threads of the same part add up.
        """
        thread = thread or threading.current_thread()
        if thread.ident is None:
            raise RuntimeError("a thread has a clock only once it was started")
        clock = time.pthread_getcpuclockid(thread.ident)
        return self._add(_Clock(part, thread, clock, time.clock_gettime_ns(clock)))

    def register_process(self, part: str, pid: int) -> _Clock:
        """Count all CPU time of a process under the name `part`, until its clock is ended."""
        return self._add(_Clock(part, None, (~pid << 3) | _CLOCK_OF_PROCESS, 0))

    @contextlib.contextmanager
    def counting(self, part: str) -> Iterator[None]:
        """Count the CPU time of the calling thread under `part` while the context lasts, for threads that end."""
        clock = self.register(part)
        try:
            yield
        finally:
            clock.read()

    def snapshot(self) -> dict[str, int]:
        """CPU time since registration, in ns, of each part."""
        with self._lock:
            parts = dict(self._ended_ns)
            for clock in self._clocks:
                parts[clock.part] = parts.get(clock.part, 0) + clock.read()
        return parts

    def _add(self, entry: _Clock) -> _Clock:
        """What ended is kept as a sum: models may come and go, and processes be started again, for years."""
        with self._lock:
            present = []
            for clock in self._clocks:
                if clock.is_over:
                    self._ended_ns[clock.part] = self._ended_ns.get(clock.part, 0) + clock.used_ns
                else:
                    present.append(clock)
            self._clocks = [*present, entry]
        return entry
