"""CPU time of processes of this machine, by what the kernel says of them."""

from __future__ import annotations

import os
from pathlib import Path

TICKS_PER_S = os.sysconf("SC_CLK_TCK")


def cpu_time_s(pids: list[int]) -> float | None:
    """User and system time so far of these processes and all their children; None when one does not exist."""
    table = _table()
    wanted, seen = list(pids), set[int]()
    while wanted:
        pid = wanted.pop()
        if pid not in table:
            return None
        if pid not in seen:
            seen.add(pid)
            wanted += [child for child, (parent, _) in table.items() if parent == pid]
    return sum(table[pid][1] for pid in seen)


def _table() -> dict[int, tuple[int, float]]:
    """Parent and CPU time of every process; that of children that have ended is in it."""
    table = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            # It has ended meanwhile.
            continue
        table[int(entry.name)] = (int(fields[1]), sum(map(int, fields[11:15])) / TICKS_PER_S)
    return table
