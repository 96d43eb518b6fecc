"""The work queue: rounds, and whom it wakes."""

from __future__ import annotations

import queue
import random
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from dispatcher.admission import Admission
from dispatcher.backlog import HUGE_BYTES
from dispatcher.job import Job
from dispatcher.options import DispatcherOptions
from dispatcher.work_queue import LONG_BYTES, LONG_NS, ROUND_BYTES, ROUND_JOBS, WAIT_NS, WorkQueue
from tests.fakes import LIMIT_S, FakeJob, FakeTokenizer

TOKENIZER = FakeTokenizer()


class Hand(threading.Thread):
    """A worker that asks for a round when the test says so."""

    def __init__(self, work: WorkQueue) -> None:
        super().__init__(daemon=True)
        self._work = work
        self._asked: queue.SimpleQueue[bool] = queue.SimpleQueue()
        self._rounds: queue.SimpleQueue[list[FakeJob]] = queue.SimpleQueue()
        self.gate = work.join()
        self.start()

    def run(self) -> None:
        """Ask the queue once for each time that the test asks."""
        while self._asked.get():
            self._rounds.put(self._work.get(self.gate))  # type: ignore[arg-type]

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
        return self.gate in self._work._parked

    def stop(self) -> None:
        """End the thread, which must not sleep in the queue."""
        self._asked.put(False)
        self.join(LIMIT_S)


class Crew:
    """A queue with workers that are all parked at first."""

    def __init__(self, n: int) -> None:
        self.queue = WorkQueue()
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


def test_one_job_wakes_one_worker(crew: Crew) -> None:
    """A job that comes when all sleep wakes the worker that fell asleep last, and nobody else."""
    job = crew.job()
    crew.put(job)
    assert crew.hands[-1].round() == [job]
    assert crew.n_parked == 3


def test_short_jobs_gather_behind_an_awake_worker(crew: Crew) -> None:
    """While one worker is at short work, further short jobs wake nobody; it takes them together as its next round."""
    first, *others = [crew.job() for _ in range(6)]
    crew.put(first)
    hand = crew.woken()
    assert hand.round() == [first]
    crew.put(*others)
    assert crew.n_parked == 3
    hand.ask()
    assert hand.round() == others


def test_a_put_of_many_wakes_as_few_as_many_puts(crew: Crew) -> None:
    """Jobs queued together wake one worker, as they would one by one."""
    jobs = [crew.job() for _ in range(5)]
    crew.queue.put(jobs)
    taken = crew.woken().round()
    assert taken == jobs[: len(taken)]
    assert crew.n_parked == 3


