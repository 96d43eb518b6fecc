"""What a GPU route counts, and the snapshot that metrics are made from."""

from __future__ import annotations

import threading
from collections import Counter
from dataclasses import dataclass, field
from typing import NamedTuple

from dispatcher.meter import Histogram

N_SIZES = 28
"""Buckets of a size histogram: up to 1, 2, 4, ..., 2^26, and the open one."""


class Sizes:
    """Counts of sizes by powers of two: bucket k holds those up to 2^k, the last one all others."""

    __slots__ = ("counts", "sum")

    def __init__(self) -> None:
        self.counts = [0] * N_SIZES
        self.sum = 0

    def observe(self, size: int) -> None:
        """Count one size, at least 1."""
        self.counts[min((size - 1).bit_length(), N_SIZES - 1)] += 1
        self.sum += size

    def copy(self) -> Sizes:
        """What was counted so far."""
        copy = Sizes()
        copy.counts, copy.sum = list(self.counts), self.sum
        return copy


class ClassKey(NamedTuple):
    """Labels of a size class: the tokenizer's digest, and the bytes that the class holds."""

    model_key: str
    capacity: int


@dataclass(slots=True)
class Replays:
    """Replays of one size class that ended well."""

    times: Histogram = field(default_factory=Histogram)
    """From launch to completion, as the engine saw it."""
    n_bytes: int = 0
    n_documents: int = 0


@dataclass(slots=True)
class RouteSnapshot:
    """Sums since the route was made; `n_in_flight` and `n_waiting` are of this moment."""

    ready: bool
    n_in_flight: int
    """Replays under way."""
    n_waiting: int
    """Documents that are not launched yet."""
    n_waiting_bytes: int
    n_held: int
    """Slots that handed-out results keep from being filled again."""
    batch_documents: Sizes
    batch_bytes: Sizes
    replays: dict[ClassKey, Replays]
    """By size class, which is also how often each step of the ladder was hit."""
    fallbacks: dict[str, int]
    """Groups by the reason why they left without an answer (`group.FALLBACK_REASONS`)."""
    needs_cpu: dict[str, int]
    """Documents by the reason why the device did not answer them."""
    n_rewritten: int
    """Documents that came a second time, rewritten to normal form."""
    n_views: int
    """Documents whose ids were handed out without a copy."""
    stage_cpu_ns: int
    """CPU time of filling and launching by the threads that submit."""
    deliver_cpu_ns: int
    """CPU time of turns: waiting, results, what is launched then; without callbacks."""
    engine_cpu_ns: int


class RouteTally:
    """The counters. Launches are counted under the route's lock, completions by its thread, fallbacks by anybody."""

    def __init__(self) -> None:
        self.batch_documents, self.batch_bytes = Sizes(), Sizes()
        self.replays: dict[ClassKey, Replays] = {}
        self.needs_cpu: Counter[str] = Counter()
        self.n_views = 0
        self.stage_cpu_ns = self.deliver_cpu_ns = self.engine_cpu_ns = 0
        self._fallbacks: Counter[str] = Counter()
        self._n_rewritten = 0
        self._lock = threading.Lock()

    def completed(
        self, key: tuple[str, int], n_bytes: int, n_documents: int, replay_ns: int, engine_cpu_ns: int
    ) -> None:
        """Count a replay; the fields of `ClassKey` make the key."""
        replays = self.replays.get(key)  # type: ignore[call-overload]
        if replays is None:
            replays = self.replays[ClassKey(*key)] = Replays()
        replays.times.observe(replay_ns * 1e-9)
        replays.n_bytes += n_bytes
        replays.n_documents += n_documents
        self.engine_cpu_ns += engine_cpu_ns

    def fell_back(self, reason: str) -> None:
        """Count a group that leaves without an answer."""
        with self._lock:
            self._fallbacks[reason] += 1

    def came_again(self, n_documents: int) -> None:
        """Count documents that were rewritten and are tried a second time."""
        with self._lock:
            self._n_rewritten += n_documents

    def snapshot(
        self, ready: bool, n_in_flight: int, n_waiting: int, n_waiting_bytes: int, n_held: int
    ) -> RouteSnapshot:
        """A copy; callable from any thread."""
        with self._lock:
            fallbacks, n_rewritten = dict(self._fallbacks), self._n_rewritten
        return RouteSnapshot(
            ready,
            n_in_flight,
            n_waiting,
            n_waiting_bytes,
            n_held,
            self.batch_documents.copy(),
            self.batch_bytes.copy(),
            {key: _copied(replays) for key, replays in tuple(self.replays.items())},
            fallbacks,
            dict(self.needs_cpu),
            n_rewritten,
            self.n_views,
            self.stage_cpu_ns,
            self.deliver_cpu_ns,
            self.engine_cpu_ns,
        )


def _copied(replays: Replays) -> Replays:
    copy = Replays(n_bytes=replays.n_bytes, n_documents=replays.n_documents)
    copy.times.add(replays.times)
    return copy
