"""Beyond the table of policies: long documents, one huge document among small ones, and engines killed under load."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from loadtest.schedule import Times
from tests.benchmarks.dispatch_load import Load, documents_of
from tests.benchmarks.dispatch_run import DRAIN_S, CountingTarget, Row, Trial
from tests.gpu_core.device_data import Reference, window

LONG_BYTES = 480_000
LONG_RATES = (500, 1000, 2000, 3000, 4000)
LONG_SAMPLES = 6
"""The reference takes a quarter of a second for one of 480 KB."""
KEPT_UP = 0.97
SMALL_BYTES, HUGE_BYTES = 2 << 10, 8 << 20
N_SMALL, N_BURSTS = 100, 40
BURST_NS, SMALL_NS = 25_000_000, 20_000
"""Bursts begin so far apart, and their documents follow each other at this distance."""
LOOK_S = 0.002


class Service(Protocol):
    """What the drills need of the service under test."""

    def target(self, policy: str) -> CountingTarget:
        """The service with that policy."""

    def engines(self) -> list[int]:
        """Process ids of the engines, up or not."""

    def n_ready(self) -> int:
        """Engines that take documents now."""


class Bench:
    """Texts, reference and CPUs of all runs, and the time when the last one must have begun."""

    def __init__(
        self, corpora: dict[str, bytes], reference: Reference, generator_cpus: set[int] | None, until_s: float
    ) -> None:
        self.corpora, self.reference = corpora, reference
        self.generator_cpus, self._until_s = generator_cpus, until_s

    def has_time(self) -> bool:
        """Whether another run may begin."""
        return time.monotonic() < self._until_s

    def trial(self, load: Load, n_samples: int = 64) -> Trial:
        """See `Trial.of`."""
        return Trial.of(load, self.corpora, self.reference, n_samples)


def long_documents(
    bench: Bench,
    targets: Sequence[CountingTarget],
    rates: Sequence[int],
    seconds: float,
    n_samples: int = LONG_SAMPLES,
    drain_s: float = DRAIN_S,
) -> Iterator[Row]:
    """Documents of 480 KB at growing rates; a target that does not keep up with one is not offered the next."""
    left = list(targets)
    for rate in rates:
        if not left or not bench.has_time():
            return
        trial = bench.trial(Load(rate, seconds, LONG_BYTES, LONG_BYTES, seed=rate), n_samples)
        for target in tuple(left):
            row = trial.run(target, bench.generator_cpus, drain_s=drain_s, offered_per_s=rate)
            if row["unanswered"] or row["achieved_per_s"] < KEPT_UP * trial.rate:
                left.remove(target)
            yield row


def huge_among_small(bench: Bench, target: CountingTarget) -> Iterator[Row]:
    """Bursts of a hundred documents of 2 KiB, then with one of 8 MiB in their midst: latency of the small ones."""
    for with_huge in (False, True):
        documents, due_ns, is_small = bursts(bench, with_huge)
        trial = Trial(documents, due_ns, bench.reference, n_samples=32 if not with_huge else 0)
        yield trial.run(target, bench.generator_cpus, is_small, huge=with_huge)


def bursts(bench: Bench, with_huge: bool, n_bursts: int = N_BURSTS) -> tuple[list[bytes], Times, NDArray[np.bool_]]:
    """Documents, intended starts, and which of them are small."""
    small = documents_of(Load(N_SMALL * n_bursts, 1.0, SMALL_BYTES, SMALL_BYTES, seed=5), bench.corpora)
    everything = b"\n".join(bench.corpora.values())
    documents: list[bytes] = []
    due_ns: list[int] = []
    for burst in range(n_bursts):
        begin_ns = burst * BURST_NS
        for k in range(N_SMALL):
            if with_huge and k == N_SMALL // 2:
                documents.append(window(everything, burst * 4096, HUGE_BYTES))
                due_ns.append(begin_ns + k * SMALL_NS)
            documents.append(small[burst * N_SMALL + k])
            due_ns.append(begin_ns + k * SMALL_NS)
    sizes = np.array([len(document) for document in documents])
    return documents, np.array(due_ns, dtype=np.int64), sizes <= SMALL_BYTES


def kill_one(bench: Bench, service: Service, target: CountingTarget, load: Load, kill_after_s: float) -> Row:
    """Kill the first engine in the middle of a load. Every document must be answered once, with the right ids."""
    trial = bench.trial(load)
    watch = _Watch(service, target, kill_after_s)
    watch.start()
    row = trial.run(target, bench.generator_cpus, offered_per_s=load.rate)
    watch.stop()
    return row | watch.findings()


class _Watch(threading.Thread):
    """Kills an engine and looks at the service until as many are ready as before, and documents go there again."""

    def __init__(self, service: Service, target: CountingTarget, kill_after_s: float) -> None:
        super().__init__(name="watch", daemon=True)
        self._service, self._target, self._kill_after_s = service, target, kill_after_s
        self._stopped = threading.Event()
        self._killed_ns = self._noticed_ns = self._ready_ns = self._used_ns = 0
        self._n_before = self._n_least = 0

    def run(self) -> None:
        """See `threading.Thread`."""
        if self._stopped.wait(self._kill_after_s):
            return
        self._n_before = self._n_least = self._service.n_ready()
        os.kill(self._service.engines()[0], signal.SIGKILL)
        self._killed_ns = time.perf_counter_ns()
        used_at_ready = 0.0
        while not self._stopped.wait(LOOK_S):
            now_ns, n_ready = time.perf_counter_ns(), self._service.n_ready()
            self._n_least = min(self._n_least, n_ready)
            if not self._noticed_ns:
                self._noticed_ns = now_ns if n_ready < self._n_before else 0
            elif not self._ready_ns:
                if n_ready == self._n_before:
                    self._ready_ns, used_at_ready = now_ns, self._target.counters()["gpu_documents"]
            elif not self._used_ns and self._target.counters()["gpu_documents"] > used_at_ready:
                self._used_ns = now_ns

    def stop(self) -> None:
        """End the watch."""
        self._stopped.set()
        self.join()

    def findings(self) -> Row:
        """Times since the kill, in ms; None for what did not happen before the end of the load."""
        times = {"noticed_ms": self._noticed_ns, "ready_ms": self._ready_ns, "used_ms": self._used_ns}
        since = {name: (at_ns - self._killed_ns) / 1e6 if at_ns else None for name, at_ns in times.items()}
        return {"engines": self._n_before, "engines_least": self._n_least, **since}
