"""Both routes joined: every job is answered once and exactly, whatever the GPU does."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from dispatcher.costs import CostKey, Line, StartValues, size_class
from dispatcher.errors import Cancelled, EngineFault, InvalidOption, NoGpuRoute
from dispatcher.gpu.batch import RouteLimits
from dispatcher.gpu.fake_link import FakeEngine
from dispatcher.gpu.group import Group
from dispatcher.gpu.route import GpuRoute
from dispatcher.meter import WorkKey
from dispatcher.request import EncodeOptions, EncodeRequest, Request, Result
from dispatcher.router import WRITE_BYTES
from tests.fakes import LIMIT_S, DecodeJob, FakeJob, FakeTokenizer, submit
from tests.gpu_rig import GPU_OFFSET, KEY, GpuRig, code_points

SLOW_NS = 3_600_000_000_000


@pytest.fixture
def rig() -> Iterator[GpuRig]:
    """Two workers and a GPU, which is preferred."""
    rig = GpuRig()
    rig.gpus.start()
    yield rig
    rig.close()


def ids(*documents: str) -> list[list[int]]:
    """What both routes make of documents."""
    return [[ord(c) for c in document] for document in documents]


class BrokenRoute:
    """Has a queue, and fails when something is put into it."""

    def __init__(self, route: GpuRoute) -> None:
        self.load = route.load

    def submit(self, group: Group) -> None:
        """Fail."""
        raise RuntimeError


def until(rig: GpuRig, happened: Callable[[], bool]) -> None:
    """Let other threads, and the loop, go on until something happened."""
    limit_s = time.monotonic() + LIMIT_S
    while not happened():
        assert time.monotonic() < limit_s, "what the test waits for did not happen"
        rig.loop.run_ready()
        threading.Event().wait(0.0005)


def test_a_job_is_answered_by_the_gpu(rig: GpuRig) -> None:
    """Its ids come from there, no engine of the CPU sees it, and it is counted for that route."""
    jobs = [rig.submit("abc"), rig.submit("d", "", "ef\u00e9"), rig.submit("x", options=EncodeOptions(count_only=True))]
    rig.finish(*jobs)
    assert [job.ending.answer for job in jobs] == [ids("abc"), ids("d", "", "ef\u00e9"), [[]]]
    assert rig.tokenizer.seen == []
    assert {job.route for job in jobs} == {"gpu"}
    row = rig.dispatcher.snapshot().work[WorkKey("fake", "gpu")]
    assert (row.n_documents, row.n_tokens, row.n_bytes) == (5, 8, 8)
    assert row.write_answer_cpu_ns > 0
    # A worker counts what it handed over when it is done with its round, which may be after the answer.
    until(rig, lambda: rig.dispatcher.snapshot().work[WorkKey("fake", "gpu")].submit_cpu_ns > 0)
    rig.settle()


def test_results_are_finished_as_on_the_cpu_route(rig: GpuRig) -> None:
    """Truncation and counting are those of the request."""
    for options, expected in (
        (EncodeOptions(max_tokens=2), ids("ab")),
        (EncodeOptions(max_tokens=2, truncation_side="left"), ids("cd")),
        (EncodeOptions(max_tokens=9), ids("abcd")),
    ):
        job = rig.submit("abcd", options=options)
        rig.finish(job)
        assert job.ending.answer == expected
    assert rig.tokenizer.seen == []


def test_only_documents_that_the_gpu_does_not_answer_take_the_cpu_route() -> None:
    """They are encoded by a worker, and the results come in the order of the request; other jobs do not wait."""
    rig = GpuRig()
    rig.gpus.start(
        encode=lambda document: code_points(document) + GPU_OFFSET,
        needs_cpu=lambda document: "hard" if b"!" in document else None,
    )
    mixed, easy, hard = rig.submit("ab", "c!", "d", "!"), rig.submit("e"), rig.submit("!!")
    rig.finish(mixed, easy, hard)
    ab, hard_c, d, hard_only = ids("ab", "c!", "d", "!")
    shifted = [[i + GPU_OFFSET for i in row] for row in (ab, d)]
    assert mixed.ending.answer == [shifted[0], hard_c, shifted[1], hard_only]
    assert hard.ending.answer == ids("!!")
    assert sorted(rig.tokenizer.seen) == ["!", "!!", "c!"]
    assert (mixed.route, hard.route) == ("gpu", "cpu")
    rig.settle()
    rig.close()


def test_what_takes_the_cpu_route(rig: GpuRig) -> None:
    """Decoding, offsets, requests that ask for it, and what is no text for a GPU."""
    jobs = [
        rig.submit("ab", options=EncodeOptions(char_offsets=True)),
        rig.submit("cd", route="cpu"),
        rig.submit("e\ud800"),
        rig.submit(),
    ]
    decode = DecodeJob(rig.tokenizer, "zz", slot=rig.dispatcher.admission.admit(2))
    rig.dispatcher.submit(decode)
    rig.finish(*jobs, decode)
    assert [job.ending.answer for job in jobs] == [ids("ab"), ids("cd"), ids("e\ud800"), []]
    assert decode.ending.answer == ["zz"]
    assert {job.route for job in (*jobs, decode)} == {"cpu"}
    assert not rig.gpus.engines[0] or not rig.gpus.engines[0].launches


def test_a_request_may_insist_on_the_gpu() -> None:
    """Without an engine it is refused and told why, and so is what a GPU never answers; other requests are served."""
    rig = GpuRig(policy="adaptive")
    refused, served = rig.submit("ab", route="gpu"), rig.submit("ab")
    rig.finish(refused, served)
    assert isinstance(refused.ending.error, NoGpuRoute)
    assert "scripted" in str(refused.ending.error)
    assert served.ending.answer == ids("ab")
    rig.gpus.start()
    insisting = [rig.submit("c", route="gpu"), rig.submit("d", route="gpu", options=EncodeOptions(byte_offsets=True))]
    rig.finish(*insisting)
    assert (insisting[0].ending.answer, insisting[0].route) == (ids("c"), "gpu")
    assert isinstance(insisting[1].ending.error, InvalidOption)
    rig.settle()
    rig.close()


@pytest.mark.parametrize("hung", [False, True])
def test_a_lost_engine_loses_no_job(hung: bool) -> None:
    """What is queued and in flight is answered by the CPU route, once; later jobs go there at once."""
    limits = RouteLimits(silent_after_s=0.2) if hung else None
    rig = GpuRig(limits=limits)
    engine = rig.gpus.start(replay_ns=lambda n_bytes, n_documents: SLOW_NS)
    engine.is_hung = hung
    jobs = [rig.submit(f"a{i}", body_bytes=20_000 if i % 3 else 2) for i in range(40)]
    until(rig, lambda: bool(engine.launches))
    if not hung:
        engine.lose()
    rig.finish(*jobs)
    assert [job.ending.answer for job in jobs] == [ids(f"a{i}") for i in range(40)]
    later = rig.submit("later")
    rig.finish(later)
    assert later.route == "cpu"
    rig.settle()
    rig.close()


def test_an_engine_that_comes_back_is_used_again(rig: GpuRig) -> None:
    """After a loss the next engine serves."""
    engine = rig.gpus.engines[0]
    assert engine is not None
    engine.lose()
    rig.finish(rig.submit("a"))
    until(rig, rig.gpus.is_down)
    rig.gpus.start()
    job = rig.submit("b")
    rig.finish(job)
    assert job.route == "gpu"


def test_a_departed_client_takes_its_documents_along() -> None:
    """What waits on the GPU route leaves it; what is under way is thrown away; slots come back."""
    rig = GpuRig(limits=RouteLimits(max_in_flight=1))
    engine = rig.gpus.start(replay_ns=lambda n_bytes, n_documents: SLOW_NS)
    first = rig.submit("first", body_bytes=20_000)
    until(rig, lambda: bool(engine.launches))
    waiting = [rig.submit(f"w{i}", body_bytes=20_000) for i in range(3)]
    until(rig, lambda: all(job.group is not None for job in waiting))
    for job in (first, *waiting):
        rig.dispatcher.cancel(job)
    engine.lose()
    rig.settle()
    assert not any(job.ended for job in (first, *waiting))
    assert rig.tokenizer.seen == []
    rig.close()


def test_a_deadline_is_kept() -> None:
    """A job on the GPU route is answered when its deadline passes, and is no longer worked on."""
    rig = GpuRig()
    engine = rig.gpus.start(replay_ns=lambda n_bytes, n_documents: SLOW_NS)
    job = rig.submit("abc")
    until(rig, lambda: bool(engine.launches))
    job.deadline_ns = 1
    rig.dispatcher.sweep()
    assert job.ending.answer == "DeadlineExceeded"
    engine.lose()
    rig.settle()
    assert len(job.endings) == 1
    rig.close()


def test_large_answers_are_written_by_workers(rig: GpuRig) -> None:
    """The thread of the route writes short answers, and those whose ids the GPU listed; the ids are the same."""
    threads: list[str] = []

    def watched(job: FakeJob, lists_ids: bool) -> FakeJob:
        read, write = job.read, job.write

        def read_so() -> Request:
            request = read()
            assert isinstance(request, EncodeRequest)
            request.lists_ids = lists_ids
            return request

        def watch(request: Request, result: Result) -> Any:
            threads.append(threading.current_thread().name)
            return write(request, result)

        job.read, job.write = read_so, watch
        return job

    for n, lists_ids in ((10, False), (WRITE_BYTES + 10, False), (WRITE_BYTES + 10, True)):
        text = "\x05" * n
        job = watched(FakeJob(rig.tokenizer, text, slot=rig.dispatcher.admission.admit(n)), lists_ids)
        rig.dispatcher.submit(job)
        rig.finish(job)
        assert job.ending.answer == ids(text)
        assert job.route == "gpu"
    assert [thread.startswith("sidetok-worker") for thread in threads] == [False, True, False]
    assert rig.tokenizer.seen == []


def test_an_answer_that_breaks_harms_no_other(rig: GpuRig) -> None:
    """`write` of one job raises on the route's thread: it ends with an error, the others as they should."""
    jobs = [FakeJob(rig.tokenizer, c, slot=rig.dispatcher.admission.admit(1)) for c in "abc"]

    def broken(*_: Any) -> Any:
        raise RuntimeError

    jobs[1].write = broken
    for job in jobs:
        rig.dispatcher.submit(job)
    rig.finish(*jobs)
    assert isinstance(jobs[1].ending.error, EngineFault)
    assert [jobs[i].ending.answer for i in (0, 2)] == [ids("a"), ids("c")]
    rig.settle()


