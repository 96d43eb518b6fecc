"""How many CPUs this process may use."""

from __future__ import annotations

import math
import os
from pathlib import Path

_QUOTA = Path("/sys/fs/cgroup/cpu.max")


def usable_cpus(quota: Path = _QUOTA) -> int:
    """CPUs of the process's affinity, or fewer where its control group (version 2) gets less time; at least 1.

    `quota`: the file with the microseconds of CPU time in each period, and the period; `max` is no bound.
    """
    n_cpus = len(os.sched_getaffinity(0))
    try:
        allowed, period = quota.read_text().split()
        return max(1, min(n_cpus, math.ceil(int(allowed) / int(period))))
    except (OSError, ValueError, ZeroDivisionError):
        return n_cpus
