"""The adaptive policy when the host, the GPU or both have more to do than they can."""

from __future__ import annotations

from functools import cache

import pytest

from dispatcher.policy import ADAPTIVE, CPU, EXPLORE, GPU
from tests.dispatcher.route_rig import US
from tests.dispatcher.shared_host import Host, Service

HOSTS = {
    # Encoding takes 20 times the host CPU of the GPU route, and a part of it holds the interpreter.
    "1 MB": Host(1_000_000, 2_000 * US, 10_000 * US, 30_000 * US, 300 * US, 500 * US, 200 * US, lambda n: 180 * US),
    # The device is what is slow: workers carry more.
    "1 MB, slow device": Host(
        1_000_000, 500 * US, 300 * US, 3_000 * US, 100 * US, 100 * US, 100 * US, lambda n: 900 * US
    ),
    # Going to the GPU and back takes more of the interpreter than encoding here.
    "5 KB": Host(5_000, 60 * US, 15 * US, 60 * US, 30 * US, 60 * US, 25 * US, lambda n: 70 * US + n // 10),
    # An engine so slow that workers are what is short, and reading is cheap.
    "5 KB, slow workers": Host(5_000, 2 * US, US, 400 * US, 5 * US, 10 * US, US, lambda n: 150 * US + n // 2),
}


def run(name: str, rate: float, policy: str) -> Service:
    """Documents at a rate per second."""
    service = Service(HOSTS[name], policy)
    service.poisson(rate, 250 if HOSTS[name].n_bytes > 100_000 else min(max(10_000, int(0.3 * rate)), 30_000))
    return service


@cache
def capacity(name: str) -> float:
    """What the better of the routes answers per second when there is always more."""
    return max(run(name, 1e6, policy).per_second for policy in (CPU, GPU))


@pytest.mark.parametrize("load", [0.3, 0.9, 1.2, 2.0])
@pytest.mark.parametrize("name", HOSTS)
def test_adaptive_keeps_up_with_the_better_route(name: str, load: float) -> None:
    """Rate and median latency are within 10 % of those of the better of the two routes alone, at any load."""
    rate = load * capacity(name)
    adaptive = run(name, rate, ADAPTIVE)
    alone = [run(name, rate, policy) for policy in (CPU, GPU)]
    assert adaptive.per_second >= 0.9 * max(service.per_second for service in alone)
    assert adaptive.median_ns <= 1.1 * min(service.median_ns for service in alone)


def test_overload_goes_where_the_host_works_less() -> None:
    """Long documents stay on the GPU however long its queue is, when it waits for the host and not for the device."""
    assert run("1 MB", 2 * capacity("1 MB"), ADAPTIVE).share_of(GPU) >= 0.99


@pytest.mark.parametrize("name", HOSTS)
def test_exploration_is_rare_in_overload(name: str) -> None:
    """One document in a hundred at most takes a route only to see what it costs."""
    service = run(name, 2 * capacity(name), ADAPTIVE)
    assert service.reasons.count(EXPLORE) <= 0.01 * len(service.reasons)
