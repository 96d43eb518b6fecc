"""Waiting: what is ready comes at once, what becomes ready ends the wait, and nothing is waited for in vain."""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Iterator

import pytest

from loadtest.poller import READ, SPIN_NS, WRITE, Poller

LONG_NS = 60_000_000_000


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    """Both ends of a pipe."""
    ends = os.pipe()
    yield ends
    for end in ends:
        os.close(end)


def test_ready_descriptors(pipe: tuple[int, int]) -> None:
    """Only what is watched for is reported, at once, also without any time to wait."""
    poller = Poller()
    poller.add(pipe[0], READ)
    assert poller.wait(0) == []
    os.write(pipe[1], b"x")
    assert [poller.wait(timeout_ns) for timeout_ns in (0, -5, LONG_NS)] == [[(pipe[0], READ)]] * 3
    poller.remove(pipe[0])
    assert poller.wait(0) == []
    poller.add(pipe[1], READ)
    assert poller.wait(0) == []
    poller.change(pipe[1], WRITE)
    assert poller.wait(LONG_NS) == [(pipe[1], WRITE)]
    poller.close()


def test_the_end_of_a_wait(pipe: tuple[int, int]) -> None:
    """A short wait lasts as long as it should and is counted; a long one returns in time to look at the clock."""
    poller = Poller()
    poller.add(pipe[0], READ)
    begin = time.monotonic_ns()
    assert poller.wait(SPIN_NS) == []
    assert time.monotonic_ns() - begin >= SPIN_NS
    assert poller.spun_ns >= SPIN_NS
    spun_ns = poller.spun_ns
    assert poller.wait(SPIN_NS + 1_000_000) == []
    assert poller.spun_ns == spun_ns
    begin = time.monotonic_ns()
    assert poller.wait(SPIN_NS + 7_300_000) == []
    assert time.monotonic_ns() - begin >= 7_300_000


def test_a_wait_is_ended(pipe: tuple[int, int]) -> None:
    """What becomes ready meanwhile ends even a long wait."""
    poller = Poller()
    poller.add(pipe[0], READ)
    threading.Thread(target=os.write, args=(pipe[1], b"x")).start()
    assert poller.wait(LONG_NS) == [(pipe[0], READ)]


class IdleEpoll:
    """Nothing is ever ready, and what is waited for is noted."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self.waits_s: list[float] = []

    def poll(self, timeout_s: float) -> list[tuple[int, int]]:
        """See `select.epoll`."""
        self.waits_s.append(timeout_s)
        return []

    def fileno(self) -> int:
        """What `select` looks at."""
        return self._fd


@pytest.mark.parametrize("timeout_ns", [*range(3_000_000, 4_200_000, 70_000), 49_999_999, LONG_NS])
def test_a_long_wait_leaves_time_for_its_end(
    timeout_ns: int, pipe: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the whole milliseconds that `epoll` makes of it, none is beyond the last part of the wait."""
    poller, epoll = Poller(), IdleEpoll(pipe[0])
    poller.close()
    monkeypatch.setattr(poller, "_epoll", epoll)
    # The clock is at the end of the wait when the first call has returned.
    monkeypatch.setattr(time, "monotonic_ns", lambda: timeout_ns * len(epoll.waits_s))
    assert poller.wait(timeout_ns) == []
    first_s, second_s = epoll.waits_s
    assert 1_000_000 <= math.ceil(first_s * 1000) * 1_000_000 <= timeout_ns - SPIN_NS
    assert second_s == 0
