"""Counters: bucket edges, sums over threads, CPU clocks of threads."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time

import pytest

from dispatcher.meter import DURATION_BUCKETS_S, Histogram, ThreadClocks, WorkerTally, WorkKey, total
from tests.fakes import LIMIT_S, Gate


def test_buckets_go_from_10_us_to_10_s() -> None:
    """The bounds grow, from 10 us to 10 s."""
    assert list(DURATION_BUCKETS_S) == sorted(set(DURATION_BUCKETS_S))
    assert (DURATION_BUCKETS_S[0], DURATION_BUCKETS_S[-1]) == (1e-5, 10.0)


@pytest.mark.parametrize("index", range(len(DURATION_BUCKETS_S)))
def test_a_bound_belongs_to_its_bucket(index: int) -> None:
    """Bounds are inclusive, as Prometheus' `le` says; anything above is in the next bucket."""
    bound = DURATION_BUCKETS_S[index]
    histogram = Histogram()
    histogram.observe(bound)
    histogram.observe(bound * (1 + 1e-12))
    assert histogram.counts[index] == 1
    assert histogram.counts[index + 1] == 1
    assert histogram.n == 2


@pytest.mark.parametrize(("seconds", "bucket"), [(0.0, 0), (1e-9, 0), (10.1, -1), (1e9, -1)])
def test_the_ends_are_open(seconds: float, bucket: int) -> None:
    """Nothing is too short or too long to be counted."""
    histogram = Histogram()
    histogram.observe(seconds)
    assert histogram.counts[bucket] == 1
    assert histogram.sum_s == seconds


def test_histograms_add_up() -> None:
    """`add` sums counts and durations and leaves the other as it was."""
    a, b = Histogram(), Histogram()
    a.observe(0.001)
    b.observe(0.001)
    b.observe(3.0)
    a.add(b)
    assert a.n == 3
    assert a.sum_s == pytest.approx(3.002)
    assert b.n == 2


def test_tallies_add_up_by_label() -> None:
    """The total has one row for each model and route that any worker counted."""
    first, second = WorkerTally(), WorkerTally()
    first.row("a", "cpu").n_tokens += 3
    first.row("a", "cpu").encode_cpu_ns += 10
    second.row("a", "cpu").n_tokens += 4
    second.row("b", "gpu").n_documents += 1
    first.queue_of("cpu").observe(0.5)
    second.queue_of("cpu").observe(0.25)
    result = total([first, second])
    assert set(result.work) == {WorkKey("a", "cpu"), WorkKey("b", "gpu")}
    assert (result.work[WorkKey("a", "cpu")].n_tokens, result.work[WorkKey("a", "cpu")].encode_cpu_ns) == (7, 10)
    assert result.queue["cpu"].n == 2
    assert first.work[WorkKey("a", "cpu")].n_tokens == 3


def test_a_total_is_safe_while_a_worker_counts() -> None:
    """Summing while the owner adds rows and counts raises nothing and never runs backwards."""
    tally = WorkerTally()
    done = threading.Event()

    def count() -> None:
        for i in range(20_000):
            tally.row(f"model-{i % 500}", "cpu").n_tokens += 1
            tally.queue_of("cpu").observe(1e-4)
        done.set()

    thread = threading.Thread(target=count)
    thread.start()
    last = 0
    while not done.is_set():
        now = sum(work.n_tokens for work in total([tally]).work.values())
        assert now >= last
        last = now
    thread.join(LIMIT_S)
    assert sum(work.n_tokens for work in total([tally]).work.values()) == 20_000
    assert total([tally]).queue["cpu"].n == 20_000


def burn(cpu_s: float) -> None:
    """Use this much CPU on the calling thread."""
    end_s = time.thread_time() + cpu_s
    while time.thread_time() < end_s:
        pass


