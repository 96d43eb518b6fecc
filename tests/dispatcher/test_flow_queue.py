"""The flow queue: order while it is short, fairness by CPU time when it is long."""

from __future__ import annotations

import random
from collections import Counter

from dispatcher.admission import Admission, Slot
from dispatcher.flow_queue import FAIR_JOBS, MAX_IDLE_FLOWS, FlowQueue
from dispatcher.job import Job
from dispatcher.options import DispatcherOptions
from tests.fakes import FakeJob, FakeTokenizer

TOKENIZER = FakeTokenizer()
ADMISSION = Admission(DispatcherOptions())


def job(flow: str, n_bytes: int = 1) -> Job[str]:
    """A job of a flow."""
    made = FakeJob(TOKENIZER, "x", slot=Slot(ADMISSION, n_bytes))
    made.flow = flow
    return made


def drain(queue: FlowQueue[Job[str]], costs: dict[str, float], n: int) -> list[str]:
    """Take jobs one after the other, each flow's at its own cost; whose they were."""
    taken = []
    for _ in range(n):
        head = queue.head()
        assert head is queue.popleft()
        queue.charge(head.flow, costs[head.flow])
        taken.append(head.flow)
    return taken


def test_a_short_queue_is_first_in_first_out() -> None:
    """Up to its bound, whatever the flows are."""
    queue: FlowQueue[Job[str]] = FlowQueue()
    jobs = [job(random.Random(i).choice("abc")) for i in range(FAIR_JOBS)]
    for one in jobs:
        queue.append(one)
    assert not queue.is_fair
    assert [queue.popleft() for _ in jobs] == jobs
    assert queue.head() is None
    assert len(queue) == 0


def test_a_quick_flow_passes_a_slow_one() -> None:
    """Hundreds of slow jobs are ahead: behind the first ones, quick jobs wait for one of them each, not for all."""
    queue: FlowQueue[Job[str]] = FlowQueue()
    for _ in range(500):
        queue.append(job("slow"))
    for _ in range(20):
        queue.append(job("quick"))
    taken = drain(queue, {"slow": 1e8, "quick": 1e4}, FAIR_JOBS + 25)
    assert taken[:FAIR_JOBS] == ["slow"] * FAIR_JOBS
    assert Counter(taken[FAIR_JOBS:])["quick"] == 20


def test_flows_get_equal_time() -> None:
    """Of three flows with jobs of different costs each uses a third of the time while all of them wait."""
    queue: FlowQueue[Job[str]] = FlowQueue()
    costs = {"a": 1e5, "b": 3e5, "c": 1e6}
    for flow in "abc":
        for _ in range(3000):
            queue.append(job(flow))
    drain(queue, costs, FAIR_JOBS)
    counts = Counter(drain(queue, costs, 1400))
    used = [counts[flow] * cost for flow, cost in costs.items()]
    assert max(used) / min(used) < 1.1


def test_order_within_a_flow_is_kept() -> None:
    """Every job comes out once, and those of one flow in their order."""
    rng = random.Random(3)
    queue: FlowQueue[Job[str]] = FlowQueue()
    put: dict[str, list[Job[str]]] = {flow: [] for flow in "abcd"}
    out: dict[str, list[Job[str]]] = {flow: [] for flow in "abcd"}
    for _ in range(5000):
        if rng.random() < 0.55:
            one = job(rng.choice("abcd"), rng.randrange(5000))
            put[one.flow].append(one)
            queue.append(one)
        elif len(queue):
            one = queue.popleft()
            out[one.flow].append(one)
            queue.charge(rng.choice("abcd"), rng.random() * 1e6)
        assert len(queue) == sum(map(len, put.values())) - sum(map(len, out.values()))
    while len(queue):
        one = queue.popleft()
        out[one.flow].append(one)
    for flow in "abcd":
        first = [one for one in put[flow] if one in out[flow]]
        assert first == put[flow]
        assert Counter(map(id, out[flow])) == Counter(map(id, put[flow]))


def test_idle_time_is_not_saved_up() -> None:
    """A flow that comes back after a long time has no right to all the time that it did not use."""
    queue: FlowQueue[Job[str]] = FlowQueue()
    for _ in range(FAIR_JOBS + 400):
        queue.append(job("a"))
    drain(queue, {"a": 1e6}, FAIR_JOBS + 200)
    for _ in range(100):
        queue.append(job("b"))
    counts = Counter(drain(queue, {"a": 1e6, "b": 1e6}, 100))
    assert abs(counts["a"] - counts["b"]) <= 2


def test_flows_that_are_gone_are_forgotten() -> None:
    """Under a load that never ends, with ever new clients, what is remembered stays bounded."""
    queue: FlowQueue[Job[str]] = FlowQueue()
    for _ in range(FAIR_JOBS + 10):
        queue.append(job("steady"))
    for i in range(5 * MAX_IDLE_FLOWS):
        queue.append(job(f"client {i}"))
        one = queue.popleft()
        queue.charge(one.flow, 100.0)
    assert len(queue._used) <= len(queue._flows) + MAX_IDLE_FLOWS + 1
