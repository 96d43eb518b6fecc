"""Long work in the interpreter, one thread at a time.

Reading a conversation of 500 KB, or writing its ids, holds the interpreter for a millisecond or two. Threads that do so
at once are no faster, since there is one interpreter lock; but the event loop then waits behind all of them, each time
that it needs the lock, and not behind one.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

MAX_WAIT_S = 0.02
"""Who waited so long goes on without the turn: a slow template or a body of megabytes delays others by no more."""


class Turn:
    """A lock that is worth waiting for, but not for long. For threads other than the event loop's."""

    def __init__(self, max_wait_s: float = MAX_WAIT_S) -> None:
        self._max_wait_s = max_wait_s
        self._lock = threading.Lock()

    @contextmanager
    def taken(self) -> Iterator[bool]:
        """Wait for the turn and keep it for the block. False: it went on without."""
        has_turn = self._lock.acquire(timeout=self._max_wait_s)
        try:
            yield has_turn
        finally:
            if has_turn:
                self._lock.release()

    def bound(self, function: Callable[P, T]) -> Callable[P, T]:
        """`function`, called in turn."""

        def in_turn(*args: P.args, **kwargs: P.kwargs) -> T:
            with self.taken():
                return function(*args, **kwargs)

        return in_turn
