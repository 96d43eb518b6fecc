"""Which way short work goes: each piece by prediction, or all of it by one route, whichever answers sooner at a load.

A prediction is about one piece of work. What that piece costs all others is in no queue: the threads of both routes
take turns at one interpreter, and a route is cheaper for each piece the more of them take it. So whole ways are
compared by what answers took while all short work went that way, in short spells:

    spell of the way that is kept ─► of another one ─► of the way that is kept ─► how many times as long answers took

What is known holds for one load (documents per second, by powers of 2). Another way is tried as rarely as it was slower
(`Standing.is_due`), taken after two tries at least, and then only when it is faster by more than 10 %, or as fast and
takes less of the host's CPU (`next_way`). Below `QUIET_RATE` nobody is in anybody's way, and each piece is predicted.

    way = ways.now(now_ns, n)           who chooses asks, and notes `ways.spell` with the work
    spell.answered(since_ns, now_ns)    the work was answered
"""

from __future__ import annotations

import math
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from dispatcher.policy import CPU, GPU, LESS, MOVES, PREDICTED, STAYS

WAYS = (PREDICTED, CPU, GPU)
ANSWERS = 32
"""A spell lasts for so many answers at least, ..."""
LATENCIES = 2
"""... and so many times what an answer takes, ..."""
SHORTEST_NS, LONGEST_NS = 2_000_000, 250_000_000
"""... within these bounds."""
RESTS_NS, RESTS_DOCUMENTS = 100_000_000, 64
"""How often it looks whether more comes: after so long, or so many."""
TOO_SLOW = math.log(1.5)
"""A try ends at once when answers take so many times as long (a logarithm)."""
SETTLES = 1
"""Work that came within so many times what an answer takes, after the way changed, met what the other way left."""
QUIET_RATE = 250
"""Documents per second below which nothing is compared."""
PATIENCE = 4
"""A spell that has lasted so many times what was meant ends without its answers: that way is slower than by so much."""
SAME_LOAD = 0.7
"""The load is another one when its logarithm (base 2) is so far off."""
TRIES = 2
"""Of a way before it may be taken."""
TRY_EVERY = 25
"""Trying a way adds no more than one part in so many to the mean time of an answer."""
UNSURE = 0.3
"""What fewer than `TRIES` of them cost counts as this part: it may have been bad luck."""
FIRST_ANSWERS = 64
"""At least so many come before the first try, and twice as many before each one after it, ..."""
KNOWN = 6
"""... until a way is known from so many tries."""
FULL = 64
"""With more answers under way, ways are compared by how many came: what waits makes each of them take long, any way."""
CHANGED = math.log(2.0)
"""When answers take so many times as long (a logarithm), what was known of other ways is doubted."""
RATE_STEP = 0.2
"""What one spell says about the load."""
REMEMBERED = 8
"""Tries that the mean is taken over, at most."""
STALE_NS = 60_000_000_000
"""What is known of a load that was not there for so long counts as one try."""