def test_a_route_that_breaks_costs_no_worker(rig: GpuRig) -> None:
    """Its jobs take the CPU route, and the worker goes on."""
    jobs = [rig.submit("a", model="broken"), rig.submit("b", route="cpu")]
    rig.finish(*jobs)
    engine = rig.gpus.engines[0]
    assert engine is not None
    broken = rig.gpus.routes[0]
    rig.gpus.routes[0] = BrokenRoute(broken)  # type: ignore[call-overload]
    bad = rig.submit("c")
    rig.finish(bad)
    assert (bad.ending.answer, bad.route) == (ids("c"), "cpu")
    rig.gpus.routes[0] = broken
    good = [rig.submit("d"), rig.submit("e", route="cpu")]
    rig.finish(*good)
    assert [job.ending.answer for job in good] == [ids("d"), ids("e")]
    rig.settle()


def test_models_and_options_are_kept_apart(rig: GpuRig) -> None:
    """Jobs of one round with different models and options get their own results."""
    other = FakeTokenizer()
    jobs = [rig.submit("abc", options=EncodeOptions(max_tokens=i % 3 + 1), model=f"m{i % 2}") for i in range(30)]
    jobs += [submit(rig.dispatcher, other, "xyz", model="other") for _ in range(5)]
    rig.finish(*jobs)
    assert [job.ending.answer for job in jobs[:30]] == [ids("abc"[: i % 3 + 1]) for i in range(30)]
    assert all(job.ending.answer == ids("xyz") for job in jobs[30:])


