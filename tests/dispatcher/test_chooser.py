"""The adaptive choice in simulated time, from nothing but what was observed."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from dispatcher.chooser import (
    CLEAR_DECISIONS,
    CLEAR_NS,
    EXPLORE_EVERY,
    EXPLORE_MAX_BYTES,
    LONG_CLEAR_NS,
    MAX_HABITS,
    STAYS_NS,
    RouteChooser,
)
from dispatcher.costs import ASCII, CostKey, Costs, Line, StartValues
from dispatcher.policy import (
    ADAPTIVE,
    CPU,
    EXPLORE,
    FASTER,
    GPU,
    POLICY,
    SHORT_BYTES,
    TOGETHER,
    CpuLoad,
    GpuLoad,
)
from dispatcher.spell import Spell
from dispatcher.ways import Ways
from tests.dispatcher.route_rig import MODEL, US
from tests.dispatcher.two_routes import KIND, TwoRoutes, World

SECOND = 1_000_000_000


def chooser_of(cpu: Line, gpu: Line) -> RouteChooser:
    """What documents cost by each route, time and host CPU alike."""
    start = {CPU: StartValues(cpu, cpu), GPU: StartValues(gpu, gpu)}
    return RouteChooser(Costs({CostKey(route, MODEL, KIND): values for route, values in start.items()}))


def log_uniform(source: random.Random) -> int:
    """1 to 16 KiB."""
    return int(1_024 * 16 ** source.random())


def short(source: random.Random) -> int:
    """1 KiB, about."""
    return source.randrange(900, 1_100)


def world(name: str) -> World:
    """Scripted costs: how long the CPU takes for a document, and the GPU for a replay."""
    return {
        "usual": World(lambda n: 20 * US + 20 * n, lambda n, _d: 60 * US + n // 5),
        "slow gpu": World(lambda n: 20 * US + 20 * n, lambda n, _d: 900 * US + n),
        "fast cpu": World(lambda n: 8 * US + n, lambda n, _d: 80 * US + n // 5),
        "slow cpu": World(lambda n: 60 * US + 300 * n, lambda n, _d: 60 * US + n // 5),
        "near": World(lambda n: 60 * US + 2 * n, lambda n, _d: 62 * US + 2 * n),
    }[name]


@pytest.mark.parametrize("name", ["usual", "slow gpu", "fast cpu", "slow cpu", "near"])
@pytest.mark.parametrize("rate", [500, 5_000, 20_000])
def test_never_much_slower_than_the_better_route(name: str, rate: float) -> None:
    """Median and mean latency are within 10 % of those of the better of the two routes alone, at any load."""
    by_policy = {}
    for policy in (CPU, GPU, "adaptive"):
        routes = TwoRoutes(world(name), policy)
        routes.poisson(rate, 4_500, log_uniform)
        by_policy[policy] = routes.median_ns(first=1_500), routes.mean_ns(first=1_500)
    for at in (0, 1):
        assert by_policy["adaptive"][at] <= 1.1 * min(by_policy[CPU][at], by_policy[GPU][at])


def test_costs_without_a_fixed_part() -> None:
    """As a calibration may find them: a document without a byte has a route, too."""
    costs = Costs()
    for route in (CPU, GPU):
        costs.begin(CostKey(route, "m", ASCII), StartValues(Line(0.0, 20.0), Line(0.0, 20.0)))
    loads = [GpuLoad(ready=True), GpuLoad(ready=True, alone_waiting_bytes=5)]
    for load in loads:
        choice = RouteChooser(costs).choose("m", ASCII, 0, 1, CpuLoad(4, 1, is_first=True), [load], 1)
        assert choice.route in (CPU, GPU)


@pytest.mark.parametrize(("name", "route"), [("slow gpu", CPU), ("fast cpu", CPU), ("slow cpu", GPU)])
def test_the_faster_route_gets_nearly_everything(name: str, route: str) -> None:
    """At a load that it can carry."""
    routes = TwoRoutes(world(name))
    routes.poisson(1_000, 1_000, log_uniform)
    assert routes.share_of(route, first=200) >= 0.97


@pytest.mark.parametrize(("gpu_cpu_ns", "route"), [(15 * US, GPU), (200 * US, CPU)])
def test_equal_routes_save_the_host(gpu_cpu_ns: int, route: str) -> None:
    """When both take as long, what is observed of the host's CPU decides."""
    even = World(lambda n: 60 * US, lambda n, _d: 61 * US, gpu_cpu_ns=gpu_cpu_ns)
    routes = TwoRoutes(even)
    routes.poisson(300, 1_500, short)
    assert routes.share_of(route, first=700) >= 0.9


