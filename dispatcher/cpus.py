"""How many CPUs this process may use, and how many threads want one."""

from __future__ import annotations

import math
import os
import sys
import weakref
from pathlib import Path

_QUOTA = Path("/sys/fs/cgroup/cpu.max")
_LOAD = Path("/proc/loadavg")


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


class Runnable:
    """Looks at how many threads of the host run, or wait for a CPU. A look takes some 3 us."""

    def __init__(self, load: Path = _LOAD) -> None:
        """`load`: the file whose fourth field begins with their number."""
        try:
            self._fd = os.open(load, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            self._fd = -1
        else:
            weakref.finalize(self, os.close, self._fd)

    def count(self) -> int:
        """The number now, the calling thread among them; `sys.maxsize` where that is not known."""
        try:
            return int(os.pread(self._fd, 64, 0).split()[3].partition(b"/")[0])
        except (OSError, IndexError, ValueError):
            return sys.maxsize
