"""Equality first, then time: new text once, then the same text again and again."""

from __future__ import annotations

import gc
import time
from dataclasses import dataclass
from typing import Any

import numpy as np

from loadtest.bench.cells import Cell
from loadtest.bench.contender import Batch, Contender, Ids

WARM_UP_S = 0.2
"""An idle GPU lowers its clocks, and takes some time to raise them."""
MIN_WARM = 3


@dataclass(frozen=True, slots=True)
class Budget:
    """How long one contender may take for one cell, and how many samples are enough."""

    seconds: float = 0.5
    max_samples: int = 100


def n_different(contender: Contender, cell: Cell, expected: list[list[Ids]]) -> int:
    """How many documents of a cell do not have the reference's ids."""
    wrong = 0
    for batch, right in zip(cell.batches, expected, strict=True):
        answered = contender.ids(contender.encode(batch))
        wrong += abs(len(right) - len(answered))
        wrong += sum(not np.array_equal(a, b) for a, b in zip(answered, right, strict=False))
    return wrong


def measure(contender: Contender, cell: Cell, budget: Budget) -> dict[str, Any]:
    """Times of one contender on one cell, in microseconds a call; one that remembers must not have seen its texts."""
    until_s = time.perf_counter() + WARM_UP_S
    contender.encode(cell.warm_up)
    while time.perf_counter() < until_s:
        contender.encode(cell.warm_up)
    gc.collect()
    gc.disable()
    try:
        new = [_sample(contender, batch) for batch in cell.batches]
        warm: list[tuple[int, int]] = []
        until_s = time.perf_counter() + budget.seconds
        while len(warm) < MIN_WARM or (time.perf_counter() < until_s and len(warm) < budget.max_samples):
            warm.append(_sample(contender, cell.batches[len(warm) % len(cell.batches)]))
            if time.perf_counter() > until_s + 10 * budget.seconds:
                break
    finally:
        gc.enable()
    return {"new_us": _figures(new), "warm_us": _figures(warm)}


def _sample(contender: Contender, batch: Batch) -> tuple[int, int]:
    """Wall and CPU nanoseconds of one call; the CPU time is that of all threads of this process."""
    cpu, begin = time.process_time_ns(), time.perf_counter_ns()
    answer = contender.encode(batch)
    wall, cpu = time.perf_counter_ns() - begin, time.process_time_ns() - cpu
    # Freed here, not inside of the next sample.
    del answer
    return wall, cpu


def _figures(samples: list[tuple[int, int]]) -> dict[str, float]:
    wall, cpu = (np.array(column, np.float64) / 1e3 for column in zip(*samples, strict=True))
    p50, p95, p99 = np.quantile(wall, (0.5, 0.95, 0.99), method="inverted_cdf").tolist()
    return {"n": len(samples), "p50": p50, "p95": p95, "p99": p99, "cpu": float(cpu.mean())}
