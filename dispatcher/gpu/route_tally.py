"""What a GPU route counts, and the snapshot that metrics are made from."""

from __future__ import annotations

import threading
from array import array
from collections import Counter
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from dispatcher.meter import Histogram

N_SIZES = 28
"""Buckets of a size histogram: up to 1, 2, 4, ..., 2^26, and the open one."""
FOLDED = 256
"""Replays that are noted before they are counted: to count them one by one takes ten times as long."""
N_NOTED = 7
"""Numbers that are noted of each."""


class Sizes:
    """Counts of sizes by powers of two: bucket k holds those up to 2^k, the last one all others."""

    __slots__ = ("counts", "sum")

    def __init__(self) -> None:
        self.counts = [0] * N_SIZES
        self.sum = 0

    def add(self, sizes: NDArray[np.int64]) -> None:
        """Count some."""
        # An exponent is the length in bits, and to bring it about NumPy has nothing else.
        buckets = np.minimum(np.frexp(np.maximum(sizes - 1, 0))[1], N_SIZES - 1)
        self.counts = [
            a + b for a, b in zip(self.counts, np.bincount(buckets, minlength=N_SIZES).tolist(), strict=True)
        ]
        self.sum += int(sizes.sum())

    def copy(self) -> Sizes:
        """What was counted so far."""
        copy = Sizes()
        copy.counts, copy.sum = list(self.counts), self.sum
        return copy


class ClassKey(NamedTuple):
    """Labels of a size class: the tokenizer's digest, "" for all that are gone, and the bytes that the class holds."""

    model_key: str
    capacity: int


@dataclass(slots=True)
class Replays:
    """Replays of one size class that ended well."""

    times: Histogram = field(default_factory=Histogram)
    """From launch to completion, as the engine saw it."""
    n_bytes: int = 0
    n_documents: int = 0

    def add(self, other: Replays) -> None:
        """Count those of another row, too."""
        self.times.add(other.times)
        self.n_bytes += other.n_bytes
        self.n_documents += other.n_documents


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
    n_second: int
    """Replays behind others, over text that the device brought into normal form."""
    n_views: int
    """Documents whose ids were handed out without a copy."""
    stage_cpu_ns: int
    """CPU time of filling and launching by the threads that submit."""
    deliver_cpu_ns: int
    """CPU time of turns: waiting, results, what is launched then; without callbacks."""
    engine_cpu_ns: int


class RouteTally:
    """The counters. Replays are only noted where they end, and counted later, many at a time.

    Replays are noted by the route's thread, fallbacks by anybody.
    """

    def __init__(self) -> None:
        self.needs_cpu: Counter[str] = Counter()
        self.n_views = self.n_second = 0
        self.engine_cpu_ns = 0
        """Of the replays noted so far."""
        self._noted = array("q")
        self._classes: dict[ClassKey, int] = {}
        self._replays: list[Replays] = []
        """By the numbers in `_classes`."""
        self._batch_documents, self._batch_bytes = Sizes(), Sizes()
        self._stage_cpu_ns = self._deliver_cpu_ns = self._engine_cpu_ns = 0
        self._fallbacks: Counter[str] = Counter()
        self._n_rewritten = 0
        self._lock = threading.Lock()

    def completed(
        self,
        model_key: str,
        capacity: int,
        n_bytes: int,
        n_documents: int,
        replay_ns: int,
        engine_cpu_ns: int = 0,
        stage_cpu_ns: int = 0,
        deliver_cpu_ns: int = 0,
    ) -> None:
        """Note a replay; the first two are the fields of `ClassKey`. One that was lost took less than no time."""
        number = self._classes.get((model_key, capacity))  # type: ignore[call-overload]
        if number is None:
            number = self._number(ClassKey(model_key, capacity))
        self.engine_cpu_ns += engine_cpu_ns
        noted = self._noted
        noted.extend((number, n_bytes, n_documents, replay_ns, engine_cpu_ns, stage_cpu_ns, deliver_cpu_ns))
        if len(noted) >= FOLDED * N_NOTED:
            with self._lock:
                self._fold()

    def lost(self, model_key: str, capacity: int, n_bytes: int, n_documents: int) -> None:
        """Count a batch whose replay did not end."""
        self.completed(model_key, capacity, n_bytes, n_documents, -1)

    def forget(self, model_key: str) -> None:
        """A model is gone: its replays count with those of all that are."""
        with self._lock:
            self._fold()
            for key in [key for key in self._classes if key.model_key == model_key]:
                number = self._classes.pop(key)
                gone = self._row(ClassKey("", key.capacity))
                self._replays[gone].add(self._replays[number])
                # Somebody may note one more with this number.
                self._replays[number] = self._replays[gone]

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
            self._fold()
            return RouteSnapshot(
                ready,
                n_in_flight,
                n_waiting,
                n_waiting_bytes,
                n_held,
                self._batch_documents.copy(),
                self._batch_bytes.copy(),
                {
                    key: _copied(self._replays[number])
                    for key, number in self._classes.items()
                    if self._replays[number].times.n
                },
                dict(self._fallbacks),
                dict(self.needs_cpu),
                self._n_rewritten,
                self.n_second,
                self.n_views,
                self._stage_cpu_ns,
                self._deliver_cpu_ns,
                self._engine_cpu_ns,
            )

    def _number(self, key: ClassKey) -> int:
        with self._lock:
            return self._row(key)

    def _row(self, key: ClassKey) -> int:
        """Under the lock: the number of a row, made on first use."""
        if key not in self._classes:
            self._classes[key] = len(self._replays)
            self._replays.append(Replays())
        return self._classes[key]

    def _fold(self) -> None:
        """Under the lock: count what was noted; more of it may come meanwhile."""
        noted = self._noted
        n = len(noted) // N_NOTED * N_NOTED
        rows = np.frombuffer(noted[:n].tobytes(), np.int64).reshape(-1, N_NOTED)
        del noted[:n]
        self._batch_bytes.add(rows[:, 1])
        self._batch_documents.add(rows[:, 2])
        rows = rows[rows[:, 3] >= 0]
        for number in np.unique(rows[:, 0]).tolist():
            replays, own = self._replays[number], rows[rows[:, 0] == number]
            replays.times.observe_all(own[:, 3] * 1e-9)
            replays.n_bytes += int(own[:, 1].sum())
            replays.n_documents += int(own[:, 2].sum())
        engine_ns, stage_ns, deliver_ns = rows[:, 4:].sum(axis=0).tolist()
        self._engine_cpu_ns += engine_ns
        self._stage_cpu_ns += stage_ns
        self._deliver_cpu_ns += deliver_ns


def _copied(replays: Replays) -> Replays:
    copy = Replays()
    copy.add(replays)
    return copy
