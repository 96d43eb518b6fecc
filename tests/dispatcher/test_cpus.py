"""How many CPUs this process may use."""

import os
from pathlib import Path

import pytest

from dispatcher.cpus import usable_cpus

N_CPUS = len(os.sched_getaffinity(0))


@pytest.mark.parametrize(
    ("quota", "n_cpus"),
    [
        ("max 100000\n", N_CPUS),
        ("50000 100000\n", 1),
        ("100000 100000\n", 1),
        ("150000 100000\n", min(N_CPUS, 2)),
        ("100000000 100000\n", N_CPUS),
        ("1 0\n", N_CPUS),
        ("", N_CPUS),
    ],
)
def test_the_share_of_a_container_counts(tmp_path: Path, quota: str, n_cpus: int) -> None:
    """A part of a CPU is rounded up; what cannot be read is no bound."""
    file = tmp_path / "cpu.max"
    file.write_text(quota)
    assert usable_cpus(file) == n_cpus


def test_affinity_counts_without_a_quota(tmp_path: Path) -> None:
    """CPUs that the process is kept from do not count."""
    before = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {min(before)})
        assert usable_cpus(tmp_path / "none") == 1
    finally:
        os.sched_setaffinity(0, before)
