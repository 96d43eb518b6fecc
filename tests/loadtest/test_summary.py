"""Figures of a step from observations whose figures are known."""

from __future__ import annotations

import numpy as np
import pytest

from loadtest.client import CLOSED, TIMED_OUT
from loadtest.plan import PROBE, PlanBuilder
from loadtest.summary import percentiles, summarise
from tests.loadtest.results import MS, observed_of, plan_of


def test_percentiles() -> None:
    """A percentile is a value that was measured, in microseconds."""
    found = percentiles(np.arange(1, 1001, dtype=np.int64) * 1000)
    assert found == {
        "mean": 500.5, "p50": 500.0, "p90": 900.0, "p95": 950.0, "p99": 990.0, "p99.9": 999.0, "max": 1000.0,
    }  # fmt: skip
    assert percentiles(np.empty(0, np.int64)) is None


def test_latency_counts_from_the_intended_start() -> None:
    """A request that was sent late is as slow as its user saw it; the lateness is also told apart."""
    plan = plan_of(("a", [0, 10, 20, 30], False))
    observed = observed_of(plan, [1, 1, 9, 1], [200] * 4)
    observed.sent_ns[2] += 8 * MS
    figures = summarise(observed, 0.0, 0.04)
    assert figures["latency_us"]["max"] == 9000
    assert figures["lag_us"]["max"] == 8000
    assert figures["lag_us"]["p50"] == 0


def test_rates() -> None:
    """Offered counts intended starts in the measured time; achieved counts right answers that came in it."""
    plan = plan_of(("a", list(range(0, 2000, 10)), False))
    latency = [5] * 150 + [3000] * 50
    figures = summarise(observed_of(plan, latency, [200] * 200), 1.0, 1.0)
    assert figures["n_requests"] == 100
    assert figures["n_warm_up"] == 100
    assert figures["offered_per_s"] == 100
    assert figures["achieved_per_s"] == 50
    assert figures["offered_bytes_per_s"] == 100_000


def test_failures_by_kind() -> None:
    """What went wrong is counted by what it was, and is in no latency."""
    plan = plan_of(("a", [0, 1, 2, 3, 4, 5], False))
    observed = observed_of(plan, [1, 900, 900, 900, 900, 1], [200, 429, 503, TIMED_OUT, CLOSED, 200])
    figures = summarise(observed, 0.0, 0.01)
    assert figures["failures"] == {
        "connection closed": 1, "timed out": 1, "429 Too Many Requests": 1, "503 Service Unavailable": 1,
    }  # fmt: skip
    assert figures["latency_us"]["max"] == 1000


@pytest.mark.parametrize(("outcome", "right"), [(400, True), (413, True), (200, False), (429, False), (500, False)])
def test_wrong_on_purpose(outcome: int, right: bool) -> None:
    """A request that is wrong on purpose must be refused for that; an answer, or a refusal for load, is a failure."""
    plan = plan_of(("good", [0], False), ("bad", [1], True))
    figures = summarise(observed_of(plan, [1, 1], [200, outcome]), 0.0, 0.01)
    assert (figures["failures"] == {}) is right
    assert figures["groups"]["bad"]["wrong_on_purpose"]
    assert not figures["groups"]["good"]["wrong_on_purpose"]


def test_groups_sizes_and_times() -> None:
    """Each group, each size and each slice of time has its own figures, and none is lost."""
    plan = plan_of(("a", list(range(0, 1000, 10)), False), ("b", list(range(5, 1000, 10)), False), n_bytes=3000)
    latency = [1 if row % 2 == 0 else 7 for row in range(200)]
    figures = summarise(observed_of(plan, latency, [200] * 200), 0.0, 1.0)
    assert figures["groups"]["a"]["latency_us"]["max"] == 1000
    assert figures["groups"]["b"]["latency_us"]["p50"] == 7000
    assert [(size["from_bytes"], size["n"]) for size in figures["by_size"]] == [(2048, 200)]
    assert sum(part["n"] for part in figures["timeline"]) == 200
    assert len(figures["timeline"]) == 20
    assert figures["curve_us"][-1] == [100.0, 7000.0]


def test_probes_are_in_no_other_figure() -> None:
    """A probe is a group of its own; only its failures are the step's, too."""
    builder = PlanBuilder()
    at_ns = np.arange(4) * MS
    builder.add("a", at_ns, np.zeros(4, np.int64), np.full(4, 100, np.int64))
    nothing = np.empty(0, np.int64)
    builder.add("GET /health", at_ns + 1, nothing, nothing, counts=np.zeros(4, np.int64), kind=PROBE)
    figures = summarise(observed_of(builder.build(), [2, 9] * 4, [200, 200] * 3 + [200, 503]), 0.0, 0.004)
    assert (figures["n_requests"], figures["latency_us"]["max"]) == (4, 2000)
    assert [size["n"] for size in figures["by_size"]] == [4]
    probes = figures["groups"]["GET /health"]
    assert (probes["n"], probes["latency_us"]["p50"]) == (4, 9000)
    assert figures["failures"] == probes["failures"] == {"503 Service Unavailable": 1}


def test_nothing_came_back() -> None:
    """A step in which all failed has no latencies and says why."""
    plan = plan_of(("a", [0, 1], False))
    figures = summarise(observed_of(plan, [1, 1], [TIMED_OUT, TIMED_OUT]), 0.0, 0.01)
    assert figures["latency_us"] is None
    assert figures["curve_us"] == []
    assert figures["failures"] == {"timed out": 2}
    assert figures["achieved_per_s"] == 0
