"""The queue in front of the workers, and the decision whom to wake.

Waking a thread costs more than encoding a short document, and threads that share one interpreter get in each other's
way. So short jobs gather behind a worker that is awake, and a further worker is woken only when the backlog grows or
the awake ones are busy with long jobs. A long job never makes short ones wait while a worker is idle. Huge jobs, which
may take seconds (some text takes a microsecond a byte, and no native call can be interrupted), never take the last
worker: however many of them wait, one worker is left for all others. Nor do they take the last CPU, as long as they
come and go: more of them at a time would not end sooner, and the event loop would wait for each.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Sequence
from typing import Any

from dispatcher.backlog import HUGE_BYTES
from dispatcher.bell import Bell
from dispatcher.flow_queue import FlowQueue
from dispatcher.job import Job

WAIT_NS = 1_000_000
"""Short jobs may wait this long for a worker that is awake before another one is woken."""
LONG_BYTES = 16_384
"""A job with a larger body is long."""
LONG_NS = 1_000_000
"""When short bodies take longer than this on average (a slow engine), every job is long. Well above what a fast engine
needs on a slow machine: a worker for each job makes threads wait for the interpreter, so that all jobs seem slow."""
FIRST_WAKE_NS = 50_000
"""What waking a worker is assumed to take before it was seen."""
SMOOTHING = 0.1
ROUND_JOBS = 64
ROUND_BYTES = 131_072
ROUND_NS = 5_000_000
"""Bounds of a round of short jobs; the last one on what they are expected to take."""


class WorkQueue:
    """First in, first out, but for huge jobs that wait for their turn, and fair between flows when many jobs wait.

    `put` is called by any thread, `get` and `finished` by workers.
    """

    def __init__(self, n_cpus: int = sys.maxsize) -> None:
        """`n_cpus` are those of all workers and the event loop together."""
        self._n_cpus = n_cpus
        self._jobs: FlowQueue[Job[Any]] = FlowQueue()
        self._huge: FlowQueue[Job[Any]] = FlowQueue()
        self._lock = threading.Lock()
        self._parked: list[Bell] = []
        self._n_workers = 0
        self._n_awake = 0
        self._n_long = 0
        self._n_huge = 0
        """Huge jobs that workers are at."""
        self.n_huge_finished = 0
        self._short_ns = 0.0
        self.wake_ns = float(FIRST_WAKE_NS)
        """From waking a worker until it looks for a job, lately."""
        self._woken_ns = 0
        self._closed = False
        self._last_head: Job[Any] | None = None
        self._last_huge: Job[Any] | None = None
        self._huge_is_stuck = False
        """One waited from a `rescue` to the next: those before it may be slow, so it need not wait for their CPU."""

    @property
    def is_closed(self) -> bool:
        """Whether nothing more is queued."""
        return self._closed

    @property
    def n_idle(self) -> int:
        """Workers that would begin at once; like what waits, as of some moment, from any thread."""
        return len(self._parked)

    @property
    def n_waiting(self) -> int:
        """Jobs that no worker has taken yet."""
        return len(self._jobs) + len(self._huge)

    @property
    def waiting_bytes(self) -> int:
        """Bytes of their bodies."""
        return self._jobs.n_bytes + self._huge.n_bytes

    def join(self) -> Bell:
        """Called once by each worker before its first `get`: its bell, which it closes at its end."""
        with self._lock:
            self._n_workers += 1
            self._n_awake += 1
        return Bell()

    def put(self, jobs: Sequence[Job[Any]]) -> bool:
        """Queue jobs and wake workers if some should be; false, with none of them queued, when the queue is closed."""
        bells = []
        with self._lock:
            if self._closed:
                return False
            for job in jobs:
                (self._huge if _is_huge(job) else self._jobs).append(job)
                if (bell := self._next_to_wake()) is not None:
                    bells.append(bell)
        for bell in bells:
            self._wake(bell)
        return True

    def get(self, bell: Bell) -> list[Job[Any]]:
        """The jobs of one round, once there are any: one long job, or short ones up to the round's bounds.

        Empty when the queue is closed and nothing waits.
        """
        while (taken := self._take_or_park(bell)) is None:
            bell.wait()
            took_ns = min(time.monotonic_ns() - self._woken_ns, WAIT_NS)
            self.wake_ns += (took_ns - self.wake_ns) * SMOOTHING
        jobs, other = taken
        if other is not None:
            self._wake(other)
        return jobs

    def finished(self, jobs: Sequence[Job[Any]], cpu_ns: int, was_long: bool | None = None) -> None:
        """A worker is done with a round that took `cpu_ns` of its CPU (elapsed time would count waits for the GIL).

        `was_long`: whether its job was long when it was taken; it may have been taken again since, from the GPU route.
        """
        first = jobs[0]
        if first.slot.n_bytes <= LONG_BYTES:
            self._short_ns += (cpu_ns / len(jobs) - self._short_ns) * SMOOTHING
        if self._jobs.is_fair or self._huge.is_fair:
            with self._lock:
                for job in jobs:
                    (self._huge if _is_huge(job) else self._jobs).charge(job.flow, cpu_ns / len(jobs))
        if first.is_long if was_long is None else was_long:
            self.put_down(first)

    def put_down(self, job: Job[Any]) -> None:
        """The worker of a long job is about to ask for more: short ones may gather behind it."""
        with self._lock:
            self._n_long -= 1
            if _is_huge(job):
                self._n_huge -= 1
                self.n_huge_finished += 1

    def rescue(self) -> None:
        """Wake one more worker when the first job has waited since the last call: a short body may be slow, too.

        Called periodically, and much less often than a short job takes.
        """
        bell = None
        with self._lock:
            huge = self._huge.head()
            self._huge_is_stuck = huge is not None and huge is self._last_huge
            self._last_huge = huge
            head = self._next()
            if head is not None and head is self._last_head and self._parked:
                self._n_awake += 1
                bell = self._parked.pop()
            self._last_head = head
        if bell is not None:
            self._wake(bell)

    def close(self) -> None:
        """Let every worker end once the queue is empty."""
        with self._lock:
            self._closed = True
            bells, self._parked = self._parked, []
            self._n_awake += len(bells)
        for bell in bells:
            self._wake(bell)

    def _wake(self, bell: Bell) -> None:
        self._woken_ns = time.monotonic_ns()
        bell.ring()

    def _next(self) -> Job[Any] | None:
        """Under the lock: the job that a worker may take now, the older one of both kinds."""
        first = self._jobs.head()
        if not self._huge:
            return first
        n_places = self._n_workers if self._huge_is_stuck else min(self._n_workers, self._n_cpus)
        if self._closed or self._n_huge < max(1, n_places - 1):
            huge = self._huge.head()
            if huge is None:
                return first
            if first is None or huge.submitted_ns < first.submitted_ns:
                return huge
        return first

    def _take_or_park(self, bell: Bell) -> tuple[list[Job[Any]], Bell | None] | None:
        """What `_take` gives, nothing at the end; None when there is nothing yet, and the bell will ring."""
        with self._lock:
            if self._next() is not None:
                return self._take()
            if self._closed:
                return [], None
            self._n_awake -= 1
            self._parked.append(bell)
            return None

    def _take(self) -> tuple[list[Job[Any]], Bell | None]:
        """Under the lock: the jobs of one round, and the bell of a worker to wake for what is left."""
        slow = self._short_ns > LONG_NS
        first = self._next()
        assert first is not None
        huge = _is_huge(first)
        (self._huge if huge else self._jobs).popleft()
        self._huge_is_stuck &= not huge
        if slow or first.slot.n_bytes > LONG_BYTES:
            first.is_long = True
            self._n_long += 1
            self._n_huge += huge
            return [first], self._next_to_wake()
        jobs = [first]
        n_bytes = first.slot.n_bytes
        n_most = min(ROUND_JOBS, int(ROUND_NS / max(self._short_ns, 1)))
        while (job := self._jobs.head()) is not None and len(jobs) < n_most:
            n_bytes += job.slot.n_bytes
            if n_bytes > ROUND_BYTES or job.slot.n_bytes > LONG_BYTES:
                break
            jobs.append(self._jobs.popleft())
        for job in jobs:
            # It may have been when it was taken before, on its way to the GPU route.
            job.is_long = False
        return jobs, None

    def _next_to_wake(self) -> Bell | None:
        """Under the lock: the bell of the worker that parked last (its caches are warm), if one more is needed."""
        n_quick = self._n_awake - self._n_long
        if not self._parked or self._next() is None:
            return None
        if n_quick and len(self._jobs) * self._short_ns <= WAIT_NS * n_quick:
            return None
        self._n_awake += 1
        return self._parked.pop()


def _is_huge(job: Job[Any]) -> bool:
    return job.slot.n_bytes > HUGE_BYTES
