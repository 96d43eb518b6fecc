"""Which rates are tried, and when a server has had enough."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from loadtest.errors import BadOption

MIN_ACHIEVED = 0.95
MAX_FAILED = 0.01
ROUNDING = 1e-6
ON_THE_WAY = 3
"""So many requests may be unanswered at the end of a step however few there are: by chance more are on their way then
than were at its beginning."""
MAX_FALLS = 4
"""A server that takes nothing would otherwise be asked at ever lower rates."""
Step = dict[str, Any]


def parse_rates(text: str, default: float) -> list[float]:
    """Rates by commas; the default where there are none. Raises `BadOption`."""
    try:
        rates = [float(part) for part in text.split(",")] if text else [default]
    except ValueError as error:
        raise BadOption(f"--rate {text!r} is no list of numbers") from error
    if not all(0 < rate < float("inf") for rate in rates):
        raise BadOption(f"--rate {text!r} has a rate that is not above 0")
    return rates


def why_saturated(step: Step) -> str | None:
    """Why a step is more than the server can take; None when it is not."""
    n_failed = sum(step["failures"].values())
    if n_failed > MAX_FAILED * step["n_requests"]:
        return f"{n_failed} of {step['n_requests']} requests failed or were refused"
    share_behind = 1 - step["achieved_per_s"] / step["offered_per_s"] if step["offered_per_s"] else 0.0
    if share_behind > max(1 - MIN_ACHIEVED, ON_THE_WAY / max(1, step["n_requests"])) + ROUNDING:
        return f"{step['achieved_per_s']:.6g} answers/s for {step['offered_per_s']:.6g} requests/s"
    return None


def search(run: Callable[[float], Step], start: float, factor: float, max_steps: int, n_refined: int = 0) -> list[Step]:
    """Steps of rising rates, to the first that is saturated; then `n_refined` between the last two that matter.

    When the first one is saturated already, rates fall until one is not.

    Raises `BadOption` for a factor that does not rise.
    """
    if factor <= 1:
        raise BadOption(f"--step-factor {factor:g} is not above 1")
    steps: list[Step] = []
    rate = start
    for _ in range(max_steps):
        steps.append(run(rate))
        # The first step says which way to go; one that comes out otherwise ends the way.
        if bool(steps[-1]["saturated"]) != bool(steps[0]["saturated"]):
            break
        if steps[0]["saturated"] and len(steps) > MAX_FALLS:
            break
        rate *= 1 / factor if steps[0]["saturated"] else factor
    low = max((step["rate"] for step in steps if not step["saturated"]), default=0.0)
    high = min((step["rate"] for step in steps if step["saturated"]), default=0.0)
    for _ in range(n_refined if 0 < low < high else 0):
        rate = math.sqrt(low * high)
        steps.append(run(rate))
        low, high = (low, rate) if steps[-1]["saturated"] else (rate, high)
    return steps


def saturation(steps: list[Step]) -> dict[str, Any]:
    """The highest rate that was sustained, the lowest that was not, and who set the limit.

    A step in which the client processes were busy for more than half of their time says nothing about the server.
    """
    sustained = [step for step in steps if not step["saturated"]]
    saturated = [step for step in steps if step["saturated"]]
    best = max(sustained, key=lambda step: step["achieved_per_s"], default=None)
    first = min(saturated, key=lambda step: step["offered_per_s"], default=None)
    return {
        "sustained_per_s": best["achieved_per_s"] if best else None,
        "saturated_at_per_s": first["offered_per_s"] if first else None,
        "reason": first["saturated"] if first else None,
        "limited_by": "generator" if any(s and s["generator"]["limits"] for s in (best, first)) else "server",
    }
