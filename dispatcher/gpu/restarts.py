"""When an engine that ended is started again: later after each failure, and never at the same time as others."""

from __future__ import annotations

from collections.abc import Callable

JITTER = 0.25
"""Part of a delay that is random."""


class Restarts:
    """The delays of one engine. Time is an argument, in seconds."""

    def __init__(self, min_s: float, max_s: float, random: Callable[[], float]) -> None:
        """`random` gives numbers from 0 to 1."""
        self._min_s, self._max_s, self._random = min_s, max(min_s, max_s), random
        self._delay_s = min_s

    def after(self, ready_s: float) -> float:
        """Seconds until the next start of an engine that was ready for so long before it ended.

        One that did well for as long as the longest delay starts from the shortest again.
        """
        if ready_s >= self._max_s:
            self._delay_s = self._min_s
        delay_s = self._delay_s
        self._delay_s = min(2 * delay_s, self._max_s)
        return delay_s * (1 - JITTER * self._random())
