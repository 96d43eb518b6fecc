"""A queue that is first in, first out while it is short, and fair between flows when it is long.

A flow is what one client asks of one model. Each flow has used some CPU time; of those with waiting jobs the one that
used least is next (start-time fair queueing), so that slow jobs of one flow delay another flow by one job, not by all.
"""

from __future__ import annotations

import heapq
from collections import deque
from typing import Generic, Protocol, TypeVar

FAIR_JOBS = 64
"""So many jobs wait in the order in which they came."""
MAX_IDLE_FLOWS = 1024


class Sized(Protocol):
    """Something with a number of bytes."""

    n_bytes: int


class Queued(Protocol):
    """A job, or whatever else belongs to a flow and has a size."""

    @property
    def flow(self) -> str:
        """Whose it is."""

    @property
    def slot(self) -> Sized:
        """How large it is."""


J = TypeVar("J", bound=Queued)


class FlowQueue(Generic[J]):
    """Jobs by flow. Not safe by itself: its owner has a lock."""

    __slots__ = ("_first", "_floor", "_flows", "_heap", "_n", "_used", "n_bytes")

    def __init__(self) -> None:
        self._first: deque[J] = deque()
        self._flows: dict[str, deque[J]] = {}
        """Flows with waiting jobs, beyond the first ones."""
        self._heap: list[tuple[float, str]] = []
        """One entry for each of them; its number may be behind what the flow has used by now."""
        self._used: dict[str, float] = {}
        """What each flow has used, in ns of CPU time; a flow without an entry is at the floor."""
        self._floor = 0.0
        """Where a flow begins: what each of those that wait would have used, had all got the same."""
        self._n = 0
        self.n_bytes = 0
        """Of the bodies of all jobs."""

    def __len__(self) -> int:
        return self._n

    @property
    def is_fair(self) -> bool:
        """Whether so many jobs wait that their flows matter; readable without the owner's lock."""
        return bool(self._flows)

    def append(self, job: J) -> None:
        """Queue a job."""
        self._n += 1
        self.n_bytes += job.slot.n_bytes
        if not self._flows and len(self._first) < FAIR_JOBS:
            self._first.append(job)
            return
        waiting = self._flows.get(job.flow)
        if waiting is None:
            # Who waited for nothing saved up nothing.
            used = self._used[job.flow] = max(self._floor, self._used.get(job.flow, self._floor))
            heapq.heappush(self._heap, (used, job.flow))
            waiting = self._flows[job.flow] = deque()
        waiting.append(job)

    def head(self) -> J | None:
        """The next job, which stays; None when there is none."""
        if self._first:
            return self._first[0]
        return self._flows[self._next_flow()][0] if self._heap else None

    def popleft(self) -> J:
        """Take the next job. Its flow is charged with a guess until `charge` tells what it cost."""
        self._n -= 1
        if self._first:
            job = self._first.popleft()
            self.n_bytes -= job.slot.n_bytes
            return job
        flow = self._next_flow()
        waiting = self._flows[flow]
        job = waiting.popleft()
        self.n_bytes -= job.slot.n_bytes
        self._floor = max(self._floor, self._used[flow])
        self.charge(flow, job.slot.n_bytes + 1.0)
        if not waiting:
            del self._flows[flow]
            heapq.heappop(self._heap)
            self._forget()
        return job

    def charge(self, flow: str, cpu_ns: float) -> None:
        """A flow used CPU time."""
        if self._flows:
            self._used[flow] = self._used.get(flow, self._floor) + cpu_ns
            self._floor += cpu_ns / len(self._flows)

    def _next_flow(self) -> str:
        """The flow at the top of the heap, once the entries of those that used something are where they belong."""
        heap, used = self._heap, self._used
        while heap[0][0] < (now := used[heap[0][1]]):
            heapq.heapreplace(heap, (now, heap[0][1]))
        return heap[0][1]

    def _forget(self) -> None:
        if not self._flows:
            self._used.clear()
            self._floor = 0.0
        elif len(self._used) > len(self._flows) + MAX_IDLE_FLOWS:
            self._used = {flow: used for flow, used in self._used.items() if flow in self._flows or used > self._floor}
