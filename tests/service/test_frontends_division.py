"""What of the options each frontend gets."""

from __future__ import annotations

import pytest

from dispatcher.gpu.options import GpuRouteOptions
from dispatcher.options import DispatcherOptions
from service.frontends.division import gpu_part_of, part_of


@pytest.mark.parametrize(
    ("asked", "n_cpus", "n_frontends", "each"),
    [(0, 8, 4, 2), (0, 8, 3, 3), (0, 2, 4, 2), (0, 64, 2, 32), (9, 8, 2, 5), (1, 8, 4, 1)],
)
def test_workers(asked: int, n_cpus: int, n_frontends: int, each: int) -> None:
    """The CPUs, or as many workers as were asked for, are divided; two at least if none were asked for."""
    assert part_of(DispatcherOptions(cpu_workers=asked), n_frontends, n_cpus).cpu_workers == each


@pytest.mark.parametrize("n_frontends", [2, 3, 64])
def test_limits_add_up(n_frontends: int) -> None:
    """All frontends together admit what one process would, and at most one request and byte more each."""
    whole = DispatcherOptions(max_in_flight=100, max_in_flight_bytes=1000)
    part = part_of(whole, n_frontends)
    assert 100 <= n_frontends * part.max_in_flight < 100 + n_frontends
    assert 1000 <= n_frontends * part.max_in_flight_bytes < 1000 + n_frontends


def test_what_is_no_limit_of_the_service_stays() -> None:
    """Durations, fractions and policies are the same everywhere."""
    part = part_of(DispatcherOptions(max_wait_s=3, timeout_s=5, fair_above=0.25, policy="cpu"), 4)
    assert (part.max_wait_s, part.timeout_s, part.fair_above, part.policy) == (3, 5, 0.25, "cpu")


def test_gpu_memory() -> None:
    """The memory of a model on a GPU is divided; none asked for stays none."""
    assert gpu_part_of(GpuRouteOptions(gpu_memory_mib=100), 3).gpu_memory_mib == 34
    assert gpu_part_of(GpuRouteOptions(), 3) == GpuRouteOptions()
