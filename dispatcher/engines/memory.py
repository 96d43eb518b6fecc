"""The memory of this process."""

import resource
from pathlib import Path

_STATM = Path("/proc/self/statm")


def resident_bytes() -> int:
    """Bytes of memory that the process holds now (RSS); the peak so far where the system does not tell."""
    try:
        return int(_STATM.read_bytes().split()[1]) * resource.getpagesize()
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
