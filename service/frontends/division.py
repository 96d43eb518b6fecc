"""Limits are of the service: each frontend gets its part of what one process would have."""

from __future__ import annotations

from dataclasses import replace

from dispatcher.cpus import usable_cpus
from dispatcher.gpu.options import GpuRouteOptions
from dispatcher.options import DispatcherOptions

MIN_WORKERS = 2
"""So many workers unless fewer are asked for: a huge document never takes the last one."""


def part_of(work: DispatcherOptions, n_frontends: int, n_cpus: int | None = None) -> DispatcherOptions:
    """The options of one frontend of so many: workers, requests and bytes in flight divided, rounded up.

    `n_cpus`: those that the service may use, as the system says by default.
    """
    workers = max(MIN_WORKERS, _up(usable_cpus() if n_cpus is None else n_cpus, n_frontends))
    if work.cpu_workers:
        workers = _up(work.cpu_workers, n_frontends)
    return replace(
        work,
        cpu_workers=workers,
        max_in_flight=_up(work.max_in_flight, n_frontends),
        max_in_flight_bytes=_up(work.max_in_flight_bytes, n_frontends),
    )


def gpu_part_of(gpu: GpuRouteOptions, n_frontends: int) -> GpuRouteOptions:
    """The same for GPUs: every frontend has its own engine on each, with its part of the memory that is allowed."""
    return replace(gpu, gpu_memory_mib=_up(gpu.gpu_memory_mib, n_frontends))


def _up(n: int, parts: int) -> int:
    return -(-n // parts)
