"""The predicted wait, in simulated time: a server of known speed is asked for more or less than it can do."""

from __future__ import annotations

from collections import deque

import pytest

from dispatcher.backlog import HUGE_BYTES, JOB_BYTES, Backlog

TICK_S = 0.05
N_WORKERS = 4


class Server:
    """Answers jobs of one size one after the other, `rate` a second."""

    def __init__(self, rate: float, n_bytes: int = 1000) -> None:
        self.backlog = Backlog(N_WORKERS)
        self.rate, self.n_bytes = rate, n_bytes
        self.waiting: deque[int] = deque()
        self.now_s = 1.0
        self._credit = self._due = 0.0

    def run(self, seconds: float, offered: float) -> None:
        """Time goes on while jobs arrive evenly, `offered` a second."""
        for _ in range(round(seconds / TICK_S)):
            self._due += offered * TICK_S
            self.arrive(int(self._due))
            self._due -= int(self._due)
            self._credit = min(self._credit + self.rate * TICK_S, len(self.waiting))
            for _ in range(int(self._credit)):
                self.backlog.leave(self.waiting.popleft(), answered=True)
            self._credit -= int(self._credit)
            self.now_s += TICK_S
            self.backlog.observe(int(self.now_s * 1e9))

    def arrive(self, n: int) -> None:
        """So many jobs at once."""
        for _ in range(n):
            self.backlog.enter(self.n_bytes)
            self.waiting.append(self.n_bytes)

    @property
    def true_wait_s(self) -> float:
        """When a job that came now would be answered."""
        return len(self.waiting) / self.rate


def test_under_overload_the_wait_is_predicted() -> None:
    """Twice the capacity: the prediction follows the growing queue."""
    server = Server(rate=1000)
    for _ in range(5):
        server.run(2.0, offered=2000)
        assert server.backlog.small.wait_s == pytest.approx(server.true_wait_s, rel=0.05)
    assert server.true_wait_s > 9


@pytest.mark.parametrize("offered", [1.0, 50.0, 900.0])
def test_light_load_predicts_nothing(offered: float) -> None:
    """What was never overloaded has an unknown capacity, and a burst after a quiet time is not refused."""
    server = Server(rate=1000)
    server.run(10.0, offered)
    server.arrive(2000)
    assert server.backlog.small.wait_s == 0.0


def test_a_burst_after_an_overload_is_judged_by_the_capacity() -> None:
    """A quiet time between does not make the server look slow."""
    server = Server(rate=1000)
    server.run(5.0, offered=1500)
    server.run(20.0, offered=10)
    assert not server.waiting
    server.arrive(500)
    assert server.backlog.small.wait_s == pytest.approx(0.5, rel=0.1)


def test_the_capacity_may_change() -> None:
    """A slower model, or a lost GPU, is noticed within seconds, and so is a faster one."""
    server = Server(rate=10_000)
    server.run(3.0, offered=12_000)
    server.rate = 100
    server.run(8.0, offered=200)
    assert server.backlog.small.wait_s == pytest.approx(server.true_wait_s, rel=0.1)
    server.rate = 10_000
    server.run(0.5, offered=5_000)
    server.run(3.0, offered=10_500)
    assert server.backlog.small.wait_s == pytest.approx(server.true_wait_s, rel=0.2)


def test_few_slow_jobs_say_nothing() -> None:
    """Before some jobs were answered there is no prediction, however long that takes."""
    server = Server(rate=0.5)
    server.arrive(40)
    server.run(20.0, offered=0)
    assert server.backlog.small.wait_s == 0.0
    server.run(20.0, offered=0)
    assert server.backlog.small.wait_s == pytest.approx(server.true_wait_s, rel=0.1)


def test_huge_jobs_do_not_count_for_small_ones() -> None:
    """Each kind waits for its own."""
    huge = Server(rate=5, n_bytes=HUGE_BYTES + 1)
    huge.run(20.0, offered=20)
    assert huge.backlog.huge.wait_s == pytest.approx(huge.true_wait_s, rel=0.1)
    assert huge.backlog.small.wait_s == huge.backlog.lane(HUGE_BYTES).wait_s == 0.0


def test_jobs_that_were_given_up_count_for_nothing() -> None:
    """Work that left unanswered is no sign of speed; the books are even in the end."""
    server = Server(rate=1000)
    server.run(5.0, offered=2000)
    before = server.backlog.small.wait_s
    while len(server.waiting) > 1000:
        server.backlog.leave(server.waiting.popleft(), answered=False)
    server.now_s += 0.2
    server.backlog.observe(int(server.now_s * 1e9))
    assert server.backlog.small.work == 1000 * (server.n_bytes + JOB_BYTES)
    assert server.backlog.small.wait_s == pytest.approx(1.0, rel=0.1)
    assert before > 4