def test_a_backlog_of_costly_jobs_wakes_more(crew: Crew) -> None:
    """Another worker is woken when those that wait cost more than `WAIT_NS` for each awake worker."""
    crew.learn(WAIT_NS // 20)
    crew.put(crew.job())
    until(lambda: crew.n_parked == 3)
    busy = crew.woken()
    busy.round()
    crew.put(*[crew.job() for _ in range(19)])
    assert crew.n_parked == 3
    crew.put(crew.job(), crew.job())
    until(lambda: crew.n_parked == 2)
    assert crew.woken() is not busy


@pytest.mark.parametrize("n_bytes", [LONG_BYTES + 1, 10 * LONG_BYTES])
def test_a_short_job_never_waits_for_a_long_one(crew: Crew, n_bytes: int) -> None:
    """A short job that comes while every awake worker is at a long one wakes another."""
    for n_left in (3, 2, 1):
        long = crew.job(n_bytes)
        crew.put(long)
        assert crew.woken().round() == [long]
        assert long.is_long
        assert crew.n_parked == n_left
    short = crew.job()
    crew.put(short)
    assert crew.woken().round() == [short]


def test_huge_jobs_leave_a_worker_for_the_others(crew: Crew) -> None:
    """However many huge jobs wait, short and long ones that come later have a worker at once; order is kept else."""
    huge = [crew.job(HUGE_BYTES + 1) for _ in range(6)]
    crew.put(*huge)
    until(lambda: sum(hand.has_round for hand in crew.hands) == 3)
    busy = [hand for hand in crew.hands if hand.has_round]
    assert {job for hand in busy for job in hand.round()} == set(huge[:3])
    assert crew.n_parked == 1
    crew.queue.rescue()
    crew.queue.rescue()
    assert crew.n_parked == 1
    for n_bytes in (1, HUGE_BYTES):
        job = crew.job(n_bytes)
        crew.put(job)
        spare = crew.woken()
        assert spare.round() == [job]
        crew.queue.finished([job], 1_000)
        crew.park(spare)
    crew.queue.finished([huge[0]], 1_000)
    late = crew.job()
    crew.put(late)
    busy[0].ask()
    assert busy[0].round() == [huge[3]]
    assert crew.woken().round() == [late]


def test_a_single_worker_takes_huge_jobs() -> None:
    """With one worker there is none to spare."""
    alone = Crew(1)
    job = alone.job(HUGE_BYTES + 1)
    alone.put(job)
    assert alone.woken().round() == [job]
    alone.stop()


def test_close_hands_out_huge_jobs_too(crew: Crew) -> None:
    """After `close` nothing that waits is kept back for the sake of others."""
    huge = [crew.job(HUGE_BYTES + 1) for _ in range(4)]
    crew.put(*huge)
    until(lambda: crew.n_parked == 1)
    crew.queue.close()
    taken = [job for hand in crew.hands for job in hand.round()]
    assert set(taken) == set(huge)


def test_a_worker_that_takes_a_long_job_wakes_another_for_the_rest(crew: Crew) -> None:
    """Short jobs behind a long one do not wait for it while a worker sleeps."""
    first, long, after = crew.job(), crew.job(LONG_BYTES + 1), crew.job()
    crew.put(first)
    hand = crew.woken()
    assert hand.round() == [first]
    crew.put(long, after)
    hand.ask()
    assert hand.round() == [long]
    other = crew.woken()
    assert other is not hand
    assert other.round() == [after]


def test_after_a_long_job_a_worker_counts_again(crew: Crew) -> None:
    """A worker that finished its long job is awake for short ones: they wake nobody else."""
    long = crew.job(LONG_BYTES + 1)
    crew.put(long)
    hand = crew.woken()
    assert hand.round() == [long]
    crew.queue.finished([long], 5_000_000)
    crew.put(crew.job())
    assert crew.n_parked == 3
    hand.ask()
    assert len(hand.round()) == 1


def test_with_a_slow_engine_every_job_is_long(crew: Crew) -> None:
    """When short bodies cost much, jobs go one by one to as many workers as there are."""
    crew.learn(50_000_000)
    jobs = [crew.job() for _ in range(4)]
    crew.put(*jobs)
    rounds = [hand.round() for hand in crew.hands]
    assert sorted(len(taken) for taken in rounds) == [1, 1, 1, 1]
    assert {job for taken in rounds for job in taken} == set(jobs)
    assert all(job.is_long for job in jobs)


def test_a_job_that_comes_back_is_judged_anew(crew: Crew) -> None:
    """One that was long is not any more when the engine became fast; nobody is counted twice for it."""
    crew.learn(LONG_NS * 2)
    job = crew.job()
    crew.put(job)
    crew.queue.finished(crew.woken().round(), LONG_NS * 2)
    assert job.is_long
    until(lambda: crew.n_parked < len(crew.hands))
    hand = next(hand for hand in crew.hands if not hand.parked)
    crew.park(hand)
    crew.learn(1)
    crew.put(job)
    again = crew.woken()
    crew.queue.finished(again.round(), 1)
    assert not job.is_long
    crew.park(again)
    crew.put(crew.job())
    assert len(crew.woken().round()) == 1, "a worker is woken although all sleep"


def test_waking_a_worker_is_timed(crew: Crew) -> None:
    """What it takes lately, within bounds."""
    for _ in range(30):
        crew.put(crew.job())
        hand = crew.woken()
        crew.queue.finished(hand.round(), 1)
        crew.park(hand)
    assert 0 < crew.queue.wake_ns < WAIT_NS


def test_an_engine_that_became_fast_is_noticed(crew: Crew) -> None:
    """The expectation follows the costs; after a slow spell short jobs gather again."""
    crew.learn(50_000_000)
    crew.learn(5_000)
    crew.put(crew.job())
    hand = crew.woken()
    hand.round()
    crew.put(crew.job(), crew.job())
    assert crew.n_parked == 3
    hand.ask()
    assert len(hand.round()) == 2


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        ([1] * (ROUND_JOBS + 3), ROUND_JOBS),
        ([ROUND_BYTES // 2, ROUND_BYTES // 2, 1], 2),
        ([ROUND_BYTES // 2, ROUND_BYTES // 2 + 1], 1),
        ([0, 0, LONG_BYTES], 3),
        ([1, LONG_BYTES + 1], 1),
        ([LONG_BYTES + 1, 1], 1),
        ([0], 1),
    ],
)
def test_bounds_of_a_round(sizes: list[int], expected: int) -> None:
    """A round is one long job alone, or short ones up to a number and a size; the order is kept."""
    crew = Crew(1)
    crew.put(crew.job())
    hand = crew.woken()
    hand.round()
    jobs = [crew.job(n_bytes) for n_bytes in sizes]
    crew.put(*jobs)
    hand.ask()
    assert hand.round() == jobs[:expected]
    if expected < len(jobs):
        hand.ask()
        assert hand.round() == jobs[expected:]
    crew.stop()


def test_close_lets_everybody_finish_what_waits(crew: Crew) -> None:
    """After `close` the queue hands out what waits, then nothing, to parked workers as well."""
    crew.put(crew.job())
    hand = crew.woken()
    hand.round()
    waiting = [crew.job(), crew.job()]
    crew.put(*waiting)
    crew.queue.close()
    hand.ask()
    taken = hand.round()
    taken += [job for other in crew.hands if other is not hand for job in other.round()]
    assert set(taken) == set(waiting)
    hand.ask()
    assert hand.round() == []


def test_jobs_behind_a_stuck_worker_are_rescued(crew: Crew) -> None:
    """A short body may take long all the same: a job that is first from one `rescue` to the next wakes a worker."""
    stuck, *waiting = [crew.job() for _ in range(3)]
    crew.put(stuck)
    assert crew.woken().round() == [stuck]
    crew.put(*waiting)
    crew.queue.rescue()
    assert crew.n_parked == 3
    crew.queue.rescue()
    assert crew.woken().round() == waiting


def test_a_queue_that_moves_needs_no_rescue(crew: Crew) -> None:
    """`rescue` wakes nobody while the head of the queue changes, nor when nothing waits."""
    crew.queue.rescue()
    crew.queue.rescue()
    crew.put(crew.job())
    hand = crew.woken()
    hand.round()
    for _ in range(5):
        crew.put(crew.job())
        crew.queue.rescue()
        hand.ask()
        assert len(hand.round()) == 1
    assert crew.n_parked == 3


@pytest.mark.parametrize("seed", range(4))
def test_every_job_is_handed_out_once(seed: int) -> None:
    """Under random sizes, costs and pauses each job is taken exactly once, and `close` drains the queue."""
    rng = random.Random(seed)
    work = WorkQueue()
    slots = Admission(DispatcherOptions(max_in_flight=1_000_000, max_in_flight_bytes=1 << 50))
    taken: list[FakeJob] = []

    def worker() -> None:
        gate = work.join()
        while jobs := work.get(gate):
            taken.extend(jobs)  # type: ignore[arg-type]
            work.finished(jobs, 200_000 if jobs[0].slot.n_bytes % 7 == 0 else 1_000)

    threads = [threading.Thread(target=worker) for _ in range(4)]
    for thread in threads:
        thread.start()
    sizes = rng.choices([0, 10, 5_000, 20_000, HUGE_BYTES + 7], k=8_000)
    jobs = [FakeJob(TOKENIZER, slot=slots.admit(n_bytes)) for n_bytes in sizes]
    start = 0
    while start < len(jobs):
        end = start + rng.choice([1, 1, 1, 2, 30])
        work.put(jobs[start:end])
        start = end
        if rng.random() < 0.02:
            until(lambda: not work._jobs and not work._huge)
        if rng.random() < 0.01:
            work.rescue()
    work.close()
    for thread in threads:
        thread.join(LIMIT_S)
        assert not thread.is_alive()
    assert len(taken) == len(jobs)
    assert set(taken) == set(jobs)


def test_nobody_sleeps_beside_work() -> None:
    """With every awake worker at a long job, no job waits while a worker sleeps, at any moment of a random run."""
    rng = random.Random(3)
    crew = Crew(4)
    busy: dict[Hand, list[FakeJob]] = {}
    for _ in range(400):
        if rng.random() < 0.6 or not busy:
            crew.put(crew.job(rng.choice([1, LONG_BYTES + 1])))
        else:
            hand = rng.choice(list(busy))
            crew.queue.finished(busy.pop(hand), 1_000)
            hand.ask()
        idle = [hand for hand in crew.hands if hand not in busy]
        until(lambda idle=idle: all(hand.parked or hand.has_round for hand in idle))  # type: ignore[misc]
        busy |= {hand: hand.round() for hand in crew.hands if hand.has_round}
        if crew.queue._jobs and all(jobs[0].is_long for jobs in busy.values()):
            assert crew.n_parked == 0
    for hand, jobs in busy.items():
        crew.queue.finished(jobs, 1_000)
        hand.ask()
    crew.stop()
