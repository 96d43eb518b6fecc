"""The choice of the route, decision by decision."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest

from dispatcher.costs import ASCII, Costs, Curve, Line, RouteCost
from dispatcher.policy import (
    CPU,
    FASTER,
    GPU,
    LESS_CPU,
    NO_GPU,
    POLICY,
    TOGETHER,
    Choice,
    CpuLoad,
    GpuLoad,
    choose_route,
    gpu_choice,
    gpu_completion_ns,
)

US = 1_000
IDLE_CPU = CpuLoad(4, 4)
IDLE_GPU = GpuLoad(ready=True)
NOW_NS = 1_000_000


def cost(time_us: float, cpu_us: float, byte_ns: float = 0.0) -> RouteCost:
    """A route that takes so long, and so much host CPU, for anything."""
    time, cpu = Line(time_us * US, byte_ns), Line(cpu_us * US, byte_ns)
    return RouteCost(Curve(time), Curve(cpu), Curve(time))


def choose(cpu: RouteCost, gpu: RouteCost, *, load: CpuLoad = IDLE_CPU, gpus: tuple[GpuLoad, ...] = (IDLE_GPU,),
           n_bytes: int = 4_000, n_documents: int = 1, policy: str = "adaptive", last: str = "") -> Choice:  # fmt: skip
    """A decision with most things as usual."""
    return choose_route(n_bytes, n_documents, load, cpu, gpus, gpu, NOW_NS, policy, last)[0]


@pytest.mark.parametrize(("cpu_us", "gpu_us", "route"), [(50, 80, CPU), (80, 50, GPU), (100, 89, GPU), (89, 100, CPU)])
def test_the_faster_route_answers(cpu_us: float, gpu_us: float, route: str) -> None:
    """When they differ by more than 10 %, whatever they cost the host."""
    for host_us in (1, 1_000):
        assert choose(cost(cpu_us, 50), cost(gpu_us, host_us))[:2] == (route, FASTER)


@pytest.mark.parametrize(("cpu_us", "gpu_us"), [(100, 100), (100, 104), (104, 100)])
def test_equal_routes_save_the_host(cpu_us: float, gpu_us: float) -> None:
    """Of two that are equally fast, the one with less host CPU answers."""
    assert choose(cost(cpu_us, 100), cost(gpu_us, 20)).route == GPU
    assert choose(cost(cpu_us, 20), cost(gpu_us, 100)).route == CPU
    assert choose(cost(104, 20), cost(100, 100)).reason == LESS_CPU


def test_host_cpu_that_hardly_differs_decides_nothing() -> None:
    """Then the faster one answers."""
    assert choose(cost(103, 95), cost(100, 100))[:2] == (GPU, FASTER)


@pytest.mark.parametrize("slower_by", [1.06, 1.09])
def test_a_route_is_kept_longer_than_it_is_taken(slower_by: float) -> None:
    """Between 5 and 10 % the one that was taken last goes on, so noise does not switch to and fro."""
    cpu, gpu = cost(100, 100), cost(100 * slower_by, 20)
    assert choose(cpu, gpu, last=GPU)[:2] == (GPU, LESS_CPU)
    assert choose(cpu, gpu, last=CPU)[:2] == (CPU, FASTER)
    assert choose(gpu, cpu, last=CPU)[:2] == (CPU, LESS_CPU)
    assert choose(gpu, cpu, last=GPU)[:2] == (GPU, FASTER)


def test_nothing_slower_by_more_than_a_tenth_is_chosen() -> None:
    """Whatever was taken last and whatever it saves."""
    for last in ("", CPU, GPU):
        assert choose(cost(100, 1_000), cost(111, 1), last=last).route == CPU
        assert choose(cost(111, 1), cost(100, 1_000), last=last).route == GPU


def test_policies_and_what_is_not_ready() -> None:
    """Asked for is asked for, but without a GPU that is ready only the CPU answers."""
    fast, slow = cost(1, 1), cost(900, 900)
    assert choose(slow, fast, policy=CPU)[:2] == (CPU, POLICY)
    assert choose(fast, slow, policy=GPU) == Choice(GPU, POLICY, 0)
    for gpus in ((), (GpuLoad(),)):
        for policy in ("adaptive", GPU):
            assert choose(slow, fast, gpus=gpus, policy=policy)[:2] == (CPU, NO_GPU)


def test_a_busy_cpu_route_is_left() -> None:
    """What waits there counts, for the workers that are awake."""
    cpu, gpu = cost(50, 50), cost(80, 50)
    assert choose(cpu, gpu, load=CpuLoad(4, 1)).route == CPU
    assert choose(cpu, gpu, load=CpuLoad(4, 0)).route == CPU
    assert choose(cpu, gpu, load=CpuLoad(4, 1, 4_000, 1)).route == CPU
    assert choose(cpu, gpu, load=CpuLoad(4, 3, 4_000, 1)).route == GPU
    assert choose(cpu, gpu, load=CpuLoad(4, 0, 40_000, 10)).route == GPU
    assert choose(cpu, gpu, load=CpuLoad(4, 4, 4_000, 1)).route == CPU


def test_waking_a_worker_takes_time() -> None:
    """Who is no worker counts it, too."""
    cpu, gpu = cost(50, 50), cost(80, 50)
    assert choose(cpu, gpu, load=CpuLoad(4, 4, start_ns=20 * US)).route == CPU
    assert choose(cpu, gpu, load=CpuLoad(4, 4, start_ns=60 * US)).route == GPU


def test_a_busy_gpu_is_left() -> None:
    """The rest of its replay counts, and batches that are full already."""
    cpu, gpu = cost(100, 50), cost(60, 50)
    started = GpuLoad(ready=True, launched_ns=NOW_NS - 55 * US, launched_bytes=4_000)
    assert choose(cpu, gpu, gpus=(started,)).route == GPU
    assert choose(cpu, gpu, gpus=(replace(started, launched_ns=NOW_NS - 5 * US),)).route == CPU
    full = GpuLoad(ready=True, waiting_bytes=12 << 20)
    assert choose(cpu, gpu, gpus=(full,)).route == CPU


def test_a_busy_gpu_loses_by_what_workers_encode() -> None:
    """With many documents on the GPU route, the CPU route has to be faster by what it takes from them, bounded."""
    cpu, gpu = cost(100, 50), cost(60, 50)
    few = GpuLoad(ready=True, launched_ns=NOW_NS - 5 * US, launched_bytes=8_000)
    assert choose(cpu, gpu, gpus=(few,)).route == CPU
    many = replace(few, waiting_bytes=80_000)
    assert choose(cpu, gpu, gpus=(many,)).route == GPU
    assert choose(cpu, cost(600, 50), gpus=(many,)).route == CPU


def test_a_batch_with_much_text_takes_longer() -> None:
    """The document is predicted with the batch that it would be in."""
    cpu, gpu = cost(100, 50), cost(50, 50, byte_ns=0.1)
    assert choose(cpu, gpu, gpus=(GpuLoad(ready=True, waiting_bytes=400_000),)).route == GPU
    assert choose(cpu, gpu, gpus=(GpuLoad(ready=True, waiting_bytes=4_000_000),)).route == CPU


def test_large_documents_wait_for_large_ones_only() -> None:
    """They have a place of their own, so what shares replays does not count, and the other way round."""
    cpu, gpu = cost(500, 50), cost(400, 50)
    small_ones = GpuLoad(ready=True, launched_ns=NOW_NS, launched_bytes=4_000, waiting_bytes=900_000)
    large_ones = GpuLoad(ready=True, alone_launched_ns=NOW_NS, alone_launched_bytes=500_000)
    assert choose(cpu, gpu, gpus=(small_ones,), n_bytes=500_000).route == GPU
    assert choose(cpu, gpu, gpus=(large_ones,), n_bytes=500_000).route == CPU
    assert choose(cpu, gpu, gpus=(large_ones,)).route == GPU
    assert choose(cpu, gpu, gpus=(replace(large_ones, alone_waiting_bytes=500_000),), n_bytes=500_000).route == CPU


def test_many_documents_cost_the_cpu_route_each_and_a_replay_once() -> None:
    """One worker encodes them one after the other."""
    cpu, gpu = cost(20, 20), cost(60, 30)
    assert choose(cpu, gpu, n_documents=1).route == CPU
    assert choose(cpu, gpu, n_documents=8, n_bytes=32_000).route == GPU


def test_of_many_gpus_the_one_that_is_done_first() -> None:
    """By what each has under way and waiting; those that are not ready do not count."""
    cpu, gpu = cost(900, 50), cost(60, 50, byte_ns=0.1)
    busy = GpuLoad(ready=True, launched_ns=NOW_NS, launched_bytes=4_000)
    behind = GpuLoad(ready=True, waiting_bytes=500_000)
    assert choose(cpu, gpu, gpus=(busy, behind, IDLE_GPU)) == Choice(GPU, FASTER, 2)
    assert choose(cpu, gpu, gpus=(behind, busy)) == Choice(GPU, FASTER, 0)
    assert choose(cpu, gpu, gpus=(GpuLoad(), busy, behind)) == Choice(GPU, FASTER, 2)
    assert choose(cpu, gpu, gpus=(GpuLoad(), behind)) == Choice(GPU, FASTER, 1)


def test_what_needs_the_cpu_after_all_counts() -> None:
    """Time and host CPU of the second try belong to the GPU route, in part as often as it comes to that."""
    cpu, gpu = cost(100, 100), cost(60, 20)
    assert choose(cpu, gpu).route == GPU
    gpu.unanswered = [0.3] * len(gpu.unanswered)
    assert choose(cpu, gpu).route == GPU
    gpu.unanswered = [1.0] * len(gpu.unanswered)
    assert choose(cpu, gpu).route == CPU
    equal = cost(39, 20)
    equal.unanswered = [0.6] * len(gpu.unanswered)
    assert choose(cpu, equal)[:2] == (GPU, FASTER)
    equal.unanswered = [0.8] * len(gpu.unanswered)
    assert choose(cost(121, 100), equal).route == CPU


def test_any_number_of_gpus() -> None:
    """There is no limit."""
    assert gpu_choice(100, FASTER) == Choice(GPU, FASTER, 100)


def test_a_decision_is_cheap() -> None:
    """Far below what encoding the shortest document takes: the best of many rounds uses under 20 us anywhere."""
    cpu, gpu = cost(100, 100), cost(100, 20)
    busy = GpuLoad(ready=True, launched_ns=NOW_NS, launched_bytes=4_000, waiting_bytes=4_000)
    load = CpuLoad(4, 0, 40_000, 10)
    best_ns = 1 << 62
    for _ in range(20):
        start_ns = time.thread_time_ns()
        for _ in range(100):
            choose_route(4_000, 1, load, cpu, (busy, busy), gpu, NOW_NS)
        best_ns = min(best_ns, time.thread_time_ns() - start_ns)
    assert best_ns / 100 < 20_000


def test_a_worker_keeps_what_a_gpu_answers_little_sooner() -> None:
    """Handing over takes from the others on its way; a route that others wait for is another matter."""
    asks = CpuLoad(4, 4, is_first=True)
    assert choose(cost(130, 50), cost(100, 50), load=asks).route == CPU
    assert choose(cost(160, 50), cost(100, 50), load=asks).route == GPU
    assert choose(cost(130, 50), cost(100, 50)).route == GPU


@pytest.mark.parametrize(("way", "route"), [(CPU, CPU), (GPU, GPU)])
def test_short_work_takes_the_way_that_is_kept(way: str, route: str) -> None:
    """Whatever is predicted, if the GPU answers such texts. Long work and policies have nothing to do with it."""
    fast, slow = cost(1, 1), cost(900, 900)
    cpu, gpu = (slow, fast) if route == CPU else (fast, slow)

    def chosen(n_bytes: int, n_documents: int = 1, policy: str = "adaptive") -> Choice:
        choice, times = choose_route(
            n_bytes, n_documents, IDLE_CPU, cpu, (IDLE_GPU,), gpu, NOW_NS, policy=policy, way=way
        )
        assert (times == 1.0) == (choice.reason in (TOGETHER, POLICY))
        return choice

    other = GPU if route == CPU else CPU
    assert chosen(4_000)[:2] == (route, TOGETHER)
    assert chosen(100_000, 20)[:2] == (route, TOGETHER)
    assert chosen(100_000)[:2] == (other, FASTER)
    assert chosen(200_000, 20)[:2] == (other, FASTER)
    assert chosen(4_000, policy=other)[:2] == (other, POLICY)
    if way == GPU:
        gpu.unanswered[(4_000).bit_length() >> 1] = 0.5
        assert chosen(4_000)[:2] == (CPU, FASTER)


def test_long_documents_are_not_judged_by_replays_of_many() -> None:
    """A GPU that answered hundreds of short documents late is as fast for a long one as it was."""
    costs = Costs()
    for number in range(40):
        costs.observe_gpu_route("m", ASCII, 480_000, 90, 12_000 * US, 900 * US, number * 4_000 * US)
    gpu, now_ns = costs.of("gpu", "m", ASCII), 160_000 * US
    load = GpuLoad(ready=True)
    assert gpu_completion_ns(480_000, 90, load, gpu, now_ns) > 10_000 * US
    assert gpu_completion_ns(480_000, 1, load, gpu, now_ns) < 1_000 * US
    for number in range(40):
        costs.observe_gpu_route("m", ASCII, 480_000, 1, 2_000 * US, 200 * US, now_ns + number * 4_000 * US)
    assert gpu_completion_ns(480_000, 1, load, gpu, now_ns) == pytest.approx(2_000 * US, rel=0.1)
    assert gpu_completion_ns(480_000, 90, load, gpu, now_ns) > 10_000 * US
