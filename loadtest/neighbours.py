"""Busy processes beside the service, as an agent's host has them: compiles and searches, as fast as they can."""

from __future__ import annotations

import multiprocessing
import os
import re
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from multiprocessing.sharedctypes import Synchronized

from loadtest.texts import standard_library

SOURCE_BYTES = 400_000
PATTERNS = (rb"def \w+\(", rb"(?i)error|warning", rb"\b[A-Z]\w+Error\b", rb"import (\w+)")


@dataclass(slots=True)
class Neighbours:
    """The processes, and how often each has done its piece of work."""

    processes: list[BaseProcess]
    counts: list[Synchronized[int]]

    @property
    def n_done(self) -> int:
        """Pieces of work of all of them so far."""
        return sum(count.value for count in self.counts)


@contextmanager
def busy(n: int, cpus: set[int]) -> Iterator[Neighbours]:
    """Keep `n` processes busy on these CPUs, compiling and searching in turn; they are gone afterwards."""
    context = multiprocessing.get_context("spawn")
    counts = [context.Value("q", 0, lock=False) for _ in range(n)]
    neighbours = Neighbours([], counts)
    try:
        for k, count in enumerate(counts):
            process: BaseProcess = context.Process(target=_work, args=(k % 2 == 0, count, cpus), daemon=True)
            process.start()
            neighbours.processes.append(process)
        while not all(count.value for count in counts):
            time.sleep(0.02)
            if not all(process.is_alive() for process in neighbours.processes):
                break
        yield neighbours
    finally:
        for process in neighbours.processes:
            process.kill()
            process.join()


def _work(compiles: bool, count: Synchronized[int], cpus: set[int]) -> None:
    # Ctrl-C is for the whole group of processes; this one has nothing to say about it.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    os.sched_setaffinity(0, cpus)
    source = standard_library(SOURCE_BYTES)
    # Whole statements only: the library's modules end with a blank line between them.
    text = source[: source.rfind(b"\n\n")]
    patterns = [re.compile(pattern) for pattern in PATTERNS]
    modules = [part for part in re.split(rb"\n(?=class )", text) if _compiles(part)]
    while True:
        if compiles:
            for module in modules:
                compile(module, "neighbour", "exec")
        else:
            for pattern in patterns:
                pattern.findall(text)
        count.value += 1


def _compiles(source: bytes) -> bool:
    try:
        compile(source, "neighbour", "exec")
    except (SyntaxError, ValueError):
        return False
    return True
