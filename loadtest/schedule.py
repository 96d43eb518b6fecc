"""Arrivals, all drawn before the run: when each request is meant to start, whatever the server does.

A client that waits for answers before it sends again lets a slow server choose its own load (coordinated omission).
Here the times are fixed first, and latency counts from them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from loadtest.errors import BadOption

Times = NDArray[np.int64]
NS = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Arrivals:
    """A renewal process: independent gaps of mean 1/rate. Shape 1 is Poisson, above it calmer, below it burstier."""

    shape: float
    """Of the Gamma distribution; infinite = constant gaps."""

    def gaps(self, n: int, rng: np.random.Generator) -> NDArray[np.float64]:
        """`n` gaps of mean 1."""
        if np.isinf(self.shape):
            return np.ones(n)
        return rng.gamma(self.shape, 1 / self.shape, n)

    def __str__(self) -> str:
        if np.isinf(self.shape):
            return "constant"
        return "poisson" if self.shape == 1 else f"gamma:{self.shape:g}"


CONSTANT = Arrivals(float("inf"))
POISSON = Arrivals(1.0)


def parse_arrivals(text: str) -> Arrivals:
    """`constant`, `poisson` or `gamma:SHAPE`. Raises `BadOption`."""
    if text in ("constant", "poisson"):
        return CONSTANT if text == "constant" else POISSON
    match = re.fullmatch(r"gamma:([0-9]+(?:\.[0-9]*)?)", text)
    if match is None or float(match[1]) == 0:
        raise BadOption(f"arrivals {text!r} are none of constant, poisson and gamma:SHAPE with a shape above 0")
    return Arrivals(float(match[1]))


def times(arrivals: Arrivals, rate: float, duration_s: float, rng: np.random.Generator) -> Times:
    """Intended starts in nanoseconds, ascending, from 0 to before `duration_s`, on average `rate` a second."""
    return (_units(arrivals, rate * duration_s, rng) * (NS / rate)).astype(np.int64)


def times_of_profile(
    arrivals: Arrivals,
    seconds: NDArray[np.float64],
    rates: NDArray[np.float64],
    rng: np.random.Generator,
) -> Times:
    """Intended starts under a rate that changes: `rates[k]` from `seconds[k]` to `seconds[k + 1]`; nanoseconds.

    The process runs in a time of its own in which the rate is 1, and is stretched to the rates afterwards.
    """
    passed = np.concatenate(([0.0], np.cumsum(rates * np.diff(seconds))))
    return (np.interp(_units(arrivals, float(passed[-1]), rng), passed, seconds) * NS).astype(np.int64)


def _units(arrivals: Arrivals, n_expected: float, rng: np.random.Generator) -> NDArray[np.float64]:
    """Starts of a process of rate 1 before `n_expected`."""
    if np.isinf(arrivals.shape):
        return np.arange(np.ceil(n_expected - 1e-9), dtype=np.float64)
    drawn: list[NDArray[np.float64]] = []
    reached = 0.0
    while reached < n_expected:
        n = int((n_expected - reached) * 1.02) + 16
        drawn.append(reached + np.cumsum(arrivals.gaps(n, rng)))
        reached = float(drawn[-1][-1])
    starts = np.concatenate(drawn) if drawn else np.empty(0)
    return starts[starts < n_expected]
