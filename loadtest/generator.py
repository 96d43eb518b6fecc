"""How busy the client processes were: a number that the generator itself limits is not the server's."""

from __future__ import annotations

from typing import Any

from loadtest.client_process import Effort

MAX_BUSY = 0.5


def describe(efforts: list[Effort], n_requests: int) -> dict[str, Any]:
    """Share of its core that each client process used, their CPU per request, and whether that is too much."""
    shares = [effort.cpu_s / effort.wall_s for effort in efforts]
    return {
        "clients": len(efforts),
        "busy": max(shares),
        "busy_by_client": shares,
        "cpu_us_per_request": sum(effort.cpu_s for effort in efforts) / n_requests * 1e6 if n_requests else None,
        "n_connections": sum(effort.n_connections for effort in efforts),
        "limits": max(shares) > MAX_BUSY,
    }
