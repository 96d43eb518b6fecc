"""Open-loop load: documents and a schedule that are fixed before a run, a thread that offers them, and what came back.

Latency counts from the intended start of each document, so that a generator that falls behind, or a service that makes
it wait, adds to the latency instead of hiding it (no coordinated omission).
"""

from __future__ import annotations

import os
import threading
import time
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

import numpy as np

from gpu_core.waiting import sharpen_sleep
from loadtest.schedule import NS, Arrivals, Times

MIN_BYTES, MAX_BYTES = 1 << 10, 1 << 14
LONG_BYTES = 1 << 16
"""A longer document is handed over alone, since a group is answered as a whole. It is read once before it is due, if
there is time: what a socket received lies in a cache, too."""
START_AFTER_NS = 20_000_000
"""The first document is due so long after the generator was started."""
LOOK_S = 0.002
"""Time between looks at what was answered, once everything was offered."""
BEHIND_NS = 20_000
"""A target that is driven gets a turn at once when the next document is due so soon: there may be no other moment."""
OWN_AT_MOST_NS = 10_000
"""What a generator that drives counts for itself each time it offers something; more is an interruption."""
N_SAMPLES = 64
"""Documents of a run whose ids are compared with the reference."""


@dataclass(frozen=True, slots=True)
class Load:
    """What is offered. `shape` is that of the Gamma distribution of the gaps: 1 is Poisson, less comes in bursts."""

    rate: float
    seconds: float
    min_bytes: int = MIN_BYTES
    max_bytes: int = MAX_BYTES
    shape: float = 1.0
    seed: int = 0

    @property
    def n_documents(self) -> int:
        """Documents of the whole run."""
        return max(1, round(self.rate * self.seconds))


def schedule(load: Load) -> Times:
    """Intended starts in ns from the beginning of the run, ascending."""
    rng = np.random.default_rng([load.seed, 1])
    gaps = Arrivals(load.shape).gaps(load.n_documents, rng)
    return (np.cumsum(gaps) * (NS / load.rate)).astype(np.int64)


def documents_of(load: Load, corpora: Mapping[str, bytes]) -> list[bytes]:
    """Windows of the corpora in equal shares, sizes log-uniform, each from another place, cut between characters."""
    rng = np.random.default_rng([load.seed, 2])
    n = load.n_documents
    sizes = np.exp(rng.uniform(np.log(load.min_bytes), np.log(load.max_bytes), n)).astype(np.int64)
    kinds = rng.permutation(np.arange(n) % len(corpora))
    documents: list[bytes] = [b""] * n
    for kind, text in enumerate(corpora.values()):
        places = np.flatnonzero(kinds == kind)
        starts, ends = _windows(rng, text, sizes[places])
        for place, start, end in zip(places.tolist(), starts.tolist(), ends.tolist(), strict=True):
            documents[place] = text[start:end]
    return documents


