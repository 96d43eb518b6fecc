"""The memory of this process."""

import ctypes
import resource
from pathlib import Path

_STATM = Path("/proc/self/statm")


def resident_bytes() -> int:
    """Bytes of memory that the process holds now (RSS); the peak so far where the system does not tell."""
    try:
        return int(_STATM.read_bytes().split()[1]) * resource.getpagesize()
    except OSError:
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def release_free_memory() -> None:
    """Give free memory back to the system: glibc keeps most of what threads freed. Takes milliseconds, without the GIL.

    Does nothing with another C library.
    """
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(ctypes.c_size_t(0))
