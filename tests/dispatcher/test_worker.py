"""A worker: its rounds, what it hands over, and how it shares out what a round cost."""

from __future__ import annotations

import gc
import queue
import time
import weakref
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from dispatcher.admission import Admission
from dispatcher.failures import failed, named, where
from dispatcher.gpu_set import NoGpus
from dispatcher.job import Job
from dispatcher.meter import ThreadClocks
from dispatcher.options import DispatcherOptions
from dispatcher.request import EncodedDocument, EncodeOptions
from dispatcher.router import Router
from dispatcher.shadow import ShadowCheck
from dispatcher.work_queue import WorkQueue
from dispatcher.worker import PART_CHARS, Worker
from tests.fakes import LIMIT_S, FakeJob, FakeTokenizer, Panic

MARKER = "the-secret-text"


class Bench:
    """One worker whose rounds the test decides: jobs that are put together are one round."""

    def __init__(self, shadow: float = 0.0) -> None:
        self.queue = WorkQueue()
        self.tokenizer = FakeTokenizer()
        self.handed_over: queue.SimpleQueue[list[Job[Any]]] = queue.SimpleQueue()
        self.shadow = ShadowCheck(shadow, ThreadClocks())
        self._slots = Admission(DispatcherOptions(max_in_flight=1_000_000))
        router = Router("cpu", NoGpus(), self.queue, self._deliver, self.shadow, 1)
        self.worker = Worker(self.queue, self._deliver, self.shadow, "sidetok-worker-0", router)
        self.worker.start()

    def job(self, *documents: str, tokenizer: FakeTokenizer | None = None, n_bytes: int = 1, **more: Any) -> FakeJob:
        """A job with a body of this size."""
        return FakeJob(tokenizer or self.tokenizer, *documents, slot=self._slots.admit(n_bytes), **more)

    def round(self, *jobs: FakeJob) -> list[Job[Any]]:
        """Run these jobs as one round; what was handed over."""
        self.queue.put(jobs)
        return self.handed_over.get(timeout=LIMIT_S)

    def close(self) -> None:
        """End the thread."""
        self.queue.close()
        self.worker.join(LIMIT_S)
        self.shadow.close()

    def _deliver(self, jobs: Sequence[Job[Any]]) -> None:
        self.handed_over.put(list(jobs))


@pytest.fixture
def bench() -> Iterator[Bench]:
    """A worker without work."""
    bench = Bench()
    yield bench
    bench.close()


