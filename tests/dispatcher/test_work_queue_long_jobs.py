"""Long and huge jobs in the work queue: they hold up nobody, and a worker is left for the others."""

from __future__ import annotations

import pytest

from dispatcher.backlog import HUGE_BYTES
from dispatcher.work_queue import LONG_BYTES, LONG_NS
from tests.dispatcher.crew import Crew, until
from tests.dispatcher.crew import crew as crew


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


def test_huge_jobs_leave_a_cpu_for_the_others() -> None:
    """On two CPUs they go one at a time, whatever the number of workers, as long as they come and go."""
    crew = Crew(4, n_cpus=2)
    huge = [crew.job(HUGE_BYTES + 1) for _ in range(4)]
    crew.put(*huge)
    hand = crew.woken()
    for job in huge[:3]:
        assert hand.round() == [job]
        assert crew.n_parked == 3
        crew.queue.rescue()
        crew.queue.finished([job], 1_000)
        hand.ask()
    assert hand.round() == [huge[3]]
    crew.stop()


def test_a_slow_huge_job_shares_its_cpu() -> None:
    """One that waits while `rescue` is called goes on another worker, up to the last but one."""
    crew = Crew(4, n_cpus=1)
    huge = [crew.job(HUGE_BYTES + 1) for _ in range(4)]
    crew.put(*huge)
    assert crew.woken().round() == [huge[0]]
    for job in huge[1:3]:
        for _ in range(3):
            crew.queue.rescue()
        assert crew.woken().round() == [job]
    for _ in range(5):
        crew.queue.rescue()
    assert crew.n_parked == 1
    crew.stop()


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


def test_a_long_job_that_is_put_down(crew: Crew) -> None:
    """Short jobs gather behind its worker again, and no other one is woken; ending it later counts nothing twice."""
    crew.learn(1)
    long = crew.job(LONG_BYTES + 1)
    crew.put(long)
    hand = crew.woken()
    assert hand.round() == [long]
    crew.queue.put_down(long)
    short = crew.job()
    crew.put(short)
    assert crew.n_parked == 3
    crew.queue.finished([long], 1, was_long=False)
    hand.ask()
    assert hand.round() == [short]
    crew.put(crew.job())
    assert crew.n_parked == 3