class Spell:
    """A while in which short work went one way. Any thread may note answers."""

    __slots__ = (
        "all_answered",
        "answers",
        "began_cpu_ns",
        "began_ns",
        "counted_ns",
        "ends_ns",
        "from_ns",
        "gives_up_ns",
        "max_asked",
        "n_all_before",
        "n_answered",
        "n_asked",
        "n_predicted",
        "slower_by",
        "spent_ns",
        "until_ns",
        "way",
    )

    def __init__(
        self, way: str, began_ns: int, from_ns: int, ends_ns: int, began_cpu_ns: int, all_answered: list[int]
    ) -> None:
        """Work counts that comes after `from_ns`. `all_answered`: one number, of the answers of all spells."""
        self.all_answered = all_answered
        self.n_all_before = self.counted_ns = 0
        """Of those, the ones before that time: noted at this one."""
        self.way, self.began_ns, self.from_ns, self.ends_ns = way, began_ns, from_ns, ends_ns
        self.gives_up_ns = from_ns + PATIENCE * (ends_ns - from_ns)
        self.until_ns, self.max_asked = ends_ns, sys.maxsize
        self.began_cpu_ns = began_cpu_ns
        self.n_asked = 0
        """Documents that were chosen for."""
        self.n_answered = self.spent_ns = 0
        """All answers, and what they took in sum."""
        self.answers: list[int] = []
        """What they took that came after `from_ns`, in nanoseconds."""
        self.n_predicted = 0
        self.slower_by = {CPU: 0.0, GPU: 0.0}
        """By the route that was predicted to be faster: by which part of its time the other one is slower, in sum."""

    def answered(self, since_ns: int, now_ns: int) -> None:
        """Work that came at `since_ns` is answered."""
        self.all_answered[0] += 1
        self.n_answered += 1
        self.spent_ns += now_ns - since_ns
        if since_ns >= self.from_ns:
            self.answers.append(now_ns - since_ns)

    def predicted(self, route: str, times: float) -> None:
        """A prediction was made: the other route takes so many times as long."""
        self.n_predicted += 1
        self.slower_by[route] += times - 1.0

    def others_slower_by(self) -> dict[str, float]:
        """By which part each route was predicted to be slower than what was chosen, on average."""
        return {other: self.slower_by[route] / max(self.n_predicted, 1) for route, other in ((CPU, GPU), (GPU, CPU))}


@dataclass(slots=True)
class Seen:
    """A way that is not the one that is kept."""

    n_tries: int = 0
    slower: float = 0.0
    """Logarithm of how many times as long answers take that way."""
    dearer: float = 0.0
    """The same for the host's CPU time of an answer."""
    cost: float = 0.0
    """What the last try cost all others, in answers."""
    n_since: int = 0
    """Answers since the last try."""

    def learn(self, slower: float, dearer: float, cost: float) -> None:
        """From one more try."""
        self.cost = cost
        self.n_tries = min(self.n_tries + 1, REMEMBERED)
        self.slower += (slower - self.slower) / self.n_tries
        self.dearer += (dearer - self.dearer) / self.n_tries
        self.n_since = 0


@dataclass(slots=True)
class Standing:
    """What is known of all ways at one load."""

    kept: str = PREDICTED
    others: dict[str, Seen] = field(default_factory=lambda: {CPU: Seen(), GPU: Seen()})
    time: float = math.inf
    """Logarithm of what an answer took the way that is kept, when others were compared with it."""
    left_ns: int = 0
    """When the load became another one."""

    def keep(self, way: str) -> None:
        """Change the way that is kept: all others are compared with it from now on."""
        if way == self.kept:
            return
        new = self.others.pop(way)
        self.others = {
            other: replace(seen, slower=seen.slower - new.slower, dearer=seen.dearer - new.dearer)
            for other, seen in self.others.items()
        }
        self.others[self.kept] = Seen(new.n_tries, -new.slower, -new.dearer)
        self.kept = way

    def doubted(self, time: float = math.inf) -> Standing:
        """A copy that counts as one try."""
        others = {way: replace(seen, n_tries=min(seen.n_tries, 1)) for way, seen in self.others.items()}
        return Standing(self.kept, others, time)

    def due(self, slower_by: Mapping[str, float], n_answers: float) -> str:
        """Another way to try now, or the one that is kept.

        `slower_by`: what predictions said last; `n_answers`: how many a try takes.
        """
        for way, seen in sorted(self.others.items(), key=lambda item: -item[1].n_since):
            doubt = 1.0 if seen.n_tries >= TRIES else UNSURE
            cost = doubt * seen.cost
            if self.kept == PREDICTED or not seen.n_tries:
                cost = max(cost, n_answers * slower_by.get(way, 0.0))
            if seen.n_since >= max(TRY_EVERY * cost, FIRST_ANSWERS << min(seen.n_tries, KNOWN)):
                return way
        return self.kept