def test_costs_are_observed_on_both_routes() -> None:
    """Adaptive: what the CPU route costs is learned from real work, by model and kind."""
    rig = GpuRig(policy="adaptive")
    rig.gpus.start()
    for text in ("a" * 100, "\u6771" * 100):
        rig.finish(rig.submit(text, route="cpu"))
    costs = rig.gpus.costs
    assert {key[1:] for key in costs.snapshot() if key.route == "cpu"} == {(KEY, "ascii"), (KEY, "wide")}
    assert all(time and cpu for key, (time, cpu) in costs.snapshot().items() if key.route == "cpu")
    rig.close()


def test_the_way_to_the_gpu_and_back_is_observed(rig: GpuRig) -> None:
    """By size and kind, once a job was answered."""
    rig.finish(rig.submit("a" * 100))
    beside = rig.gpus.costs.of("gpu", KEY, "ascii").beside
    until(rig, lambda: beside.seen_ns[size_class(100)] > 0)
    assert beside.at(100) > 1


def test_a_worker_keeps_what_it_kept_a_moment_ago() -> None:
    """Where the CPU route is clearly faster, all jobs are answered there, and every one counts as a decision."""
    rig = GpuRig(policy="adaptive")
    rig.gpus.start()
    for route, ns in (("cpu", 1_000.0), ("gpu", 1e9)):
        rig.gpus.costs.begin(CostKey(route, KEY, "ascii"), StartValues(Line(ns, 0.0), Line(ns, 0.0)))
    for number in range(20):
        job = rig.submit("a" * 100 + str(number))
        rig.finish(job)
        assert job.route == "cpu"
    assert {key: n for key, n in rig.dispatcher.decisions().items() if n} == {("cpu", "faster"): 20}
    rig.close()


