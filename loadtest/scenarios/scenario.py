"""What all scenarios share: the setting they plan in, and texts dealt so that none is sent twice."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from loadtest.options import LoadOptions
from loadtest.plan import PROBE, Plan, PlanBuilder
from loadtest.pool import Places, Pool
from loadtest.schedule import CONSTANT, Arrivals, Times, times

BYTES_PER_TOKEN = 4.1
"""About what English and code take in vocabularies of 100,000 entries and more; results hold the real counts."""
CONVERSATIONS = "conversations"
"""Name of the region of recorded conversations, where there are any."""


class Cut(NamedTuple):
    """Documents of one corpus: which rows of those asked for, and where their texts lie."""

    corpus: str
    rows: Places
    start: Places
    length: Places


class Dealer:
    """Cuts documents from the corpora; while a corpus lasts, no start is used twice, whoever asks."""

    def __init__(self, pool: Pool, seed: int) -> None:
        self.pool = pool
        self._seed = seed
        self._used: Counter[str] = Counter()

    def cut(self, corpus: str, lengths: Places) -> tuple[Places, Places]:
        """Documents of about these lengths in bytes."""
        first = self._used[corpus]
        self._used[corpus] += len(lengths)
        return self.pool.windows(corpus, np.arange(first, first + len(lengths)), lengths, self._seed)

    def in_turn(self, lengths: Places) -> Iterator[Cut]:
        """The same, an equal share from each corpus, in turn."""
        n_corpora = len(self.pool.corpora)
        for k, corpus in enumerate(self.pool.corpora):
            rows = np.arange(k, len(lengths), n_corpora)
            yield Cut(corpus, rows, *self.cut(corpus, lengths[rows]))

    def mixed(self, lengths: Places) -> tuple[Places, Places]:
        """The same as one stream."""
        start, length = np.empty_like(lengths), np.empty_like(lengths)
        for cut in self.in_turn(lengths):
            start[cut.rows], length[cut.rows] = cut.start, cut.length
        return start, length


@dataclass(frozen=True, slots=True)
class Setting:
    """What a scenario plans for."""

    dealer: Dealer
    options: LoadOptions
    arrivals: Arrivals
    rate: float
    """Requests a second."""
    rng: np.random.Generator
    n_bytes: int = 0
    """Of each request, where a step is a size and not a rate."""

    @property
    def pool(self) -> Pool:
        """The texts."""
        return self.dealer.pool

    @property
    def total_s(self) -> float:
        """Warm-up and measured time."""
        return self.options.warm_up_s + self.options.duration_s

    @property
    def half_ns(self) -> int:
        """The middle of the measured time."""
        return int((self.options.warm_up_s + self.options.duration_s / 2) * 1e9)

    def times(self, rate: float | None = None) -> Times:
        """Intended starts at this rate (the setting's own by default) over all of the time."""
        return times(self.arrivals, self.rate if rate is None else rate, self.total_s, self.rng)

    def size(self, n_tokens: float) -> int:
        """About how many bytes this many tokens take, scaled."""
        return max(1, int(n_tokens * BYTES_PER_TOKEN * self.options.scale))

    def short_lengths(self, n: int) -> Places:
        """Bytes of `n` short documents: 1 to 16 KiB, log-uniform, scaled."""
        return np.maximum(1, 2 ** self.rng.uniform(10, 14, n) * self.options.scale).astype(np.int64)


@dataclass(frozen=True, slots=True)
class Scenario:
    """One kind of load."""

    name: str
    doc: str
    rate: float
    """Requests/s where none are asked for."""
    arrivals: str
    max_document_bytes: int
    """Longest document at scale 1."""
    build: Callable[[Setting, PlanBuilder], None]
    per_gpu: bool = False
    """Whether `rate` is that of one simulated GPU."""
    hostile_bytes: int = 0
    """Size of the hostile texts it needs, at scale 1; 0 = none."""
    batches: bool = False
    """Whether requests have several documents, which only the native API can take."""
    closed: bool = False
    """Whether clients wait for an answer before they send the next request; a step is a size then."""

    def plan(self, setting: Setting) -> Plan:
        """The requests, in order."""
        builder = PlanBuilder()
        self.build(setting, builder)
        if setting.options.probe:
            at_ns = times(CONSTANT, setting.options.probe_rate, setting.total_s, setting.rng)
            nothing = np.empty(0, np.int64)
            counts = np.zeros(len(at_ns), np.int64)
            # Clients that wait for answers are late for everything else: probes get a process of their own.
            client = np.full(len(at_ns), setting.options.clients) if self.closed else None
            name = f"GET {setting.options.probe}"
            builder.add(name, at_ns, nothing, nothing, counts=counts, kind=PROBE, client=client)
        return builder.build()