@pytest.mark.parametrize("slow_first", [CPU, GPU])
def test_a_change_of_costs_is_found_out(slow_first: str) -> None:
    """Also on the route that nothing takes: exploration sees it, and the choice follows."""

    def slow(n: int) -> int:
        return 20 * US + 100 * n

    def fast(n: int) -> int:
        return 20 * US + 5 * n

    routes = TwoRoutes(World(slow if slow_first == CPU else fast, lambda n, _d: 80 * US))
    routes.poisson(200, 1_000, short)
    assert routes.share_of(GPU if slow_first == CPU else CPU, first=200) >= 0.9
    n_before = len(routes.choices)
    routes.world.cpu_ns = fast if slow_first == CPU else slow
    routes.poisson(200, 5_000, short, seed=2)
    assert routes.share_of(slow_first, first=n_before + 4_000) >= 0.9
    assert routes.mean_ns(first=n_before + 4_000) <= 1.1 * min(81 * US, fast(1_000) if slow_first == CPU else 81 * US)


def test_a_gpu_that_becomes_slow_is_left_at_once() -> None:
    """The route that is taken is seen all the time: few documents pay for the change."""
    routes = TwoRoutes(World(lambda n: 100 * US, lambda n, _d: 50 * US))
    routes.poisson(1_000, 1_000, short)
    n_before = len(routes.choices)
    routes.world.replay_ns = lambda n, _d: 500 * US
    routes.poisson(1_000, 1_000, short, seed=2)
    assert sum(choice.route == GPU for choice in routes.choices[n_before : n_before + 100]) <= 40
    assert sum(choice.route == GPU for choice in routes.choices[n_before:]) <= 100


def test_noise_does_not_switch_to_and_fro() -> None:
    """With noise on both routes, near the border of 10 %, hardly one decision in a hundred changes the route."""
    source = random.Random(9)
    noisy = World(
        lambda n: int(107 * US * source.lognormvariate(0, 0.05)),
        lambda n, _d: int(100 * US * source.lognormvariate(0, 0.05)),
        gpu_cpu_ns=300 * US,
    )
    routes = TwoRoutes(noisy)
    routes.poisson(50, 3_000, lambda source: 1_000)
    assert routes.changes(first=500) <= 0.01


def test_exploration_is_bounded() -> None:
    """No more than its share, however long it goes on, and no more than needed to keep costs fresh."""
    routes = TwoRoutes(world("near"))
    routes.poisson(1_000, 5_000, short)
    n_explored = sum(choice.reason == EXPLORE for choice in routes.choices)
    assert n_explored <= 5_000 / 1_000 + 1
    rare = TwoRoutes(world("near"))
    rare.poisson(20, 2_000, short)
    n_explored = sum(choice.reason == EXPLORE for choice in rare.choices)
    assert 0.9 <= n_explored * EXPLORE_EVERY / 2_000 <= 1


def test_exploring_a_slow_route_is_rare() -> None:
    """The longer the other route takes, the more rarely it is tried: it adds 1/64 to the mean at most."""
    routes = TwoRoutes(world("slow gpu"))
    routes.poisson(20, 3_000, short)
    extra_ns = sum(900 * US for choice in routes.choices[200:] if choice.reason == EXPLORE)
    assert 0 < extra_ns <= routes.median_ns() * 2_800 / EXPLORE_EVERY + 900 * US


