"""What work costs on each route, learned all the time from what it did cost.

A cost is a line, fixed + per byte, that was measured at start (`calibration`), times a factor for each size class that
follows what is observed:

    predicted(n) = factor[class of n] * (fixed + byte * n)

Factors are followed in logarithms: twice as slow and twice as fast weigh the same. One stall hardly moves a factor; the
same surprise several times in a row does. What was not observed for long counts less and less, and in the end a class
takes the factor of the nearest one that was. Any thread may observe; of two at the same moment one may be lost.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

ASCII, MIXED, WIDE = "ascii", "mixed", "wide"
KINDS = (ASCII, MIXED, WIDE)
"""Content kinds: one byte a character; up to 1.5; more."""
SAMPLE = 512
"""Characters or bytes that the kind is judged by."""

N_CLASSES = 20
"""Size classes of costs: powers of 4. Class 5 is about 1 KiB, 6 about 4 KiB, ..., 19 about 256 GiB."""
FULL_WEIGHT = 9.0
"""An observation moves a factor by a tenth of the surprise, and by more while there are few."""
CLIP = 0.3
"""A surprise counts as 35 % at most, half of that more for each one before it on the same side."""
FEW = 3.0
"""Fewer observations than these are believed as they are."""
START_WEIGHT = 2.0
FORGET_NS = 30_000_000_000
"""Half of what is known of a class is forgotten in this time without an observation."""
KNOWN = 0.25
"""A class with less weight takes the factor of its nearest neighbour with more."""
AGE_NS = 1_000_000_000
OFTEN_NS = 3_000_000
"""Replays of a size class that is well known are observed once in so long: more of them say nothing new."""
SELDOM_NS = 32 * OFTEN_NS
"""Of one long document alone: twice as long after each that took about what was predicted, and so long at most."""
ALONE_OVER_BYTES = 1 << 18
"""A replay of one document with more bytes shares nothing, and is learned apart: replays of many documents take long
when the host is busy with as many requests, and a long document would be kept from GPUs if that were its cost."""
UNANSWERED_STEP = 0.05
"""What one document counts for in the part that is left unanswered."""


class Line(NamedTuple):
    """Nanoseconds: fixed, and for each byte."""

    fixed_ns: float
    byte_ns: float


class StartValues(NamedTuple):
    """What a route costs before anything was observed: time to completion, and host CPU of a document."""

    time: Line
    cpu: Line


UNSEEN = Line(1.0, 0.0)
"""Stands for what is not measured at start."""

DEFAULT_START = {
    "cpu": StartValues(Line(20_000, 20), Line(20_000, 20)),
    "gpu": StartValues(Line(80_000, 0.15), Line(40_000, 0.1)),
}
"""Used without a calibration: the order of magnitude of one core and of one GPU."""


class ClassCosts(NamedTuple):
    """One size class of a curve, for metrics."""

    size_class: int
    fixed_ns: float
    byte_ns: float
    weight: float


def size_class(n_bytes: int) -> int:
    """The class of a size; one spans a factor of 4."""
    return n_bytes.bit_length() >> 1


def content_kind(document: str | bytes | memoryview) -> str:
    """The content kind of a document, from its beginning; a str also by whether all of it is ASCII."""
    if isinstance(document, str):
        if document.isascii():
            return ASCII
        n_chars = min(len(document), SAMPLE)
        n_bytes = len(document[:SAMPLE].encode("utf-8", "surrogatepass"))
    else:
        sample = document[:SAMPLE] if isinstance(document, bytes) else bytes(document[:SAMPLE])
        if sample.isascii():
            return ASCII
        n_chars, n_bytes = len(sample.decode("utf-8", "ignore")), len(sample)
    return WIDE if n_bytes > 1.5 * n_chars else MIXED


class Curve:
    """One cost in nanoseconds by bytes."""

    __slots__ = ("_factors", "_fresh_ns", "_lines", "_seldom_ns", "_streaks", "_weights", "seen_ns", "start")

    def __init__(self, start: Line, weight: float = 0.0, seldom_ns: int = OFTEN_NS) -> None:
        """`weight`: what the start values count for, in observations of each class.

        `seldom_ns`: time between two observations of a size that is well known and stays as it is.
        """
        # No work takes no time: routes are compared by how many times as long they take.
        self.start = start = Line(max(start.fixed_ns, 1.0), start.byte_ns)
        self._lines = [start] * N_CLASSES
        self._factors = [0.0] * N_CLASSES
        self._weights = [weight] * N_CLASSES
        self._streaks = [0] * N_CLASSES
        self._fresh_ns = [OFTEN_NS] * N_CLASSES
        self._seldom_ns = seldom_ns
        self.seen_ns = [0] * N_CLASSES
        """When each class was observed last, on the clock of `observe`; 0 = never."""

    def at(self, n_bytes: int) -> float:
        """Predicted nanoseconds."""
        fixed_ns, byte_ns = self._lines[n_bytes.bit_length() >> 1]
        return fixed_ns + byte_ns * n_bytes

    def is_fresh(self, n_bytes: int, now_ns: int) -> bool:
        """Whether the size is well known and was observed within `OFTEN_NS`, or longer if it stays as it is."""
        at = n_bytes.bit_length() >> 1
        return self._weights[at] >= FULL_WEIGHT and 0 <= now_ns - self.seen_ns[at] < self._fresh_ns[at]

    def fresh_until_ns(self, n_bytes: int) -> int:
        """Until when a size that is well known is fresh; 0 when it is not known well."""
        at = n_bytes.bit_length() >> 1
        return self.seen_ns[at] + self._fresh_ns[at] if self._weights[at] >= FULL_WEIGHT else 0

    def observe(self, n_bytes: int, took_ns: float, now_ns: int) -> None:
        """Learn from one piece of work."""
        at = size_class(n_bytes)
        weight = self._weights[at]
        surprise = math.log(max(took_ns, 1.0) / max(self.at(n_bytes), 1.0))
        self._fresh_ns[at] = OFTEN_NS if abs(surprise) > CLIP else min(2 * self._fresh_ns[at], self._seldom_ns)
        if weight <= KNOWN:
            # What it was judged by so far may be its neighbour's.
            self._factors[at] = math.log(max(self.at(n_bytes), 1.0) / self._start_at(n_bytes))
        if weight > FEW:
            surprise = self._clipped(at, surprise)
        self._factors[at] += surprise / (weight + 1.0)
        self._weights[at] = min(weight + 1.0, FULL_WEIGHT)
        self.seen_ns[at] = now_ns
        self._draw(at, self._factors[at])
        if weight <= FEW:
            self._borrow()

    def age(self, elapsed_ns: int, now_ns: int) -> None:
        """Forget some of the classes that were not observed in the last `elapsed_ns`."""
        kept = 0.5 ** (elapsed_ns / FORGET_NS)
        for at in range(N_CLASSES):
            if now_ns - self.seen_ns[at] > elapsed_ns:
                self._weights[at] *= kept
        self._borrow()

    def snapshot(self) -> list[ClassCosts]:
        """The classes that were ever observed."""
        return [ClassCosts(at, *self._lines[at], self._weights[at]) for at in range(N_CLASSES) if self.seen_ns[at]]

    def _borrow(self) -> None:
        """Let classes that nothing is known of have what is known of their nearest neighbours."""
        known = [at for at in range(N_CLASSES) if self._weights[at] > KNOWN]
        for at in range(N_CLASSES):
            if self._weights[at] <= KNOWN:
                nearest = min(known, key=lambda other: abs(other - at), default=None)
                self._draw(at, 0.0 if nearest is None else self._factors[nearest])

    def _clipped(self, at: int, surprise: float) -> float:
        if abs(surprise) <= CLIP:
            self._streaks[at] = 0
            return surprise
        side = 1 if surprise > 0 else -1
        streak = self._streaks[at] = self._streaks[at] + side if self._streaks[at] * side > 0 else side
        limit = CLIP * (1 + (abs(streak) - 1) / 2)
        return side * min(abs(surprise), limit)

    def _start_at(self, n_bytes: int) -> float:
        return max(self.start.fixed_ns + self.start.byte_ns * n_bytes, 1.0)

    def _draw(self, at: int, factor: float) -> None:
        times = math.exp(factor)
        self._lines[at] = Line(self.start.fixed_ns * times, self.start.byte_ns * times)


@dataclass(slots=True)
class RouteCost:
    """What one route costs for one model and content kind."""

    time: Curve
    """From the start of the work to its end. On the GPU route: of a whole replay, by the bytes of its batch."""
    cpu: Curve
    """Host CPU of one document, by its bytes, in all processes."""
    alone: Curve
    """On the GPU route, `time` of replays of one document with more than `ALONE_OVER_BYTES`."""
    work: Curve = field(default_factory=lambda: Curve(UNSEEN))
    """Of the GPU route's `time`, what it works itself: device and host CPU. The rest is waiting for the host."""
    beside: Curve = field(default_factory=lambda: Curve(UNSEEN))
    """On the GPU route, the time that a document needs beside its replay: until it is queued, and from its ids to its
    answer, by its bytes."""
    unanswered: list[float] = field(default_factory=lambda: [0.0] * N_CLASSES)
    """Part of the documents, by size class, that the route leaves to the other one."""

    def age(self, elapsed_ns: int, now_ns: int) -> None:
        """Forget some of what was not observed in the last `elapsed_ns`."""
        for curve in (self.time, self.cpu, self.alone, self.work, self.beside):
            curve.age(elapsed_ns, now_ns)
        kept = 0.5 ** (elapsed_ns / FORGET_NS)
        for at, part in enumerate(self.unanswered):
            if part and now_ns - self.cpu.seen_ns[at] > elapsed_ns:
                self.unanswered[at] = part * kept


