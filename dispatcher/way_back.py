"""How long finished work waits for the event loop, which sends answers.

A GPU's results come on the event loop itself, so that this wait is part of what a replay is seen to take. What a worker
has encoded waits for the loop afterwards.
"""

from __future__ import annotations

SMOOTHING = 0.1
FORGET_NS = 50_000_000
"""Half of it is forgotten in this time: whoever takes the GPU route observes nothing."""


class WayBack:
    """The wait, lately. Any thread may read it, one observes."""

    def __init__(self) -> None:
        self._ns = 0.0
        self._seen_ns = 0

    def observe(self, waited_ns: float, now_ns: int) -> None:
        """Learn from work that was taken over by the loop after so long."""
        before_ns = self.ns(now_ns)
        self._ns, self._seen_ns = before_ns + (waited_ns - before_ns) * SMOOTHING, now_ns

    def ns(self, now_ns: int) -> float:
        """Predicted nanoseconds."""
        return self._ns * 0.5 ** (max(0, now_ns - self._seen_ns) / FORGET_NS) if self._ns else 0.0
