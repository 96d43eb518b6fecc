"""Workers that a test moves by hand, around a work queue."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from dispatcher.admission import Admission
from dispatcher.job import Job
from dispatcher.options import DispatcherOptions
from dispatcher.work_queue import WorkQueue
from tests.fakes import LIMIT_S, FakeJob, FakeTokenizer

TOKENIZER = FakeTokenizer()


class Hand(threading.Thread):
    """A worker that asks for a round when the test says so."""

    def __init__(self, work: WorkQueue) -> None:
        super().__init__(daemon=True)
        self._work = work
        self._asked: queue.SimpleQueue[bool] = queue.SimpleQueue()
        self._rounds: queue.SimpleQueue[list[FakeJob]] = queue.SimpleQueue()
        self.bell = work.join()
        self.start()

    def run(self) -> None:
        """Ask the queue once for each time that the test asks."""
        while self._asked.get():
            self._rounds.put(self._work.get(self.bell))  # type: ignore[arg-type]
        self.bell.close()

    def ask(self) -> None:
        """Ask for a round."""
        self._asked.put(True)

    def round(self) -> list[FakeJob]:
        """The round that was asked for."""
        return self._rounds.get(timeout=LIMIT_S)

    @property
    def has_round(self) -> bool:
        """Whether the queue answered."""
        return not self._rounds.empty()

    @property
    def parked(self) -> bool:
        """Whether the worker sleeps in the queue."""
        return self.bell in self._work._parked

    def stop(self) -> None:
        """End the thread, which must not sleep in the queue."""
        self._asked.put(False)
        self.join(LIMIT_S)


class Crew:
    """A queue with workers that are all parked at first."""

    def __init__(self, n: int, n_cpus: int = 64) -> None:
        self.queue = WorkQueue(n_cpus)
        self._slots = Admission(DispatcherOptions(max_in_flight=1_000_000, max_in_flight_bytes=1 << 50))
        self.hands = [Hand(self.queue) for _ in range(n)]
        for hand in self.hands:
            self.park(hand)

    def park(self, hand: Hand) -> None:
        """Let a worker ask while nothing waits."""
        hand.ask()
        until(lambda: hand.parked)

    def job(self, n_bytes: int = 1) -> FakeJob:
        """A job with a body of this size."""
        return FakeJob(TOKENIZER, "x", slot=self._slots.admit(n_bytes))

    def put(self, *jobs: Job[str]) -> None:
        """Queue jobs one by one."""
        for job in jobs:
            self.queue.put([job])

    @property
    def n_parked(self) -> int:
        """How many workers sleep."""
        return sum(hand.parked for hand in self.hands)

    def settle(self, hands: list[Hand]) -> None:
        """Wait until each of these workers sleeps or has a round, all of them at one moment."""

        def settled() -> bool:
            # A worker that takes a round wakes the next one in the same step, so that nobody is between the two.
            with self.queue._lock:
                return all(hand.parked or hand.has_round for hand in hands)

        until(settled)

    def woken(self) -> Hand:
        """The one worker that has a round which the test has not looked at."""
        until(lambda: any(hand.has_round for hand in self.hands))
        (hand,) = [hand for hand in self.hands if hand.has_round]
        return hand

    def learn(self, cpu_ns: int) -> None:
        """Make the queue expect that a short job costs this much."""
        for _ in range(400):
            self.queue.finished([self.job()], cpu_ns)

    def stop(self) -> None:
        """End all threads."""
        self.queue.close()
        for hand in self.hands:
            hand.stop()


def until(happened: Callable[[], bool]) -> None:
    """Wait for something that another thread is about to do."""
    limit_s = time.monotonic() + LIMIT_S
    while not happened():
        assert time.monotonic() < limit_s, "what the test waits for did not happen"
        threading.Event().wait(0.0005)


@pytest.fixture
def crew() -> Iterator[Crew]:
    """Four parked workers."""
    crew = Crew(4)
    yield crew
    crew.stop()