def test_every_job_is_answered_once_in_a_storm() -> None:
    """Engines die and come back, documents need the CPU, clients leave: each job that is left ends once, exactly.

    When it is over, both routes serve.
    """
    rng = random.Random(11)
    rig = GpuRig(n_workers=3, n_gpus=2, policy="adaptive", limits=RouteLimits(max_in_flight=2))

    def start(gpu: int) -> FakeEngine:
        return rig.gpus.start(
            gpu,
            replay_ns=lambda n_bytes, n_documents: 200_000 + n_bytes,
            needs_cpu=lambda document: "hard" if document.endswith(b"7") else None,
        )

    def start_those_that_died() -> list[FakeEngine]:
        return [start(gpu) for gpu in range(2) if rig.gpus.is_down(gpu)]

    for engine in start_those_that_died():
        engine.lose_after(rng.randrange(5, 60))
    jobs: list[tuple[FakeJob, list[str]]] = []
    cancelled: set[FakeJob] = set()
    for i in range(1500):
        documents = [f"{i} {k}" + "x" * rng.choice([0, 5, 300]) for k in range(rng.choice([1, 1, 1, 4]))]
        route = rng.choice(["auto", "gpu", "cpu"])
        # One that insists may find no engine.
        route = "auto" if route == "gpu" and not any(load.ready for load in rig.gpus.loads(KEY)) else route
        n_bytes = rng.choice([10, 10, 17_000, WRITE_BYTES + 1])
        job = rig.submit(*documents, route=route, body_bytes=n_bytes)
        jobs.append((job, documents))
        if rng.random() < 0.05:
            rig.dispatcher.cancel(job)
            cancelled.add(job)
        if i % 50 == 0:
            rig.loop.run_until(lambda: rig.dispatcher.n_in_flight < 50)
            for engine in start_those_that_died():
                engine.lose_after(rng.randrange(5, 60))
    rig.settle()
    for last in rig.gpus.engines:
        assert last is not None
        last.lose()
    until(rig, lambda: rig.gpus.is_down(0) and rig.gpus.is_down(1))
    start_those_that_died()
    for i in range(20):
        documents = [f"{i} is answered by the GPU"]
        jobs.append((rig.submit(*documents, route="gpu"), documents))
    rig.settle()
    for job, documents in jobs:
        if job in cancelled:
            assert not job.ended
        elif not isinstance(job.ending.error, NoGpuRoute):
            assert job.ending.answer == ids(*documents)
    assert not any(isinstance(job.error, Cancelled) for job, _ in jobs if job not in cancelled)
    routes = [job.route for job, _ in jobs]
    assert set(routes[-20:]) == {"gpu"}
    assert routes.count("cpu") > 100
    rig.close()