def next_way(kept: str, others: Mapping[str, Seen]) -> str:
    """The way to keep: the fastest, or of those that are as fast the one with the least host CPU."""
    known = {way: seen for way, seen in others.items() if seen.n_tries >= TRIES}
    best = min([0.0, *(seen.slower for seen in known.values())])
    near = {way: seen.dearer for way, seen in known.items() if seen.slower <= best + math.log(MOVES)}
    stays = best >= -math.log(STAYS)
    way = kept if stays else min(known, key=lambda way: known[way].slower)
    dearer = 0.0 if stays else near[way]
    least = min(near, key=lambda other: near[other], default=way)
    return least if near.get(least, dearer) < dearer + math.log(LESS) else way


class Ways:
    """Of the whole service. `now` may be called from any thread."""

    def __init__(self, host_ns: Callable[[], int] = time.process_time_ns) -> None:
        """`host_ns`: CPU time that all of the service has used."""
        self._n_answered = [0]
        self.spell = Spell(PREDICTED, 0, 0, 0, 0, self._n_answered)
        self._host_ns = host_ns
        self._standings: dict[int, Standing] = {}
        self._load = 0
        """Power of 2; 0 = quiet."""
        self._rate_log = 0.0
        self._standing = Standing()
        self._before: _Measure | None = None
        """In the last spell of the way that is kept."""
        self._tried: tuple[str, _Measure] | None = None
        """In the spell of another way after that."""
        self._predictions = self.spell.others_slower_by(), self.spell.others_slower_by()
        """Of the last two spells in which there were any."""
        self._lock = threading.Lock()

    def now(self, now_ns: int, n_documents: int = 1) -> str:
        """The way of short work that comes now."""
        spell = self.spell
        spell.n_asked += n_documents
        if not spell.counted_ns and now_ns >= spell.from_ns:
            spell.n_all_before, spell.counted_ns = self._n_answered[0], now_ns
        if (now_ns >= spell.ends_ns or spell.n_asked >= spell.max_asked) and self._lock.acquire(blocking=False):
            try:
                if spell is self.spell:
                    self._look_at(spell, now_ns)
            finally:
                self._lock.release()
        return self.spell.way

    def _look_at(self, spell: Spell, now_ns: int) -> None:
        """A spell has lasted for as long as was meant."""
        answers = spell.answers[:]
        if not self._is_over(spell, answers, now_ns):
            spell.ends_ns = now_ns + SHORTEST_NS
            return
        rate = spell.n_asked * 1e9 / (now_ns - spell.began_ns or 1)
        cpu_ns = self._host_ns()
        if rate < QUIET_RATE or spell.n_asked < ANSWERS:
            self._rest(now_ns, cpu_ns)
            return
        if len(answers) < ANSWERS:
            answers = [now_ns - spell.from_ns]
        measure = _Measure(
            _mean_log(answers),
            math.log(max(cpu_ns - spell.began_cpu_ns, 1) / max(spell.n_answered, 1)),
            max(self._n_answered[0] - spell.n_all_before, 1) * 1e9 / (now_ns - spell.counted_ns or 1),
            math.log2(rate),
            math.fsum(answers) / len(answers),
            spell.n_answered,
            spell.spent_ns,
        )
        if spell.way == PREDICTED:
            self._predictions = self._predictions[1], spell.others_slower_by()
        if spell.way != self._standing.kept:
            self._tried = (spell.way, measure)
            way = self._standing.kept
        else:
            self._learn(measure, spell.n_answered)
            self._rate_log += (measure.load - self._rate_log) * (RATE_STEP if self._load else 1.0)
            if abs(self._rate_log - self._load) > SAME_LOAD:
                self._enter(round(self._rate_log), now_ns)
            way = self._standing.kept
            if way == spell.way:
                before, now = self._predictions
                slower_by = {other: max(before[other], now[other]) for other in now}
                way = self._standing.due(slower_by, max(ANSWERS, (SETTLES + LATENCIES) * measure.n_under_way))
        self._begin(way, now_ns, cpu_ns, measure, changes=way != spell.way)

    def _is_over(self, spell: Spell, answers: list[int], now_ns: int) -> bool:
        if len(answers) < ANSWERS:
            return now_ns >= spell.gives_up_ns or spell.n_asked >= spell.max_asked
        if now_ns >= spell.until_ns or self._before is None:
            return True
        return _mean_log(answers) > self._before.time + TOO_SLOW

    def _learn(self, measure: _Measure, n_answered: int) -> None:
        """From one more spell of the way that is kept."""
        standing = self._standing
        for seen in standing.others.values():
            seen.n_since += n_answered
        before = self._before
        if self._tried is not None and before is not None and abs(measure.load - before.load) <= SAME_LOAD:
            way, tried = self._tried
            slower = tried.slower_than(before, measure)
            spent_ns, n_answers = tried.spent_ns + measure.spent_ns, tried.n_answers + measure.n_answers
            cost = max(0.0, spent_ns / before.mean_ns - n_answers)
            standing.others[way].learn(slower, tried.cpu - (measure.cpu + before.cpu) / 2, cost)
            standing.time = (measure.time + before.time) / 2
            standing.keep(next_way(standing.kept, standing.others))
        elif before is not None and min(measure.time, before.time) > standing.time + CHANGED:
            self._standing = self._standings[self._load] = standing.doubted(measure.time)
        self._tried, self._before = None, measure

    def _begin(self, way: str, now_ns: int, cpu_ns: int, last: _Measure, changes: bool) -> None:
        """A spell, after one that was measured."""
        took_ns = math.exp(last.time)
        from_ns = now_ns + (min(int(SETTLES * took_ns), LONGEST_NS) if changes else 0)
        for_ns = max(LATENCIES * took_ns, 1.25e9 * ANSWERS / last.rate, SHORTEST_NS)
        self.spell = Spell(way, now_ns, from_ns, from_ns + int(min(for_ns, LONGEST_NS)), cpu_ns, self._n_answered)
        if way != self._standing.kept:
            self.spell.ends_ns = from_ns + SHORTEST_NS
            self.spell.gives_up_ns = 2 * self.spell.until_ns - from_ns

    def _rest(self, now_ns: int, cpu_ns: int) -> None:
        """Little comes: each piece is predicted, and nothing is compared."""
        self._enter(0, now_ns)
        self._before = self._tried = None
        self.spell = Spell(PREDICTED, now_ns, now_ns, now_ns + RESTS_NS, cpu_ns, self._n_answered)
        self.spell.max_asked = RESTS_DOCUMENTS

    def _enter(self, load: int, now_ns: int) -> None:
        """The load is another one: what was known of it, or else of the nearest one."""
        standings, old = self._standings, self._standing
        old.left_ns = now_ns
        self._load = load
        if not load:
            self._standing = Standing()
            return
        found = standings.get(load)
        if found is None and standings:
            found = standings[min(standings, key=lambda other: abs(other - load))].doubted()
        elif found is not None and now_ns - found.left_ns > STALE_NS:
            found = found.doubted()
        self._standing = standings[load] = found or Standing()


def _mean_log(times: list[int]) -> float:
    return math.fsum(map(math.log, times)) / len(times)


class _Measure(NamedTuple):
    """Of the answers of a spell."""

    time: float
    """Logarithm of the nanoseconds that one took, ..."""
    cpu: float
    """... and of those of host CPU."""
    rate: float
    """Answers per second."""
    load: float
    """Logarithm (base 2) of the documents per second that were asked for."""
    mean_ns: float
    n_answers: int
    """All, also those to what came before the way had settled, ..."""
    spent_ns: int
    """... and what they took in sum."""

    @property
    def n_under_way(self) -> float:
        """Answers that were under way together."""
        return math.exp(self.time) * self.rate * 1e-9

    @property
    def is_full(self) -> bool:
        """Whether so many are under way that their rate is what the service can do."""
        return self.n_under_way > FULL

    def slower_than(self, before: _Measure, after: _Measure) -> float:
        """Logarithm of how many times as long answers took as in two other spells."""
        if self.is_full and before.is_full and after.is_full:
            return math.log(before.rate * after.rate) / 2 - math.log(self.rate)
        return self.time - (before.time + after.time) / 2