def test_large_and_urgent_work_does_not_explore() -> None:
    """Nor work that would be slow there, nor any without a GPU."""
    costs = Costs()
    idle = CpuLoad(4, 4)
    chooser = RouteChooser(costs)

    def reasons(n_bytes: int, gpus: list[GpuLoad], left_ns: int = 0, n: int = 300) -> set[str]:
        found = set()
        for number in range(1, n):
            now_ns = number * SECOND
            deadline_ns = now_ns + left_ns if left_ns else 0
            choice = chooser.choose(MODEL, KIND, n_bytes, 1, idle, gpus, now_ns, deadline_ns=deadline_ns)
            found.add(choice.reason)
        return found

    gpu = [GpuLoad(ready=True)]
    assert EXPLORE not in reasons(EXPLORE_MAX_BYTES + 1, gpu)
    assert EXPLORE not in reasons(1_000, gpu, left_ns=500 * US)
    assert EXPLORE in reasons(1_000, gpu, left_ns=SECOND)
    assert EXPLORE not in reasons(1_000, [])
    assert EXPLORE not in reasons(1_000, [GpuLoad()])
    for number in range(40):
        costs.observe_gpu_route(MODEL, KIND, 1_000, 1, 20_000_000, 1_000, number)
    assert EXPLORE not in reasons(1_000, gpu)


def test_a_worker_stays_with_what_was_clear() -> None:
    """For a few decisions and a short time, for no larger work and no longer queue; each is counted as any other."""
    now_ns = SECOND
    asks = CpuLoad(4, 4, is_first=True)

    def chosen(load: CpuLoad = asks) -> RouteChooser:
        chooser = RouteChooser(Costs())
        assert chooser.choose(MODEL, KIND, 1_000, 2, load, [GpuLoad(ready=True)], now_ns).route == CPU
        return chooser

    chooser = chosen()
    for n_bytes, n_documents, n_waiting, at_ns in (
        (1_000, 3, 0, now_ns),
        (2_002, 2, 0, now_ns),
        (1_000, 2, 5, now_ns),
        (1_000, 2, 0, now_ns + STAYS_NS + 1),
    ):
        assert not chooser.stays(MODEL, KIND, n_bytes, n_documents, n_waiting, at_ns)
    stayed = [chooser.stays(MODEL, KIND, 1_000, 2, 4, now_ns + STAYS_NS) for _ in range(CLEAR_DECISIONS + 1)]
    assert stayed == [True] * CLEAR_DECISIONS + [False]
    assert chooser.snapshot()[CPU, FASTER] == 1 + CLEAR_DECISIONS
    assert not chosen(CpuLoad(4, 4)).stays(MODEL, KIND, 1_000, 2, 0, now_ns)
    assert chosen().again(MODEL, KIND, 1_000, 2, [GpuLoad(ready=True)], now_ns) is None


def test_models_that_come_and_go() -> None:
    """What is kept of them is bounded, and a choice is made for each."""
    chooser = RouteChooser(Costs())
    for number in range(2 * MAX_HABITS + 1):
        chooser.choose(f"m{number}", ASCII, 5_000, 1, CpuLoad(4, 1), [GpuLoad(ready=True)], number)
        assert len(chooser._habits) <= MAX_HABITS
    assert sum(chooser.snapshot().values()) == 2 * MAX_HABITS + 1


def test_policies_do_not_explore_and_are_counted() -> None:
    """A request's own policy comes before that of the service."""
    chooser = RouteChooser(Costs(), GPU)
    gpus = [GpuLoad(ready=True)]
    for number in range(200):
        chooser.choose(MODEL, KIND, 1_000, 1, CpuLoad(4, 4), gpus, number * SECOND)
    chooser.choose(MODEL, KIND, 1_000, 1, CpuLoad(4, 4), gpus, 0, policy=CPU)
    counts = {key: n for key, n in chooser.snapshot().items() if n}
    assert counts == {(GPU, POLICY): 200, (CPU, POLICY): 1}


def test_a_saturated_cpu_route_overflows_to_the_gpu() -> None:
    """Queue states decide: what the workers cannot carry goes where it is done sooner, and comes back."""
    small = World(lambda n: 100 * US, lambda n, _d: 150 * US, n_workers=2)
    routes = TwoRoutes(small)
    routes.poisson(2_000, 1_000, short)
    assert routes.share_of(CPU, first=100) >= 0.9
    n_before = len(routes.choices)
    routes.poisson(60_000, 3_000, short, seed=2)
    assert routes.share_of(GPU, first=n_before) >= 0.2
    assert routes.median_ns(first=n_before) < 600 * US
    n_before = len(routes.choices)
    routes.poisson(2_000, 3_000, short, seed=3)
    assert routes.share_of(CPU, first=n_before + 1_000) >= 0.9


