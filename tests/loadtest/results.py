"""Observations and results made by hand, so that every figure about them is known."""

from __future__ import annotations

from typing import Any

import numpy as np

from loadtest.observed import Observed
from loadtest.plan import Plan, PlanBuilder

MS = 1_000_000


def plan_of(*groups: tuple[str, list[int], bool], n_bytes: int = 1000) -> Plan:
    """Requests of one document each: groups as name, starts in milliseconds, whether they are wrong on purpose."""
    builder = PlanBuilder()
    for name, starts_ms, refused in groups:
        n = len(starts_ms)
        builder.add(
            name,
            np.array(starts_ms, np.int64) * MS,
            np.zeros(n, np.int64),
            np.full(n, n_bytes, np.int64),
            refused=refused,
        )
    return builder.build()


def observed_of(plan: Plan, latency_ms: list[int], outcome: list[int]) -> Observed:
    """The plan with these latencies and outcomes, in its order; sent on time."""
    done = plan.at_ns + np.array(latency_ms, np.int64) * MS
    n_bytes = np.zeros(len(plan), np.int64)
    return Observed(plan, plan.at_ns.copy(), done, np.array(outcome, np.int16), n_bytes, {}, [])


def step_of(rate: float, achieved: float | None = None, p50_us: float = 100.0, **changes: Any) -> dict[str, Any]:
    """A step of a result: ten seconds at a rate, everything right unless it is changed."""
    latency = {"mean": p50_us, "p50": p50_us, "p90": p50_us, "p95": 2 * p50_us, "p99": 4 * p50_us, "p99.9": 8 * p50_us,
               "max": 9 * p50_us}  # fmt: skip
    group = {
        "n": int(rate * 10),
        "median_bytes": 4000.0,
        "wrong_on_purpose": False,
        "latency_us": latency,
        "failures": {},
    }
    return {
        "rate": rate,
        "n_requests": int(rate * 10),
        "n_warm_up": 0,
        "offered_per_s": rate,
        "achieved_per_s": rate if achieved is None else achieved,
        "offered_bytes_per_s": rate * 4000,
        "latency_us": latency,
        "curve_us": [[0.0, p50_us / 2], [50.0, p50_us], [99.0, 4 * p50_us], [100.0, 9 * p50_us]],
        "failures": {},
        "lag_us": latency,
        "groups": {"books": group, "code": group},
        "by_size": [
            {"from_bytes": 1 << k, "n": 10, "median_bytes": 1.5 * (1 << k), "latency_us": latency} for k in (10, 11)
        ],
        "timeline": [{"from_s": s, "n": 10, "n_failed": 0, "p50_us": p50_us, "p99_us": 4 * p50_us} for s in (0.0, 1.0)],
        "equality": {
            "checked": True, "reference": "the embedded tokenizer", "n_equal": 20, "n_different": 0, "different": {},
            "groups_not_checked": [],
        },
        "generator": {"clients": 2, "busy": 0.2, "limits": False},
        "server": {"host_cpu_us_per_request": 50.0, "documents_by_route": {"cpu": 75.0, "gpu": 25.0}, "gpu_engines": 2},
        "server_process_cpu_us_per_request": None,
        "neighbours": None,
        "saturated": None,
        **changes,
    }  # fmt: skip


def result_of(*steps: dict[str, Any], scenario: str = "short", **changes: Any) -> dict[str, Any]:
    """A result with these steps."""
    return {
        "format": "sidetok-loadtest/1",
        "scenario": scenario,
        "about": "what it is",
        "options": {
            "api": "native", "codec": "octet-stream", "route": "auto", "seed": 1, "duration_s": 10.0, "warm_up_s": 1.0,
            "scale": 1.0,
            "model": "", "find_saturation": True, "target": "unix:s", "timeout_s": 30.0,
        },
        "arrivals": "poisson",
        "texts": {"origin": "made", "bytes": {"books": 10}},
        "started": "2026-01-01T00:00:00Z",
        "machine": {"cpu": "A CPU", "usable_cpus": 8, "gpus": ["A GPU, 1.0"]},
        "versions": {"python": "3.11"},
        "target": "unix:s",
        "server": {"version": {"version": "0.1.0"}, "models": [{"id": "m", "default": True}]},
        "steps": list(steps),
        "saturation": {
            "sustained_per_s": steps[-1]["achieved_per_s"], "saturated_at_per_s": None, "reason": None,
            "limited_by": "server",
        },
        **changes,
    }  # fmt: skip
