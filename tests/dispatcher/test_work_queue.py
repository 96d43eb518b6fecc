"""The work queue: rounds, and whom it wakes."""

from __future__ import annotations

import random
import threading

import pytest

from dispatcher.admission import Admission
from dispatcher.backlog import HUGE_BYTES
from dispatcher.options import DispatcherOptions
from dispatcher.work_queue import LONG_BYTES, LONG_NS, ROUND_BYTES, ROUND_JOBS, ROUND_NS, WAIT_NS, WorkQueue
from tests.dispatcher.crew import TOKENIZER, Crew, Hand, until
from tests.dispatcher.crew import crew as crew
from tests.fakes import LIMIT_S, FakeJob


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


def test_waking_a_worker_is_timed(crew: Crew) -> None:
    """What it takes lately, within bounds."""
    for _ in range(30):
        crew.put(crew.job())
        hand = crew.woken()
        crew.queue.finished(hand.round(), 1)
        crew.park(hand)
    assert 0 < crew.queue.wake_ns < WAIT_NS


N_LARGEST = ROUND_BYTES // LONG_BYTES


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        ([1] * (ROUND_JOBS + 3), ROUND_JOBS),
        ([LONG_BYTES] * N_LARGEST + [1], N_LARGEST),
        ([LONG_BYTES] * (N_LARGEST - 1) + [1, LONG_BYTES], N_LARGEST),
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


def test_a_round_is_bounded_by_what_it_takes() -> None:
    """Slow bodies share a round only as far as the next one does not wait long for it."""
    crew = Crew(1)
    crew.learn(LONG_NS // 2)
    crew.park(crew.hands[0])
    jobs = [crew.job() for _ in range(2 * ROUND_NS // (LONG_NS // 2))]
    crew.queue.put(jobs)
    taken = crew.woken().round()
    assert 1 < len(taken) <= ROUND_NS // (LONG_NS // 4)
    assert taken == jobs[: len(taken)]
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
        bell = work.join()
        while jobs := work.get(bell):
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
        crew.settle([hand for hand in crew.hands if hand not in busy])
        busy |= {hand: hand.round() for hand in crew.hands if hand.has_round}
        if crew.queue._jobs and all(jobs[0].is_long for jobs in busy.values()):
            assert crew.n_parked == 0
    for hand, jobs in busy.items():
        crew.queue.finished(jobs, 1_000)
        hand.ask()
    crew.stop()