class CountedTokenizer(FakeTokenizer):
    """Counts calls."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[list[str]] = []

    def encode(self, documents: Sequence[str], options: EncodeOptions) -> list[EncodedDocument]:
        """See `Tokenizer`."""
        self.calls.append(list(documents))
        return super().encode(documents, options)


def test_a_round_is_one_call(bench: Bench) -> None:
    """Short requests with one tokenizer and equal options are encoded together, and handed over together."""
    tokenizer = CountedTokenizer()
    jobs = [bench.job(*documents, tokenizer=tokenizer) for documents in (["a"], [], ["b", "c"])]
    assert bench.round(*jobs) == jobs
    assert tokenizer.calls == [["a", "b", "c"]]
    assert [job.answer for job in jobs] == [[[97]], [], [[98], [99]]]


def test_a_round_that_fails_is_taken_apart(bench: Bench) -> None:
    """When the common call fails each request goes alone."""
    tokenizer = CountedTokenizer()
    tokenizer.errors["bad"] = Panic()
    jobs = [bench.job(document, tokenizer=tokenizer) for document in ("a", "bad", "b")]
    bench.round(*jobs)
    assert tokenizer.calls == [["a", "bad", "b"], ["a"], ["bad"], ["b"]]
    assert [job.answer for job in jobs] == [[[97]], "EngineFault", [[98]]]


def test_requests_that_differ_go_alone(bench: Bench) -> None:
    """Another tokenizer or other options cannot be answered by the same call."""
    tokenizer = CountedTokenizer()
    jobs = [
        bench.job("ab", tokenizer=tokenizer),
        bench.job("ab", tokenizer=tokenizer, options=EncodeOptions(max_tokens=1)),
    ]
    bench.round(*jobs)
    assert tokenizer.calls == [["ab"], ["ab"]]
    assert [job.answer for job in jobs] == [[[97, 98]], [[97]]]


def test_jobs_that_somebody_else_took_are_left_alone(bench: Bench) -> None:
    """A job that was dropped while it waited is neither run nor handed over."""
    jobs = [bench.job(document) for document in "abc"]
    assert jobs[1].claim()
    assert bench.round(*jobs) == [jobs[0], jobs[2]]
    assert bench.tokenizer.seen == ["a", "c"]


def test_a_long_batch_is_left_between_parts(bench: Bench) -> None:
    """A long batch is encoded a little at a time, and stops when nobody wants it any more."""
    first = "a" * PART_CHARS
    gate = bench.tokenizer.gate(first)
    job = bench.job(first, "b", "c", n_bytes=1 << 20)
    bench.queue.put([job])
    gate.wait_entered()
    job.abandoned = True
    gate.open()
    assert bench.handed_over.get(timeout=LIMIT_S) == [job]
    assert bench.tokenizer.seen == [first]
    assert type(job.error).__name__ == "Cancelled"


def test_documents_of_a_long_batch_share_calls(bench: Bench) -> None:
    """As many as a part may hold go together, in order; a larger one goes alone."""
    tokenizer = CountedTokenizer()
    half, huge = "h" * (PART_CHARS // 2), "x" * (2 * PART_CHARS)
    job = bench.job("a", half, half, "b", huge, "c", "d", tokenizer=tokenizer, n_bytes=1 << 20)
    bench.round(job)
    assert tokenizer.calls == [["a", half], [half, "b"], [huge], ["c", "d"]]
    assert job.answer is not None
    assert len(job.answer) == 7


def test_cpu_time_is_shared_by_model(bench: Bench) -> None:
    """What a round cost goes to the models of its jobs, in proportion; nothing is lost."""

    clock_ns: list[int] = []

    def slow_read(job: FakeJob) -> None:
        read, write = job.read, job.write

        def spin() -> Any:
            end_s = time.thread_time() + 0.02
            while time.thread_time() < end_s:
                pass
            return read()

        def clocked(*arguments: Any) -> Any:
            clock_ns.append(time.thread_time_ns())
            return write(*arguments)

        job.read, job.write = spin, clocked

    jobs = [bench.job("a", model="one"), bench.job("b", model="one"), bench.job("c", model="one")]
    jobs.append(bench.job("d", model="two"))
    slow_read(jobs[0])
    slow_read(jobs[1])
    bench.round(*jobs)
    bench.close()
    work = {key.model: row.decode_body_cpu_ns for key, row in bench.worker.tally.work.items()}
    assert work["one"] / work["two"] == pytest.approx(3, rel=0.01)
    # All that the thread had used before it wrote.
    assert 0.04e9 <= work["one"] + work["two"] <= clock_ns[0]
    assert bench.worker.tally.queue["cpu"].n == 4


def test_answers_are_offered_to_the_shadow_check() -> None:
    """Encoded requests are offered, failed ones are not."""
    bench = Bench(shadow=1.0)
    bench.tokenizer.errors["bad"] = Panic()
    bench.round(bench.job("a"), bench.job("bad"), bench.job("b"))
    counts = bench.shadow.counts
    limit_s = time.monotonic() + LIMIT_S
    while not counts or counts["fake"].n_equal < 2:
        assert time.monotonic() < limit_s
        time.sleep(0.001)
    assert counts["fake"].n_mismatched + counts["fake"].n_dropped == 0
    bench.close()


def test_failures_are_named_without_their_text(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    """`named` keeps errors of ours, and tells of others by type and place; `failed` survives an answer that breaks."""
    job = bench.job("a")
    with pytest.raises(ValueError, match=MARKER) as raised:
        raise ValueError(MARKER)
    assert where(raised.value).split(":")[0] == __file__
    ours = named(raised.value, job)
    assert MARKER not in str(ours)
    assert named(ours, job) is ours
    assert failed(job, ours) == "EngineFault"

    def broken(_: object) -> None:
        raise Panic(MARKER)

    job.fail = broken
    assert failed(job, ours) is None
    assert where(ValueError()) == "unknown"
    assert MARKER not in str([vars(record) for record in caplog.records])


def test_a_worker_that_sleeps_holds_nothing(bench: Bench) -> None:
    """A text and a tokenizer are free once they are answered, not when the worker has its next round."""
    tokenizer = FakeTokenizer()
    seen = weakref.ref(tokenizer)
    assert len(bench.round(bench.job("a", tokenizer=tokenizer))) == 1
    del tokenizer
    until_s = time.monotonic() + LIMIT_S
    while seen() is not None:
        assert time.monotonic() < until_s
        # A job of a test is a cycle.
        gc.collect()
