"""The CPU that benchmarks run on."""

from __future__ import annotations

import os
import time

import pytest

from tests.benchmarks.fastest_cpu import FastestCpu


def test_the_cpu_with_the_lowest_median_is_taken() -> None:
    """A CPU that was slow in one of two rounds is not the fastest one."""
    assert FastestCpu({0: 31.0, 3: 27.5, 5: 29.0}).number == 3


def test_every_cpu_is_probed_twice_and_the_thread_is_free_again() -> None:
    """Each step runs on the CPU that it is counted for, and nothing stays pinned."""
    allowed, seen = os.sched_getaffinity(0), []

    def step() -> None:
        seen.append(os.sched_getaffinity(0))
        time.sleep(0)

    probe = FastestCpu.probe(step, 0.0)
    assert set(probe.medians_ns) == allowed
    assert seen == [{cpu} for cpu in sorted(allowed)] * 2
    assert os.sched_getaffinity(0) == allowed


def test_a_pinned_thread_is_free_again_after_an_error() -> None:
    """Whatever happens while a thread is pinned, it is not pinned afterwards."""
    allowed = os.sched_getaffinity(0)
    cpu = FastestCpu({min(allowed): 1.0})
    seen: list[set[int]] = []

    def fail() -> None:
        with cpu.pinned():
            seen.append(os.sched_getaffinity(0))
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert seen == [{min(allowed)}]
    assert os.sched_getaffinity(0) == allowed
