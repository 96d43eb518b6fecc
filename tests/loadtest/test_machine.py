"""Facts of machine and processes, as the kernel has them."""

from __future__ import annotations

import os
import subprocess
import sys

from loadtest.machine import machine_facts, versions
from loadtest.processes import cpu_time_s


def test_facts() -> None:
    """CPU, memory and versions are there."""
    facts = machine_facts()
    assert facts["usable_cpus"] >= 1
    assert facts["memory_gib"] > 0
    assert isinstance(facts["gpus"], list)
    assert versions()["python"] == sys.version.split()[0]
    assert "tokenizers" in versions()


def test_cpu_time_includes_children() -> None:
    """The time of a process holds that of the processes it started; one that does not exist has none."""
    own = cpu_time_s([os.getpid()])
    assert own is not None
    subprocess.run([sys.executable, "-c", "sum(range(20_000_000))"], check=True)
    after = cpu_time_s([os.getpid()])
    assert after is not None
    assert after > own
    assert cpu_time_s([2**22 + 1]) is None
    assert cpu_time_s([]) == 0
