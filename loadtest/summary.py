"""From observations to figures: rates, percentiles, what failed and how, by group, by size and over time."""

from __future__ import annotations

from collections import Counter
from http import HTTPStatus
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from loadtest.client import OUTCOMES
from loadtest.observed import Observed
from loadtest.plan import PROBE

QUANTILES = (0.5, 0.9, 0.95, 0.99, 0.999)
CURVE = (0, 1, 2, 5, *range(10, 95, 5), 95, 96, 97, 98, 99, 99.5, 99.8, 99.9, 99.95, 99.99, 100)
"""Percentiles of the curve that plots draw."""
N_SLICES = 20
Rows = NDArray[np.bool_]
Figures = dict[str, Any]


def summarise(observed: Observed, warm_up_s: float, duration_s: float) -> Figures:
    """Everything about the requests of one step whose intended start lies in the measured time."""
    begin_ns, end_ns = warm_up_s * 1e9, (warm_up_s + duration_s) * 1e9
    plan = observed.plan
    in_window = (plan.at_ns >= begin_ns) & (plan.at_ns < end_ns)
    load = plan.kind != PROBE
    measured, good = in_window & load, observed.as_planned & load
    in_time = good & (observed.done_ns >= begin_ns) & (observed.done_ns < end_ns)
    return {
        "n_requests": int(measured.sum()),
        "n_warm_up": int((~in_window & load).sum()),
        "offered_per_s": float(measured.sum() / duration_s),
        "achieved_per_s": float(in_time.sum() / duration_s),
        "offered_bytes_per_s": float(plan.n_bytes[measured].sum() / duration_s),
        "latency_us": latencies(observed, measured & good),
        "curve_us": _curve(observed, measured & good),
        "failures": failures(observed, in_window),
        "lag_us": percentiles((observed.sent_ns - plan.at_ns)[measured & (observed.sent_ns > 0)]),
        "groups": {name: _group(observed, in_window & (plan.group == k)) for k, name in enumerate(plan.groups)},
        "by_size": by_size(observed, measured & good),
        "timeline": timeline(observed, measured, begin_ns, end_ns),
    }


def percentiles(values_ns: NDArray[np.int64]) -> Figures | None:
    """Mean, percentiles and maximum in microseconds; None of nothing."""
    if not len(values_ns):
        return None
    found = np.quantile(values_ns, QUANTILES, method="inverted_cdf") / 1e3
    names = (f"p{q * 100:g}" for q in QUANTILES)
    return {
        "mean": float(values_ns.mean() / 1e3),
        **{name: float(value) for name, value in zip(names, found, strict=True)},
        "max": float(values_ns.max() / 1e3),
    }


def latencies(observed: Observed, rows: Rows) -> Figures | None:
    """Percentiles of the latency, from the intended start, of these requests."""
    return percentiles(observed.latency_ns[rows])


def failures(observed: Observed, rows: Rows) -> dict[str, int]:
    """How many requests did not get what they should, by what they got."""
    outcomes = observed.outcome[rows & ~observed.as_planned]
    return {outcome_name(int(code)): n for code, n in sorted(Counter(outcomes.tolist()).items())}


def outcome_name(code: int) -> str:
    """What an outcome is called in results."""
    if code in OUTCOMES:
        return OUTCOMES[code]
    phrase = HTTPStatus(code).phrase if code in HTTPStatus._value2member_map_ else "HTTP"
    return f"{code} {phrase}"


def by_size(observed: Observed, rows: Rows) -> list[Figures]:
    """Latencies by the text of a request, in sizes that double."""
    n_bytes = observed.plan.n_bytes
    exponents = np.floor(np.log2(np.maximum(n_bytes, 1))).astype(int)
    return [
        {"from_bytes": 1 << int(k), "n": int((rows & (exponents == k)).sum())}
        | {"median_bytes": float(np.median(n_bytes[rows & (exponents == k)]))}
        | {"latency_us": latencies(observed, rows & (exponents == k))}
        for k in np.unique(exponents[rows])
    ]


def timeline(observed: Observed, rows: Rows, begin_ns: float, end_ns: float) -> list[Figures]:
    """The measured time in slices: intended starts, failures and latencies of each."""
    borders = np.linspace(begin_ns, end_ns, N_SLICES + 1)
    slices = []
    for first, last in pairwise(borders):
        here = rows & (observed.plan.at_ns >= first) & (observed.plan.at_ns < last)
        found = latencies(observed, here & observed.as_planned) or {}
        slices.append(
            {
                "from_s": float(first * 1e-9),
                "n": int(here.sum()),
                "n_failed": int((here & ~observed.as_planned).sum()),
                "p50_us": found.get("p50"),
                "p99_us": found.get("p99"),
            }
        )
    return slices


def _group(observed: Observed, rows: Rows) -> Figures:
    return {
        "n": int(rows.sum()),
        "median_bytes": float(np.median(observed.plan.n_bytes[rows])) if rows.any() else None,
        "wrong_on_purpose": bool(observed.plan.refused[rows].any()),
        "latency_us": latencies(observed, rows & observed.as_planned),
        "failures": failures(observed, rows),
    }


def _curve(observed: Observed, rows: Rows) -> list[list[float]]:
    values = observed.latency_ns[rows]
    if not len(values):
        return []
    found = np.quantile(values, np.array(CURVE) / 100, method="inverted_cdf") / 1e3
    return [[float(p), float(value)] for p, value in zip(CURVE, found, strict=True)]
