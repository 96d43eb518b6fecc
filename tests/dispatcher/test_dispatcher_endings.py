"""How jobs end early: deadlines, departed clients, and every race between them and the work."""

from __future__ import annotations

import gc
import random
import threading
import time
import weakref

import pytest

from dispatcher.errors import DeadlineExceeded, DispatcherClosed
from dispatcher.worker import PART_CHARS
from tests.fakes import LIMIT_S, FakeJob, Gate, Panic
from tests.rig import LONG, Rig, ids

MARKER = "the secret text of a document"


def test_a_deadline_ends_a_job_that_waits(lone: Rig) -> None:
    """A queued job whose deadline passed is answered at once, is never read, and gives its slot back at once."""
    gate = lone.tokenizer.gate("first")
    first = lone.submit("first")
    gate.wait_entered()
    late, other = lone.submit("late", deadline_ns=1), lone.submit("other", deadline_ns=1 << 62)
    lone.dispatcher.sweep()
    assert isinstance(late.ending.error, DeadlineExceeded)
    assert late.ending.answer == "DeadlineExceeded"
    assert not other.ended
    assert lone.dispatcher.admission.n_requests == 2
    gate.open()
    lone.finish(first, other)
    lone.settle()
    assert lone.tokenizer.seen == ["first", "other"]
    assert late.read_threads == []


def test_a_deadline_ends_a_job_that_runs(lone: Rig) -> None:
    """A running job is answered at its deadline; its slot stays taken until the worker is done."""
    gate = lone.tokenizer.gate("slow")
    job = lone.submit("slow")
    gate.wait_entered()
    job.deadline_ns = 1
    lone.dispatcher.sweep()
    lone.dispatcher.sweep()
    assert job.ending.answer == "DeadlineExceeded"
    assert lone.dispatcher.n_in_flight == lone.dispatcher.admission.n_requests == 1
    gate.open()
    lone.settle()
    assert job.ending.answer == "DeadlineExceeded"
    assert isinstance(job.ending.error, DeadlineExceeded)


def test_a_job_that_comes_after_the_end(lone: Rig) -> None:
    """It is told so, and gives its slot back."""
    lone.dispatcher.close()
    job = lone.submit("late")
    lone.finish(job)
    assert isinstance(job.ending.error, DispatcherClosed)
    assert lone.tokenizer.seen == []
    lone.settle()
    assert lone.dispatcher.n_in_flight == lone.dispatcher.admission.n_requests == 0


def test_a_deadline_passed_at_the_start_of_work(lone: Rig) -> None:
    """A worker does not begin what is already too late."""
    job = lone.submit("late", deadline_ns=1)
    lone.finish(job)
    assert job.ending.answer == "DeadlineExceeded"
    assert lone.tokenizer.seen == []


def test_a_deadline_answer_that_breaks_harms_no_other(lone: Rig) -> None:
    """`sweep` answers the others when one `fail` raises."""
    gate = lone.tokenizer.gate("first")
    first = lone.submit("first")
    gate.wait_entered()
    late = [lone.submit(str(i), deadline_ns=1) for i in range(4)]

    def broken(_: object) -> None:
        raise RuntimeError(MARKER)

    late[1].fail = broken
    lone.dispatcher.sweep()
    assert [job.ending.answer for job in late] == ["DeadlineExceeded", None, "DeadlineExceeded", "DeadlineExceeded"]
    gate.open()
    lone.finish(first)


def test_cancelling_a_job_that_waits(lone: Rig) -> None:
    """A queued job leaves at once, with slot, bytes and body, before any worker comes by; `on_done` is never called."""
    gate = lone.tokenizer.gate("first")
    first = lone.submit("first", body_bytes=1)
    gate.wait_entered()
    body = Gate()  # stands for the body
    alive = weakref.ref(body)
    job = lone.submit("gone", body_bytes=1000)
    job.read = lambda body=body: body  # type: ignore[misc]
    lone.dispatcher.cancel(job)
    del body
    gc.collect()
    assert alive() is None
    assert (lone.dispatcher.admission.n_requests, lone.dispatcher.admission.n_bytes) == (1, 1)
    gate.open()
    lone.finish(first)
    lone.settle()
    assert not job.ended
    assert lone.tokenizer.seen == ["first"]


