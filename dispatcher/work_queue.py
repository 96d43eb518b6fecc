"""The queue in front of the workers, and the decision whom to wake.

Waking a thread costs more than encoding a short document, and threads that share one interpreter get in each other's way.
So short jobs gather behind a worker that is awake, and a further worker is woken only when the backlog grows or the awake ones are
busy with long jobs. A long job never makes short ones wait while a worker is idle.
"""

from __future__ import annotations

import threading
from collections import deque
from typing import Any

from dispatcher.job import Job

BACKLOG = 8
"""Short jobs that may wait for each awake worker before another one is woken."""
LONG_BYTES = 16_384
"""A job with a larger body is long."""
LONG_NS = 100_000
"""When short bodies take longer than this on average (a slow engine), every job is long."""
SMOOTHING = 0.1


class WorkQueue:
    """First in, first out. `put` is called by the event loop, `get` and `finished` by workers."""

    def __init__(self) -> None:
        self._jobs: deque[Job[Any]] = deque()
        self._lock = threading.Lock()
        self._parked: list[threading.Lock] = []
        self._n_awake = 0
        self._n_long = 0
        self._short_ns = 0.0
        self._closed = False

    def join(self) -> threading.Lock:
        """Called once by each worker before its first `get`: its gate."""
        gate = threading.Lock()
        gate.acquire()
        with self._lock:
            self._n_awake += 1
        return gate

    def put(self, job: Job[Any]) -> None:
        """Queue a job and wake a worker if one should be."""
        with self._lock:
            self._jobs.append(job)
            gate = self._next_to_wake()
        if gate is not None:
            gate.release()

    def get(self, gate: threading.Lock) -> Job[Any] | None:
        """The next job, once there is one; None when the queue is closed and empty."""
        while True:
            with self._lock:
                if self._jobs:
                    job = self._jobs.popleft()
                    job.is_long = job.slot.n_bytes > LONG_BYTES or self._short_ns > LONG_NS
                    if not job.is_long:
                        return job
                    self._n_long += 1
                    other = self._next_to_wake()
                    break
                if self._closed:
                    return None
                self._n_awake -= 1
                self._parked.append(gate)
            gate.acquire()
        if other is not None:
            other.release()
        return job

    def finished(self, job: Job[Any], busy_ns: int) -> None:
        """A worker is done with a job that took `busy_ns`."""
        if job.slot.n_bytes <= LONG_BYTES:
            self._short_ns += (busy_ns - self._short_ns) * SMOOTHING
        if job.is_long:
            with self._lock:
                self._n_long -= 1

    def close(self) -> None:
        """Let every worker end once the queue is empty."""
        with self._lock:
            self._closed = True
            gates, self._parked = self._parked, []
            self._n_awake += len(gates)
        for gate in gates:
            gate.release()

    def _next_to_wake(self) -> threading.Lock | None:
        """The gate of the worker that parked last (its caches are warm), if the jobs that wait need one more. Under the lock."""
        if not self._parked or len(self._jobs) <= BACKLOG * (self._n_awake - self._n_long):
            return None
        self._n_awake += 1
        return self._parked.pop()