def _windows(rng: np.random.Generator, text: bytes, sizes: Times) -> tuple[Times, Times]:
    """Starts and ends of windows. Starts differ by 4 bytes or more before they move to the next character."""
    data = np.frombuffer(text, dtype=np.uint8)
    room = max(1, (len(text) - int(sizes.max(initial=1)) - 4) // 4)
    # Only when there are more windows than places does one come twice.
    laps = [rng.permutation(room) for _ in range(-(-len(sizes) // room))]
    starts = np.concatenate([*laps, np.empty(0, np.int64)])[: len(sizes)].astype(np.int64) * 4
    ends = np.minimum(starts + sizes, len(text) - 1)
    for _ in range(3):
        starts += (data[starts] & 0xC0) == 0x80
        ends -= (data[ends] & 0xC0) == 0x80
    return starts, ends


class Record:
    """What became of each document of a run. `answered` and `refused` may be called from any thread.

    What the service calls only notes the time: it runs on the service's threads and counts as their work.
    """

    def __init__(self, n_documents: int, seed: int = 0, n_samples: int = N_SAMPLES) -> None:
        self.done_ns: Times = np.zeros(n_documents, dtype=np.int64)
        """The arrays are filled by `wait`."""
        self.n_answers = np.zeros(n_documents, dtype=np.uint8)
        self.was_refused = np.zeros(n_documents, dtype=np.bool_)
        rng = np.random.default_rng([seed, 3])
        self.samples: list[int] = sorted(rng.choice(n_documents, min(n_samples, n_documents), replace=False).tolist())
        is_sample = np.zeros(n_documents, dtype=np.uint8)
        is_sample[self.samples] = 1
        self._is_sample = is_sample.tobytes()
        self.kept: dict[int, bytes] = {}
        """Ids of the samples, packed uint32."""
        self.faults: list[str] = []
        self._answers: list[tuple[int, int, int]] = []
        self._refusals: list[tuple[int, int]] = []

    def answered(self, first: int, n_documents: int) -> None:
        """Documents `first` and following were answered now."""
        self._answers.append((first, n_documents, time.perf_counter_ns()))

    def refused(self, first: int, n_documents: int) -> None:
        """The service did not take them, or gave them up."""
        self._refusals.append((first, n_documents))

    def sampled(self, first: int, n_documents: int) -> list[int]:
        """The samples among these documents."""
        if self._is_sample.find(1, first, first + n_documents) < 0:
            return []
        return [number for number in range(first, first + n_documents) if self._is_sample[number]]

    def wait(self, timeout_s: float, rest: Callable[[float], object] = time.sleep) -> bool:
        """Wait until every document was answered or refused, and fill the arrays; false when that took too long.

        `rest` is what passes the time; see `rest_of`.
        """
        until_s = time.monotonic() + timeout_s
        while (is_missing := self._n_seen() < len(self.done_ns)) and time.monotonic() < until_s:
            rest(LOOK_S)
        if self._answers:
            first, n_documents, now_ns = np.array(self._answers, dtype=np.int64).T
            documents = _ranges(first, n_documents)
            self.done_ns[documents] = np.repeat(now_ns, n_documents)
            np.add.at(self.n_answers, documents, 1)
        if self._refusals:
            self.was_refused[_ranges(*np.array(self._refusals, dtype=np.int64).T)] = True
        return not is_missing

    def _n_seen(self) -> int:
        # Both lists only grow.
        return sum([n for _, n, _ in self._answers]) + sum([n for _, n in self._refusals])


def _ranges(first: Times, lengths: Times) -> Times:
    """All numbers of ranges that begin at `first`, one range after the other."""
    ends = np.cumsum(lengths)
    numbers: Times = np.arange(ends[-1]) + np.repeat(first - ends + lengths, lengths)
    return numbers


class Target(Protocol):
    """Something that encodes documents and tells the record."""

    name: str

    def submit(self, first: int, documents: Sequence[bytes], record: Record) -> None:
        """Take documents `first` and following. Does not wait for them."""


@runtime_checkable
class Driving(Protocol):
    """A target whose caller drives it in the time between two calls."""

    def rest(self, seconds: float) -> int:
        """Let it work until something is done, or for so long; the CPU time in ns of what was only a wait."""


@runtime_checkable
class Receiving(Protocol):
    """A target that says where a long document is received."""

    def receive(self, document: bytes) -> bytes:
        """The document, written to memory of the target."""


def rest_of(target: object) -> Callable[[float], object]:
    """How to pass time with a target."""
    return target.rest if isinstance(target, Driving) else time.sleep


@dataclass(slots=True)
class Offered:
    """What the generator did, all times in ns."""

    start_ns: int = 0
    """Intended starts count from here."""
    own_cpu_ns: int = 0
    """CPU time of the generator's thread for itself: choosing what is due, and waiting while nothing is under way."""
    turn_cpu_ns: int = 0
    """All other CPU time of the generator's thread when it drives the target: work of the service, too."""
    submit_cpu_ns: int = 0
    """CPU time of the generator's thread inside of `submit`: that is work of the service."""
    n_groups: int = 0
    sent_ns: Times = field(default_factory=lambda: np.empty(0, dtype=np.int64))
    """When each document was handed over."""


class Generator(threading.Thread):
    """Offers the documents that are due, in one group each time it wakes. It sleeps in between and never spins."""

    def __init__(
        self, target: Target, due_ns: Times, documents: Sequence[bytes], record: Record, cpus: set[int] | None
    ) -> None:
        super().__init__(name="generator", daemon=True)
        self.offered = Offered(sent_ns=np.zeros(len(documents), dtype=np.int64))
        self._target, self._due_ns, self._documents = target, due_ns, documents
        self._record, self._cpus = record, cpus
        places = [place for place, document in enumerate(documents) if len(document) > LONG_BYTES]
        self._n_long, self._long = len(places), iter(places)
        self._next_long = next(self._long, len(documents))
        self._warmed = -1
        self._received: bytes = b""

    def run(self) -> None:
        """See `threading.Thread`."""
        if self._cpus:
            os.sched_setaffinity(0, self._cpus)
        sharpen_sleep()
        self.offered.start_ns = time.perf_counter_ns() + START_AFTER_NS
        due = (self._due_ns + self.offered.start_ns).tolist()
        if isinstance(self._target, Driving):
            drive = self._drive_long if self._n_long == len(due) else self._drive
            drive(due, self._target)
        else:
            self._offer(due)

    def _offer(self, due: list[int]) -> None:
        """To a target with threads of its own: sleep in between."""
        offered, submit, record = self.offered, self._target.submit, self._record
        sent_ns = offered.sent_ns
        clock, cpu_clock, sleep = time.perf_counter_ns, time.thread_time_ns, time.sleep
        n, position, inside_ns = len(due), 0, 0
        while position < n:
            now_ns = clock()
            if due[position] > now_ns:
                if not self._warm(position):
                    sleep((due[position] - now_ns) * 1e-9)
                continue
            end = self._end_of(due, position, now_ns)
            group = self._group(position, end)
            sent_ns[position:end] = now_ns
            before_ns = cpu_clock()
            submit(position, group, record)
            inside_ns += cpu_clock() - before_ns
            offered.n_groups += 1
            position = end
        offered.submit_cpu_ns = inside_ns
        offered.own_cpu_ns = cpu_clock() - inside_ns

    def _drive(self, due: list[int], target: Driving) -> None:
        """To a target that works in between, on this thread.

        What the generator does itself never waits, so it is timed by the wall clock: looks at the CPU clock are system
        calls, and would cost as much. Interruptions do not count as its own.
        """
        offered, submit, record = self.offered, self._target.submit, self._record
        sent_ns, rest, clock = offered.sent_ns, target.rest, time.perf_counter_ns
        n, position, own_ns = len(due), 0, time.thread_time_ns()
        while position < n:
            now_ns = clock()
            if due[position] > now_ns:
                before_ns = time.thread_time_ns() if position == self._next_long else 0
                if self._warm(position):
                    own_ns += time.thread_time_ns() - before_ns
                else:
                    own_ns += rest((due[position] - now_ns) * 1e-9)
                continue
            end = self._end_of(due, position, now_ns)
            group = self._group(position, end)
            sent_ns[position:end] = now_ns
            own_ns += min(clock() - now_ns, OWN_AT_MOST_NS)
            submit(position, group, record)
            offered.n_groups += 1
            position = end
            if position < n and due[position] <= clock() + BEHIND_NS:
                own_ns += rest(0.0)
        offered.own_cpu_ns = own_ns
        offered.turn_cpu_ns = time.thread_time_ns() - own_ns

    def _drive_long(self, due: list[int], target: Driving) -> None:
        """The same where all documents are long, and most come after a rest: the generator's own steps are cold then.

        They take 15 us for each document, a quarter of what a replay takes the host. So the target's time is read from
        the CPU clock around each call: two looks are a system call each, and take less.
        """
        offered, submit, record = self.offered, self._target.submit, self._record
        rest, clock, cpu_clock = target.rest, time.perf_counter_ns, time.thread_time_ns
        position, inside_ns = 0, 0
        while position < len(due):
            now_ns = clock()
            if due[position] > now_ns:
                if not self._warm(position):
                    begin_ns = cpu_clock()
                    idle_ns = rest((due[position] - now_ns) * 1e-9)
                    inside_ns += cpu_clock() - begin_ns - idle_ns
                continue
            end = self._end_of(due, position, now_ns)
            group = self._group(position, end)
            offered.sent_ns[position:end] = now_ns
            begin_ns = cpu_clock()
            submit(position, group, record)
            inside_ns += cpu_clock() - begin_ns
            offered.n_groups += 1
            position = end
            if position < len(due) and due[position] <= clock() + BEHIND_NS:
                begin_ns = cpu_clock()
                idle_ns = rest(0.0)
                inside_ns += cpu_clock() - begin_ns - idle_ns
        offered.turn_cpu_ns, offered.own_cpu_ns = inside_ns, cpu_clock() - inside_ns

    def _warm(self, position: int) -> bool:
        """Read a long document that is due next, once; whether that was done now."""
        if self._next_long != position or self._warmed == position:
            return False
        self._warmed = position
        if isinstance(self._target, Receiving):
            self._received = self._target.receive(self._documents[position])
        else:
            np.frombuffer(self._documents[position], dtype=np.uint8).max()
        return True

    def _group(self, position: int, end: int) -> Sequence[bytes]:
        """Documents that are due, wherever they were received."""
        if (
            end > position + 1
            or len(self._documents[position]) <= LONG_BYTES
            or not isinstance(self._target, Receiving)
        ):
            return self._documents[position:end]
        received, self._received = self._received, b""
        if self._warmed != position:
            received = self._target.receive(self._documents[position])
        return (received,)

    def _end_of(self, due: list[int], position: int, now_ns: int) -> int:
        """Behind the last document that is due and goes into the same group."""
        if position == self._next_long:
            self._next_long = next(self._long, len(due))
            return position + 1
        return min(bisect_right(due, now_ns, position), self._next_long)