def test_cancelling_a_job_that_runs(lone: Rig) -> None:
    """A running batch costs at most what is encoded at once; the slot comes back when the worker lets go."""
    one = "1" * PART_CHARS
    gate = lone.tokenizer.gate(one)
    job = lone.submit(one, "two", "three", body_bytes=LONG)
    gate.wait_entered()
    lone.dispatcher.cancel(job)
    assert lone.dispatcher.admission.n_requests == 1
    gate.open()
    lone.settle()
    assert not job.ended
    assert lone.tokenizer.seen == [one]


@pytest.mark.parametrize("end", ["finish", "sweep", "cancel"])
def test_a_job_that_ended_cannot_end_again(lone: Rig, end: str) -> None:
    """Cancelling and sweeping what already ended changes nothing, in any order."""
    job = lone.submit("x", deadline_ns=1 if end == "sweep" else 0)
    if end == "finish":
        lone.finish(job)
    elif end == "cancel":
        lone.dispatcher.cancel(job)
    n_endings = len(job.endings)
    job.deadline_ns = 1
    for _ in range(2):
        lone.dispatcher.sweep()
        lone.dispatcher.cancel(job)
    lone.settle()
    assert len(job.endings) == max(n_endings, int(end == "sweep"))


@pytest.mark.parametrize("seed", range(3))
def test_every_job_ends_once_in_any_race(seed: int) -> None:
    """Deadlines, drops and completions at random moments: each job ends once unless dropped; all slots come back."""
    rng = random.Random(seed)
    rig = Rig(4, deferred=bool(seed % 2))
    rig.tokenizer.errors["bad"] = Panic()
    kept: list[FakeJob] = []
    dropped: list[FakeJob] = []
    for _ in range(3000):
        action = rng.random()
        if action < 0.75:
            documents = [rng.choice(["a", "bb", "bad"]) for _ in range(rng.randrange(3))]
            deadline_ns = rng.choice([0, 0, time.monotonic_ns() + rng.randrange(1_000_000)])
            kept.append(rig.submit(*documents, body_bytes=rng.choice([1, LONG]), deadline_ns=deadline_ns))
        elif action < 0.85 and kept:
            job = kept[-1] if rng.random() < 0.7 else rng.choice(kept)
            if not job.ended:
                kept.remove(job)
                dropped.append(job)
                rig.dispatcher.cancel(job)
        elif action < 0.95:
            rig.loop.run_ready()
        else:
            rig.dispatcher.sweep()
    rig.settle()
    assert all(len(job.endings) == 1 for job in kept)
    assert not any(job.ended for job in dropped)
    for job in kept:
        answers: list[object] = ["DeadlineExceeded"] if job.deadline_ns else []
        answers.append("EngineFault" if "bad" in job._documents else [ids(document) for document in job._documents])
        assert job.ending.answer in answers
    rig.close()


def test_deadlines_help_jobs_behind_a_stuck_worker(rig: Rig) -> None:
    """A short job that takes long does not hold up the others while workers are idle: `sweep` notices."""
    gate = rig.tokenizer.gate("stuck")
    stuck = rig.submit("stuck")
    gate.wait_entered()
    job = rig.submit("x")
    for _ in range(2):
        rig.dispatcher.sweep()
    rig.finish(job)
    assert not stuck.ended


def test_close_leaves_a_stuck_document_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    """A document that takes too long does not hold up the end of the process."""
    monkeypatch.setattr("dispatcher.dispatcher.CLOSE_S", 0.05)
    rig = Rig(1)
    gate = rig.tokenizer.gate("stuck")
    rig.submit("stuck")
    gate.wait_entered()
    closed = threading.Event()

    def close() -> None:
        rig.dispatcher.close()
        closed.set()

    threading.Thread(target=close).start()
    assert closed.wait(LIMIT_S)
    gate.open()
