"""CPU time by part: threads of this process by name, and processes that it started."""

from __future__ import annotations

import os
import re
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path


@dataclass(slots=True)
class CpuTimes:
    """CPU time so far, in ns. The CPU time of a thread that ended stays in `process_ns`."""

    process_ns: int = 0
    threads_ns: dict[int, int] = field(default_factory=dict)
    """By native thread id."""
    children_ns: dict[int, int] = field(default_factory=dict)
    """By process id."""


def cpu_times() -> CpuTimes:
    """Read all clocks."""
    # Looking for processes takes milliseconds: not between the clocks of the process and of its threads.
    children = {pid: _clock_ns(pid, 2) for pid in descendants(os.getpid())}
    numbers = [int(path.name) for path in Path("/proc/self/task").iterdir()]
    process_ns = time.process_time_ns()
    return CpuTimes(process_ns, {number: _clock_ns(number, 6) for number in numbers}, children)


def parts_of(before: CpuTimes, after: CpuTimes) -> dict[str, int]:
    """CPU time between two readings, in ns, by name of thread without its number, and for `other threads`, `engine`."""
    names = {thread.native_id: re.sub(r"[-_ ]?\d+$", "", thread.name) for thread in threading.enumerate()}
    parts: dict[str, int] = {}
    left = after.process_ns - before.process_ns
    for thread, used_ns in after.threads_ns.items():
        spent = used_ns - before.threads_ns.get(thread, 0)
        if (name := names.get(thread)) is not None and spent > 0:
            parts[name] = parts.get(name, 0) + spent
            left -= spent
    parts["other threads"] = max(0, left)
    # A process that is gone, killed, took its last microseconds along.
    parts["engine"] = sum(used - before.children_ns.get(pid, 0) for pid, used in after.children_ns.items())
    return parts


def descendants(pid: int) -> list[int]:
    """Processes that a process started, and those that they started."""
    parents: dict[int, list[int]] = {}
    for path in Path("/proc").iterdir():
        if path.name.isdigit() and (parent := _parent(path)) is not None:
            parents.setdefault(parent, []).append(int(path.name))
    found, left = [], [pid]
    while left:
        children = parents.get(left.pop(), [])
        found += children
        left += children
    return found


def name_of(pid: int) -> str:
    """What a process calls itself; empty when it is gone."""
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""


def _parent(process: Path) -> int | None:
    try:
        return int((process / "stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return None


def _clock_ns(number: int, kind: int) -> int:
    """The CPU clock of a process (kind 2) or of a thread (kind 6), as the kernel numbers them; 0 when it is gone."""
    try:
        return time.clock_gettime_ns(~number << 3 | kind)
    except OSError:
        return 0
