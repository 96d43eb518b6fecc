"""The predicted wait: what is in flight, over how fast such work has been answered while enough of it waited.

    rate of work answered in a window with a backlog  ─►  smoothed rate  ─►  wait = work in flight / rate

Windows without a backlog say how much was asked for, not how much could be answered, so they only raise the rate. Huge
jobs have workers of their own (`dispatcher.work_queue`), and so a lane of their own here.
"""

from __future__ import annotations

import math

HUGE_BYTES = 262_144
"""A job with a larger body is huge."""
JOB_BYTES = 1024
"""What a job costs beside its bytes, in bytes."""
WINDOW_NS = 100_000_000
WINDOW_JOBS = 16
"""A window ends when it is so long and so many jobs were answered in it: fewer say little about a rate."""
SMOOTHING_S = 1.0


class Lane:
    """One kind of work; what is counted is work in bytes."""

    __slots__ = ("_answered", "_busy_jobs", "_fewest", "_n_answered", "_start_ns", "n_jobs", "rate", "work")

    def __init__(self, busy_jobs: int) -> None:
        """There is a backlog while at least `busy_jobs` are in flight."""
        self.n_jobs = 0
        self.work = 0
        self._busy_jobs = busy_jobs
        self._fewest = 0
        self._answered = self._n_answered = 0
        self.rate = 0.0
        """Work answered in a second; 0 while nothing is known."""
        self._start_ns = 0

    def leave(self, work: int, answered: bool) -> None:
        """A job is gone: answered, or given up before it cost anything."""
        self.n_jobs -= 1
        self.work -= work
        if self.n_jobs < self._fewest:
            self._fewest = self.n_jobs
        if answered:
            self._answered += work
            self._n_answered += 1

    def observe(self, now_ns: int) -> None:
        """End the window, if it is long enough."""
        if now_ns - self._start_ns < WINDOW_NS or (self._n_answered < WINDOW_JOBS and self._fewest >= self._busy_jobs):
            return
        elapsed_s = (now_ns - self._start_ns) * 1e-9
        rate = self._answered / elapsed_s
        if self._fewest >= self._busy_jobs:
            weight = 1.0 - math.exp(-elapsed_s / SMOOTHING_S) if self.rate else 1.0
            self.rate += (rate - self.rate) * weight
        elif self.rate:
            self.rate = max(self.rate, rate)
        self._start_ns, self._answered, self._n_answered, self._fewest = now_ns, 0, 0, self.n_jobs

    @property
    def wait_s(self) -> float:
        """Seconds until what is in flight now will be answered; 0 while nothing is known."""
        return self.work / self.rate if self.rate else 0.0


class Backlog:
    """Both kinds of work. Used on the event loop only."""

    def __init__(self, n_workers: int) -> None:
        self.small = Lane(2 * n_workers)
        self.huge = Lane(n_workers)

    def enter(self, n_bytes: int) -> None:
        """A job with a body of this size came."""
        lane = self.huge if n_bytes > HUGE_BYTES else self.small
        lane.n_jobs += 1
        lane.work += n_bytes + JOB_BYTES

    def leave(self, n_bytes: int, answered: bool) -> None:
        """That job is gone: answered, or given up before it cost anything."""
        (self.huge if n_bytes > HUGE_BYTES else self.small).leave(n_bytes + JOB_BYTES, answered)

    def knows(self, n_bytes: int) -> bool:
        """Whether the wait of such a job can be predicted."""
        return (self.huge if n_bytes > HUGE_BYTES else self.small).rate > 0

    def observe(self, now_ns: int) -> None:
        """Look at the clock. Called periodically."""
        self.small.observe(now_ns)
        self.huge.observe(now_ns)

    def lane(self, n_bytes: int) -> Lane:
        """The lane of a job with a body of this size."""
        return self.huge if n_bytes > HUGE_BYTES else self.small
