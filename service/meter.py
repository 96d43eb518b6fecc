"""What the event loop counts: durations of requests, and how late the loop itself is."""

from __future__ import annotations

from collections import deque

from dispatcher.meter import Histogram


class RequestMeter:
    """Durations by (model, route, outcome). Written by the event loop only; readers copy."""

    def __init__(self) -> None:
        self.durations: dict[tuple[str, str, str], Histogram] = {}

    def observe(self, model: str, route: str, outcome: str, seconds: float) -> None:
        """Count one request, from its head to the end of its answer, in seconds."""
        key = (model, route, outcome)
        histogram = self.durations.get(key)
        if histogram is None:
            histogram = self.durations[key] = Histogram()
        histogram.observe(seconds)


class LoopLag:
    """How late a periodic callback of the event loop runs: the worst of the last `window` ticks, in seconds."""

    def __init__(self, window: int = 200) -> None:
        self._recent: deque[float] = deque(maxlen=window)

    def observe(self, seconds: float) -> None:
        """Count the lateness of one tick."""
        self._recent.append(max(0.0, seconds))

    @property
    def worst_s(self) -> float:
        """The worst lateness in the window."""
        return max(tuple(self._recent), default=0.0)