def test_texts_that_the_gpu_does_not_answer_stay_away() -> None:
    """A kind that needs the CPU after every replay is not sent to the GPU, until that answers it again."""
    routes = TwoRoutes(World(lambda n: 200 * US, lambda n, _d: 60 * US))
    engine = routes.gpus[0].engine
    engine.needs_cpu = lambda document: "odd"
    routes.poisson(200, 1_000, short)
    assert routes.share_of(CPU, first=200) >= 0.95
    engine.needs_cpu = None
    n_before = len(routes.choices)
    routes.poisson(200, 4_000, short, seed=2)
    assert routes.share_of(GPU, first=n_before + 3_000) >= 0.9


def test_a_clear_choice_of_long_documents_lasts() -> None:
    """Eight of them within 20 ms are not predicted again, but for those that others wait in front of."""
    slow, fast = Line(5_000_000.0, 0.0), Line(100_000.0, 0.0)
    chooser = chooser_of(slow, fast)
    idle, busy = GpuLoad(ready=True), GpuLoad(ready=True, alone_waiting_bytes=480_000)

    def again(n_bytes: int, gpu: GpuLoad, now_ns: int) -> bool:
        return chooser.again(MODEL, KIND, n_bytes, 1, [gpu], now_ns) is not None

    for n_bytes, lasts_ns in ((4_000, CLEAR_NS), (480_000, LONG_CLEAR_NS)):
        choice = chooser.choose(MODEL, KIND, n_bytes, 1, CpuLoad(4, 4), [idle], 0)
        assert (choice.route, choice.reason) == (GPU, FASTER)
        assert not again(n_bytes, busy, 1)
        assert not again(n_bytes, idle, lasts_ns + 1)
        assert [again(n_bytes, idle, lasts_ns) for _ in range(CLEAR_DECISIONS + 1)] == [True] * CLEAR_DECISIONS + [
            False
        ]


def always(way: str) -> Ways:
    """Short work goes one way."""
    ways = Ways()
    ways.spell = Spell(way, 0, 0, 1 << 62)
    return ways


def test_what_goes_to_the_only_gpu_together_is_not_predicted() -> None:
    """Unless it is long, no GPU is ready, there are two, or the GPU does not answer such documents. It is counted."""
    costs = Costs()
    chooser, gpu = RouteChooser(costs, ways=always(GPU)), GpuLoad(ready=True)
    choice = chooser.again(MODEL, KIND, 1_000, 1, [gpu], 1)
    assert choice is not None
    assert (choice.route, choice.reason, choice.gpu) == (GPU, TOGETHER, 0)
    assert chooser.snapshot()[GPU, TOGETHER] == 1
    assert chooser.ways.spell.n_asked == 1
    assert chooser.again(MODEL, KIND, SHORT_BYTES + 1, 1, [gpu], 1) is None
    assert chooser.again(MODEL, KIND, 1_000, 1, [GpuLoad()], 1) is None
    assert chooser.again(MODEL, KIND, 1_000, 1, [gpu, gpu], 1) is None
    assert RouteChooser(costs, ways=always(CPU)).again(MODEL, KIND, 1_000, 1, [gpu], 1) is None
    for number in range(40):
        costs.observe_gpu_route(MODEL, KIND, 1_000, 1, 80_000, 1_000, number, n_unanswered=1)
    assert chooser.again(MODEL, KIND, 1_000, 1, [gpu], 1) is None


def test_a_clear_choice_holds_for_as_many_bytes_as_make_it_clear() -> None:
    """Also when one of fewer bytes was predicted meanwhile, which was not clear."""
    by_byte, fast = Line(0.0, 100.0), Line(40_000.0, 0.0)
    chooser = chooser_of(by_byte, fast)
    gpu, idle = [GpuLoad(ready=True)], CpuLoad(4, 4)

    def again(n_bytes: int) -> bool:
        return chooser.again(MODEL, KIND, n_bytes, 1, gpu, 1) is not None

    assert chooser.choose(MODEL, KIND, 1_600, 1, idle, gpu, 0).route == GPU
    assert again(1_600)
    assert again(2_000)
    assert again(1_050)
    assert not again(950)
    assert chooser.choose(MODEL, KIND, 950, 1, idle, gpu, 0).route == GPU
    assert again(1_050)