class CostKey(NamedTuple):
    """Labels of a cost."""

    route: str
    model: str
    kind: str


class Costs:
    """Costs of both routes by model and content kind."""

    def __init__(self, start: Mapping[CostKey, StartValues] | None = None) -> None:
        """`start`: measured values (`calibration`); more can be added with `begin` when a model was loaded."""
        self.leaves_any = False
        """Whether a GPU ever left a document unanswered."""
        self._costs: dict[tuple[str, str, str], RouteCost] = {}
        self._aged_ns = 0
        for key, values in (start or {}).items():
            self.begin(key, values)

    def begin(self, key: CostKey, values: StartValues) -> None:
        """Set the start values of a route, model and kind; forgets what was observed of it."""
        self._costs[key] = _route_cost(values, START_WEIGHT)

    def forget(self, model: str) -> None:
        """A model is gone."""
        for key in [key for key in tuple(self._costs) if key[1] == model]:
            self._costs.pop(key, None)

    def of(self, route: str, model: str, kind: str) -> RouteCost:
        """The cost, live; made from `DEFAULT_START` on first use."""
        cost = self._costs.get((route, model, kind))
        if cost is None:
            cost = self._costs.setdefault((route, model, kind), _route_cost(DEFAULT_START[route], 0.0))
        return cost

    def observe_cpu_route(
        self, model: str, kind: str, n_bytes: int, n_documents: int, took_ns: int, cpu_ns: int, now_ns: int
    ) -> None:
        """Documents that one worker encoded one after the other, or in one native call."""
        cost = self.of("cpu", model, kind)
        each = n_bytes // n_documents
        cost.time.observe(each, took_ns / n_documents, now_ns)
        cost.cpu.observe(each, cpu_ns / n_documents, now_ns)
        self._age(now_ns)

    def observe_gpu_route(
        self,
        model: str,
        kind: str,
        n_bytes: int,
        n_documents: int,
        took_ns: int,
        cpu_ns: int,
        now_ns: int,
        n_unanswered: int = 0,
        replay_ns: int = 0,
    ) -> int:
        """One replay, from launch to results at hand, and the host CPU that it took in all processes.

        `replay_ns`: what the device worked of that; 0 = unknown. Returns until when a replay of such a size that leaves
        nothing unanswered need not be observed; 0 = it should be.
        """
        cost = self.of("gpu", model, kind)
        each = n_bytes // n_documents
        time = cost.alone if each > ALONE_OVER_BYTES else cost.time
        if not n_unanswered and time.is_fresh(n_bytes, now_ns) and not cost.unanswered[each.bit_length() >> 1]:
            return time.fresh_until_ns(n_bytes)
        time.observe(n_bytes, took_ns, now_ns)
        cost.work.observe(n_bytes, min(took_ns, replay_ns + cpu_ns) if replay_ns else took_ns, now_ns)
        cost.cpu.observe(each, cpu_ns / n_documents, now_ns)
        at = size_class(each)
        part = cost.unanswered[at]
        if n_unanswered or part:
            self.leaves_any = True
            weight = min(0.5, UNANSWERED_STEP * n_documents)
            cost.unanswered[at] = part + weight * (n_unanswered / n_documents - part)
        self._age(now_ns)
        return 0 if cost.unanswered[at] else time.fresh_until_ns(n_bytes)

    def observe_gpu_answer(self, model: str, kind: str, each: int, beside_ns: int, now_ns: int) -> None:
        """A document of `each` bytes was answered, and took so long beside its replay."""
        beside = self.of("gpu", model, kind).beside
        if not beside.is_fresh(each, now_ns):
            beside.observe(each, beside_ns, now_ns)

    def snapshot(self) -> dict[CostKey, tuple[list[ClassCosts], list[ClassCosts]]]:
        """Time and host CPU of everything that was observed; callable from any thread.

        Of replays of a size, those of one document where there were such.
        """
        return {CostKey(*key): (_times(cost), cost.cpu.snapshot()) for key, cost in tuple(self._costs.items())}

    def _age(self, now_ns: int) -> None:
        elapsed = now_ns - self._aged_ns
        if elapsed < AGE_NS:
            return
        self._aged_ns = now_ns
        if elapsed == now_ns:
            return
        for cost in tuple(self._costs.values()):
            cost.age(elapsed, now_ns)


def _route_cost(start: StartValues, weight: float) -> RouteCost:
    return RouteCost(Curve(start.time, weight), Curve(start.cpu, weight), Curve(start.time, weight, SELDOM_NS))


def _times(cost: RouteCost) -> list[ClassCosts]:
    alone = {row.size_class: row for row in cost.alone.snapshot()}
    shared = {row.size_class: row for row in cost.time.snapshot()}
    return [row for _, row in sorted((shared | alone).items())]
