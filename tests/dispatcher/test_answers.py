"""Answers that workers give themselves: each request is answered once, and the loop is left asleep."""

from __future__ import annotations

import threading
from typing import Any

from dispatcher.errors import DeadlineExceeded
from dispatcher.job import Job
from tests.dispatcher.crew import until
from tests.fakes import LIMIT_S, FakeJob
from tests.rig import LONG, Rig, ids


class Client:
    """Takes answers from workers."""

    def __init__(self, rig: Rig) -> None:
        self._rig = rig
        self.answers: list[Any] = []
        self.may_begin, self.asked, self.may_go_on, self.was_told = (threading.Event() for _ in range(4))
        self.may_begin.set()
        self.may_go_on.set()

    def send(self, job: Job[Any]) -> None:
        """Take an answer, if it is still to be given."""
        self.asked.set()
        assert self.may_begin.wait(LIMIT_S)
        if self._rig.dispatcher.begin_answer(job):
            self.answers.append(job.answer)
            assert self.may_go_on.wait(LIMIT_S)
        self.was_told.set()

    def ask(self, *documents: str, **more: Any) -> FakeJob:
        """Submit a job."""
        return self._rig.submit(*documents, send=self.send, **more)


def test_the_loop_is_not_woken(lone: Rig) -> None:
    """`on_done` is called when the loop is up anyway: once, with the same answer."""
    client = Client(lone)
    for number in range(3):
        job = client.ask("ab")
        assert client.was_told.wait(LIMIT_S)
        client.was_told.clear()
        until(lambda: lone.dispatcher.has_news)
        assert not job.ended
        lone.dispatcher.deliver()
        assert job.ending.answer == client.answers[number] == [ids("ab")]
        assert job.ending.error is None
    until(lambda: bool(lone.dispatcher._done) or not lone.dispatcher.n_in_flight)
    lone.dispatcher.deliver()
    assert lone.loop.n_wakes == 0
    assert lone.dispatcher.n_in_flight == lone.dispatcher.admission.n_requests == 0
    assert not lone.dispatcher.has_news


def test_a_sweep_ends_what_was_answered(lone: Rig) -> None:
    """It gives the slot back, too."""
    client = Client(lone)
    job = client.ask("ab")
    until(lambda: bool(lone.dispatcher._done))
    lone.dispatcher.sweep()
    assert job.ending.answer == [ids("ab")]
    assert lone.dispatcher.admission.n_requests == 0


def test_who_is_answered_is_not_too_late(lone: Rig) -> None:
    """A deadline that passes while a worker sends changes nothing."""
    client = Client(lone)
    client.may_go_on.clear()
    job = client.ask("ab")
    until(lambda: lone.dispatcher.has_news)
    job.deadline_ns = 1
    for _ in range(2):
        lone.dispatcher.sweep()
    assert job.ending.answer == [ids("ab")]
    assert job.ending.error is None
    client.may_go_on.set()
    until(lambda: bool(lone.dispatcher._done))
    lone.dispatcher.sweep()
    assert lone.dispatcher.n_in_flight == 0
    assert len(client.answers) == 1


def test_who_is_answered_finds_the_slot_free(lone: Rig) -> None:
    """A client with its answer in its hands is not refused for what it held; and that is given back once."""
    client, admission = Client(lone), lone.dispatcher.admission
    client.may_go_on.clear()
    client.ask("ab")
    until(lambda: lone.dispatcher.has_news)
    assert admission.n_requests == 1
    lone.dispatcher.deliver()
    assert (admission.n_requests, admission.n_bytes, lone.dispatcher.n_in_flight) == (0, 0, 0)
    client.may_go_on.set()
    until(lambda: bool(lone.dispatcher._done))
    lone.dispatcher.deliver()
    assert (admission.n_requests, admission.n_bytes, lone.dispatcher.n_in_flight) == (0, 0, 0)


def test_who_is_too_late_is_not_answered(lone: Rig) -> None:
    """A worker that comes behind the deadline has nothing to say."""
    client = Client(lone)
    client.may_begin.clear()
    job = client.ask("ab")
    assert client.asked.wait(LIMIT_S)
    job.deadline_ns = 1
    lone.dispatcher.sweep()
    assert isinstance(job.ending.error, DeadlineExceeded)
    client.may_begin.set()
    lone.settle()
    assert client.answers == []
    assert job.ending.answer == "DeadlineExceeded"


def test_what_shares_a_round_is_left_to_the_loop(lone: Rig) -> None:
    """The loop hands many answers over at once; so does it those of jobs that failed."""
    client, gate = Client(lone), lone.tokenizer.gate("first")
    first = lone.submit("first")
    gate.wait_entered()
    jobs = [client.ask(document) for document in ("a", "b")]
    gate.open()
    lone.finish(first, *jobs)
    lone.tokenizer.errors["bad"] = ValueError()
    bad = client.ask("bad")
    lone.finish(bad)
    assert [job.ending.answer for job in jobs] == [[ids("a")], [ids("b")]]
    assert client.answers == []
    assert bad.ending.answer == "EngineFault"


def test_idle_is_who_has_nothing_left_to_answer(lone: Rig) -> None:
    """A job that was answered and not counted yet is none; two of them are a queue."""
    client, gate = Client(lone), lone.tokenizer.gate("hold")
    assert lone.dispatcher.is_idle
    client.ask("ab")
    until(lambda: bool(client.answers))
    assert lone.dispatcher.is_idle
    lone.submit("hold")
    gate.wait_entered()
    assert not lone.dispatcher.is_idle
    lone.dispatcher.deliver()
    assert not lone.dispatcher.is_idle
    gate.open()
    lone.settle()
    assert lone.dispatcher.is_idle


def test_who_sends_a_long_answer_is_about_to_be_free(lone: Rig) -> None:
    """The queue takes the worker to be at its long job no more, once, before the client can be back."""
    client = Client(lone)
    client.may_go_on.clear()
    client.ask("ab", body_bytes=LONG)
    until(lambda: lone.dispatcher.has_news)
    assert (lone.dispatcher._queue._n_long, lone.dispatcher.n_huge_finished) == (0, 1)
    client.may_go_on.set()
    until(lambda: bool(lone.dispatcher._done))
    lone.dispatcher.deliver()
    lone.finish(lone.submit("after"))
    assert (lone.dispatcher._queue._n_long, lone.dispatcher.n_huge_finished) == (0, 1)
