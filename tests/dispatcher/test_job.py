"""A job: who takes it, and when its answer is no longer wanted."""

from __future__ import annotations

import threading

import pytest

from dispatcher.admission import Admission
from dispatcher.errors import Cancelled, DeadlineExceeded
from dispatcher.job import deadline_exceeded
from dispatcher.options import DispatcherOptions
from tests.fakes import LIMIT_S, FakeJob, FakeTokenizer


def make_job(deadline_ns: int = 0) -> FakeJob:
    """A job that nobody took yet."""
    return FakeJob(FakeTokenizer(), "x", slot=Admission(DispatcherOptions()).admit(1), deadline_ns=deadline_ns)


def test_one_claimer_wins() -> None:
    """Of many threads that claim a job at once, exactly one gets it."""
    for _ in range(200):
        job = make_job()
        start = threading.Barrier(4)
        won: list[bool] = []

        def claim(job: FakeJob = job, start: threading.Barrier = start, won: list[bool] = won) -> None:
            start.wait(LIMIT_S)
            won.append(job.claim())

        threads = [threading.Thread(target=claim) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(LIMIT_S)
        assert sorted(won) == [False, False, False, True]


def test_one_answers() -> None:
    """Of two that want to answer, one may; where no worker can, whoever asks may."""
    job = FakeJob(FakeTokenizer(), slot=Admission(DispatcherOptions()).admit(1), send=lambda _: None)
    assert job.claim_answer()
    assert not job.claim_answer()
    assert all(make_job().claim_answer() for _ in range(2))


def test_a_wanted_job_passes_its_check() -> None:
    """Without a deadline, or before it, `check` says nothing."""
    make_job().check()
    make_job(deadline_ns=1 << 62).check()


def test_an_abandoned_job_is_cancelled() -> None:
    """Once nobody waits, `check` raises; that comes before the deadline."""
    job = make_job(deadline_ns=1)
    job.abandoned = True
    with pytest.raises(Cancelled):
        job.check()


def test_a_late_job_is_over() -> None:
    """After the deadline `check` raises what the client is told, with advice."""
    with pytest.raises(DeadlineExceeded, match="allow more time"):
        make_job(deadline_ns=1).check()
    assert deadline_exceeded().retry_after_s > 0


def test_a_forgotten_job_holds_no_body() -> None:
    """After `forget` nothing of the request can be reached or run through the job."""
    job = make_job()
    job.forget()
    for call in (job.read, lambda: job.fail(Cancelled("x"))):
        with pytest.raises(Cancelled):
            call()