def test_what_was_clear_of_a_gpu_is_not_of_the_cpu() -> None:
    """A worker stays with the CPU route only where that was clear."""
    slow, fast = Line(200_000.0, 0.0), Line(150_000.0, 0.0)
    chooser = chooser_of(slow, fast)
    first, load = CpuLoad(4, 4, is_first=True), GpuLoad(ready=True)

    def chosen(n_documents: int, now_ns: int, launched_ns: int) -> str:
        load.launched_ns, load.launched_bytes = launched_ns, 5_000 if launched_ns else 0
        return chooser.choose(MODEL, KIND, 5_000 * n_documents, n_documents, first, [load], now_ns).route

    assert chosen(1, 1_000, 1) == CPU
    assert chosen(8, 1_000_000, 0) == GPU
    assert chosen(1, 2_000_000, 1_890_000) == CPU
    assert not chooser.stays(MODEL, KIND, 5_000, 1, 0, 3_000_000)


def test_what_holds_for_a_moment() -> None:
    """A clear choice, from as many bytes on as make it clear; whatever was asked for; nothing else."""
    by_byte, fast = Line(0.0, 100.0), Line(4_000_000.0, 0.0)
    chooser = chooser_of(by_byte, fast)
    gpu, idle = [GpuLoad(ready=True)], CpuLoad(4, 4)

    def holds(n_bytes: int, now_ns: int = 0, policy: str = "") -> int | None:
        choice = chooser.choose(MODEL, KIND, n_bytes, 1, idle, gpu, 0, policy=policy)
        found = chooser.holds(choice, MODEL, KIND, n_bytes, now_ns)
        if found is None:
            return None
        min_bytes, count = found
        before = chooser.snapshot()[choice.route, choice.reason]
        count()
        assert chooser.snapshot()[choice.route, choice.reason] == before + 1
        return min_bytes

    assert holds(480_000) == pytest.approx(100_000, rel=0.01)
    assert holds(480_000, LONG_CLEAR_NS + 1) is None
    assert holds(80_000) is None
    assert holds(80_000, policy=GPU) == 0
    chooser.choose(MODEL, KIND, 480_000, 1, idle, gpu, 0)
    while (choice := chooser.again(MODEL, KIND, 480_000, 1, gpu, 1)) is not None:
        last = choice
    assert chooser.holds(last, MODEL, KIND, 480_000, 1) is None


def test_few_try_a_route_that_is_slow_by_far() -> None:
    """Neither after a second at a load nor after it becomes another one, and the slowest of a hundred are no slower."""
    slow = {
        policy: TwoRoutes(World(lambda n: 150 * US, lambda n, _d: 60 * US + n // 5, n_workers=1), policy)
        for policy in (GPU, ADAPTIVE)
    }
    adaptive = slow[ADAPTIVE]
    for number, rate in enumerate((10_000, 10_000, 20_000, 20_000)):
        first = len(adaptive.choices)
        for routes in slow.values():
            routes.poisson(rate, rate // 2, lambda source: 5_000, seed=number)
        tried = [choice for choice in adaptive.choices[first:] if choice.route == CPU and choice.reason != FASTER]
        if number >= 2:
            assert len(tried) < 0.01 * rate / 2
            for percent in (50, 95, 99):
                alone, both = (
                    sorted(slow[policy].latencies_ns[first:])[rate // 200 * percent] for policy in (GPU, ADAPTIVE)
                )
                assert both <= 1.1 * alone


def test_two_gpus_share_the_load_and_one_is_lost() -> None:
    """Both work; after the loss of one everything is answered, and the other one carries on."""
    routes = TwoRoutes(World(lambda n: 900 * US, lambda n, _d: 60 * US, n_gpus=2))
    routes.poisson(20_000, 2_000, short)
    by_gpu = Counter(choice.gpu for choice in routes.choices[200:])
    assert min(by_gpu[0], by_gpu[1]) > 0.3 * len(routes.choices)
    routes.simulation.after(20_000 * US, routes.gpus[0].engine.lose)
    n_before = len(routes.choices)
    routes.poisson(20_000, 2_000, short, seed=2)
    later = Counter(choice.gpu for choice in routes.choices[n_before + 1_000 :])
    assert later[0] == 0
    assert later[1] >= 950
    assert len(routes.latencies_ns) == 4_000
