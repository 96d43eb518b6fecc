"""Counting on the hot path."""

from __future__ import annotations

import itertools
import threading
from collections import deque


class Tally:
    """A count that many threads add to without a lock: one step of an iterator is one C call."""

    __slots__ = ("_lock", "_n_reads", "_steps", "add")

    def __init__(self) -> None:
        self._steps = itertools.count()
        self.add = self._steps.__next__
        """Count one."""
        self._n_reads = 0
        self._lock = threading.Lock()

    def add_many(self, n: int) -> None:
        """Count `n`."""
        deque(itertools.islice(self._steps, n), maxlen=0)

    @property
    def value(self) -> int:
        """How often `add` was called."""
        with self._lock:
            # Looking takes a step too.
            n = next(self._steps) - self._n_reads
            self._n_reads += 1
            return n