def test_clocks_tell_the_threads_apart() -> None:
    """CPU time counts for the thread that used it, from its registration on, and can be read from another thread."""
    clocks = ThreadClocks()
    leave = Gate()
    clock_ns: list[int] = []

    def work() -> None:
        burn(0.02)
        clock_ns.append(time.thread_time_ns())
        clocks.register("busy")
        burn(0.05)
        leave.go_through()
        clock_ns.append(time.thread_time_ns())

    thread = threading.Thread(target=work)
    thread.start()
    before_ns = time.thread_time_ns()
    clocks.register("here")
    leave.wait_entered()
    seen = clocks.snapshot()
    here_ns = time.thread_time_ns() - before_ns
    leave.open()
    thread.join(LIMIT_S)
    before_ns, after_ns = clock_ns
    assert before_ns >= 0.02e9
    assert 0.05e9 <= seen["busy"] <= after_ns - before_ns
    assert 0 <= seen["here"] <= here_ns


def test_a_thread_may_be_registered_by_another() -> None:
    """A started thread can be registered from outside; one that never ran cannot."""
    clocks = ThreadClocks()
    gate = Gate()
    thread = threading.Thread(target=gate.go_through)
    with pytest.raises(RuntimeError):
        clocks.register("late", thread)
    thread.start()
    clocks.register("late", thread)
    assert "late" in clocks.snapshot()
    gate.open()
    thread.join(LIMIT_S)


def test_what_an_ended_thread_used_stays_counted() -> None:
    """A counter never runs backwards: the time of a thread that ended stays as it was last seen."""
    clocks = ThreadClocks()
    gate, seen = Gate(), threading.Event()

    def work() -> None:
        clocks.register("load")
        burn(0.02)
        seen.set()
        gate.go_through()

    thread = threading.Thread(target=work)
    thread.start()
    assert seen.wait(LIMIT_S)
    before = clocks.snapshot()["load"]
    gate.open()
    thread.join(LIMIT_S)
    assert clocks.snapshot()["load"] >= before >= 0.02e9


def test_counting_sees_all_of_a_thread_that_ends() -> None:
    """Nobody has to look while the thread lives."""
    clocks = ThreadClocks()

    def work() -> None:
        with clocks.counting("load"):
            burn(0.02)

    for _ in range(2):
        thread = threading.Thread(target=work)
        thread.start()
        thread.join(LIMIT_S)
    assert clocks.snapshot()["load"] >= 0.04e9


def test_a_part_may_be_registered_again() -> None:
    """Several threads of one part, one after the other, add up."""
    clocks = ThreadClocks()

    def work() -> None:
        clocks.register("load")
        burn(0.02)
        clocks.snapshot()

    for _ in range(2):
        thread = threading.Thread(target=work)
        thread.start()
        thread.join(LIMIT_S)
    assert clocks.snapshot()["load"] >= 0.04e9


def test_what_ended_is_a_sum() -> None:
    """Models may come and go for years: nothing is kept of a thread but its time."""
    clocks = ThreadClocks()
    used_ns: list[int] = []

    def work() -> None:
        with clocks.counting("load"):
            burn(0.001)
        used_ns.append(clocks._clocks[-1].used_ns)

    for _ in range(20):
        thread = threading.Thread(target=work)
        thread.start()
        thread.join(LIMIT_S)
        assert len(clocks._clocks) == 1
    assert clocks.snapshot() == {"load": sum(used_ns)}


def test_the_clock_of_a_process() -> None:
    """All that it uses, from its start to its end, which may be read before somebody waits for it; then it stands."""
    clocks = ThreadClocks()
    program = "import time\nwhile time.process_time() < 0.2: pass"
    with subprocess.Popen([sys.executable, "-c", program]) as process:
        clock = clocks.register_process("other", process.pid)
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        clock.end()
    used_ns = clocks.snapshot()["other"]
    assert used_ns >= 200_000_000
    assert clocks.snapshot() == {"other": used_ns}
