"""Which way short work goes: each piece by prediction, or all of it by one route, whichever answers sooner at a load.

A prediction is about one piece of work. What that piece costs all others is in no queue: the threads of both routes
take turns at one interpreter, and a route is cheaper for each piece the more of them take it. So whole ways are
compared by what answers took while all short work went that way, in short spells:

    spell of the way that is kept ─► of another one ─► of the way that is kept ─► how many times as long answers took

What is known holds for one load (documents per second, by powers of 2), and what is clear for those beside it. Another
way is tried the more rarely the more it cost (`Standing.due`), taken after two tries, or a clear one, and then only
when it is faster by more than 5 %, or as fast with less of the host's CPU (`next_way`). One that is slow by far shows
it after a few answers, and is rarely tried again. Below `QUIET_RATE` nobody is in anybody's way: each piece is
predicted.

    way = ways.now(now_ns, n)           who chooses asks, and notes `ways.spell` with the work
    spell.answered(since_ns, now_ns)    the work was answered
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace

from dispatcher.policy import CPU, GPU, LESS, PREDICTED
from dispatcher.spell import Measure, Spell, mean_log

WAYS = (PREDICTED, CPU, GPU)

QUIET_RATE = 250
"""Documents per second below which nothing is compared."""
RESTS_NS, RESTS_DOCUMENTS = 100_000_000, 64
"""When it looks whether more comes: after so long, or so many."""

ANSWERS = 32
"""A spell lasts for so many answers at least, ..."""
LATENCIES = 2
"""... and so many times what an answer takes, ..."""
SHORTEST_NS, LONGEST_NS = 2_000_000, 250_000_000
"""... within these bounds."""
SETTLES = 1
"""After the way changed, what comes for so many times what an answer takes meets what the other way left."""
PATIENCE = 4
"""A spell that has lasted so many times what was meant ends without its answers, ..."""
TRY_PATIENCE = 2
"""... and so does a try, ..."""
TOO_SLOW = math.log(1.5)
"""... which also ends when answers take so many times as long (a logarithm), ..."""
FAR, FAR_ANSWERS = math.log(2.5), 8
"""... or so many times as long, after so few of them, or when twice as many should have come."""
TRY_LOOK_NS = 500_000
"""Time between two looks whether they do."""
LONGER, LONG_NS = 4.0, 50_000_000
"""Spells of the way that is kept last so many times as long, up to this, since they cost nothing, ..."""
LIKE = 0.3
"""... and so do those of ways that differ by less than this (a logarithm), since it takes more answers to tell."""

NEAR = math.log(1.05)
"""Ways are as fast as each other when they differ by no more (a logarithm)."""
TRIES = 2
"""Of a way before it may be taken."""
TRY_EVERY = 25
"""Trying a way adds no more than one part in so many to the mean time of an answer."""
UNSURE = 0.3
"""What fewer than `TRIES` of them cost counts as this part: it may have been bad luck."""
FIRST_ANSWERS = 64
"""At least so many come before the first try, and twice as many before each one after it, ..."""
KNOWN = 8
"""... until a way is known from so many tries: then one answer in 300 is of a try of a slower way, which is less than
what the 99th percentile leaves out, and one in 130 of a way that differs little."""
REMEMBERED = 8
"""Tries that the mean is taken over, at most."""

SAME_LOAD = 0.7
"""The load is another one when its logarithm (base 2) is so far off."""
RATE_STEP = 0.2
"""What one spell says about it."""
LOAD_DOUBT = math.log(1.5)
"""How much less slow (a logarithm) a way may be at a load that is next to the one where it was tried."""
CHANGED = math.log(2.0)
"""When answers take so many times as long (a logarithm), what was known counts as one try, ..."""
STALE_NS = 60_000_000_000
"""... and so it does when the load was another one for so long."""


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

    @property
    def is_far(self) -> bool:
        """Whether it is known to be slow by far."""
        return self.n_tries >= TRIES and self.slower > FAR

    def doubted(self, by: float = math.inf, is_less: bool = False) -> Seen:
        """A copy that counts as one try, unless it is slow by far even if that is less by so much (a logarithm).

        `is_less`: it is, because the way that is kept has become slower by so much. It may do so again.
        """
        if self.slower - by <= FAR:
            return replace(self, n_tries=min(self.n_tries, 1))
        return replace(self, slower=self.slower - by) if is_less else replace(self)

    def learn(self, slower: float, dearer: float, cost: float, is_clear: bool = False) -> None:
        """From one more try; a clear one is enough."""
        # Whatever else made answers slow meanwhile, a way that is faster costs nothing.
        self.cost, self.n_since = cost if slower > 0 else 0.0, 0
        part = 1 / (min(self.n_tries, REMEMBERED - 1) + 1)
        self.slower += (slower - self.slower) * part
        self.dearer += (dearer - self.dearer) * part
        self.n_tries = max(min(self.n_tries + 1, REMEMBERED), TRIES if is_clear else 0)


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

    def doubted(self, time: float = math.inf, by: float = math.inf) -> Standing:
        """A copy in which ways count as tried once (see `Seen.doubted`); `time` is new."""
        is_less = time < math.inf
        return Standing(self.kept, {way: seen.doubted(by, is_less) for way, seen in self.others.items()}, time)

    def due(self, slower_by: Mapping[str, float], n_answers: float) -> str:
        """Another way to try now, or the one that is kept.

        `slower_by`: what predictions said last; `n_answers`: how many a try takes.
        """
        for way, seen in sorted(self.others.items(), key=lambda item: item[1].slower):
            cost = seen.cost if seen.n_tries >= TRIES else UNSURE * seen.cost
            if self.kept == PREDICTED or not seen.n_tries:
                cost = max(cost, n_answers * slower_by.get(way, 0.0))
            n_tries = KNOWN if seen.is_far else min(seen.n_tries, KNOWN)
            if seen.n_since >= max(TRY_EVERY * cost, FIRST_ANSWERS << n_tries):
                return way
        return self.kept

    def times_as_long(self, way: str) -> float:
        """How many times as long as others a spell of a way lasts."""
        seen = self.others.get(way)
        return LONGER if seen is None or (seen.n_tries >= TRIES and abs(seen.slower) < LIKE) else 1.0


def next_way(kept: str, others: Mapping[str, Seen]) -> str:
    """The way to keep: the fastest, or of those that are as fast the one with the least host CPU."""
    known = {way: seen for way, seen in others.items() if seen.n_tries >= TRIES}
    best = min([0.0, *(seen.slower for seen in known.values())])
    near = {way: seen.dearer for way, seen in known.items() if seen.slower <= best + NEAR}
    stays = best >= -NEAR
    way = kept if stays else min(known, key=lambda way: known[way].slower)
    dearer = 0.0 if stays else near[way]
    least = min(near, key=lambda other: near[other], default=way)
    return least if near.get(least, dearer) < dearer + math.log(LESS) else way


class Ways:
    """Of the whole service. `now` may be called from any thread."""

    def __init__(self, host_ns: Callable[[], int] = time.process_time_ns) -> None:
        """`host_ns`: CPU time that all of the service has used."""
        self.spell = Spell(PREDICTED, 0, 0, 0)
        self._rest(0, 0)
        self._host_ns = host_ns
        self._standings: dict[int, Standing] = {}
        self._standing = Standing()
        self._load = 0
        """Power of 2; 0 = quiet."""
        self._load_log = 0.0
        self._before: Measure | None = None
        """Of the last spell of the way that is kept."""
        self._tried: tuple[str, Measure] | None = None
        """Of a spell of another way after that."""
        self._predictions = self.spell.others_slower_by(), self.spell.others_slower_by()
        """Of the last two spells in which there were any."""
        self._n_spells = 1.0
        """How many times as long as usual the spell is."""
        self._is_other = False
        """Whether the last spell of the way that is kept says that the load is another one."""
        self._lock = threading.Lock()

    def now(self, now_ns: int, n_documents: int = 1) -> str:
        """The way of short work that comes now."""
        spell = self.spell
        spell.n_asked += n_documents
        if not spell.seen_from_ns:
            spell.note_start(now_ns)
        if now_ns < spell.look_ns and spell.n_asked < spell.look_asked:
            return spell.way
        if self._lock.acquire(blocking=False):
            try:
                if spell is self.spell:
                    self._look_at(spell, now_ns)
            finally:
                self._lock.release()
        return self.spell.way

    def _look_at(self, spell: Spell, now_ns: int) -> None:
        is_try = spell.way != self._standing.kept
        is_far = is_try and self._is_far(spell, now_ns)
        if self._load and not is_far and not self._is_over(spell, now_ns, is_try):
            spell.look_ns = now_ns + (TRY_LOOK_NS if is_try else SHORTEST_NS)
            spell.look_asked = max(spell.look_asked, 2 * spell.n_asked)
            return
        cpu_ns = self._host_ns()
        if not is_far and self._is_quiet(spell, now_ns):
            self._enter(0, now_ns)
            self._rest(now_ns, cpu_ns)
            return
        measure = spell.measure(now_ns, cpu_ns, FAR_ANSWERS if is_far else ANSWERS)
        if spell.way == PREDICTED:
            self._predictions = self._predictions[1], spell.others_slower_by()
        if not self._load:
            self._load_log = measure.load
            self._enter(round(measure.load), now_ns)
            way = self._standing.kept
        elif is_try:
            self._tried = (spell.way, measure)
            way = self._standing.kept
        else:
            way = self._way_after(spell, measure, now_ns)
        self._begin(way, now_ns, cpu_ns, measure)

    @staticmethod
    def _is_quiet(spell: Spell, now_ns: int) -> bool:
        """Whether little came, or nobody asked for long when it was time to look."""
        is_late = now_ns - spell.look_ns > RESTS_NS
        return is_late or spell.rate(now_ns) < QUIET_RATE or spell.n_asked < ANSWERS

    def _is_over(self, spell: Spell, now_ns: int, is_try: bool) -> bool:
        if len(spell.answers) < ANSWERS:
            patience = TRY_PATIENCE if is_try else PATIENCE
            return now_ns >= spell.from_ns + patience * (spell.until_ns - spell.from_ns)
        if now_ns >= spell.until_ns or spell.n_asked >= spell.look_asked:
            return True
        return self._before is not None and mean_log(spell.answers[:]) > self._before.time + TOO_SLOW

    def _is_far(self, spell: Spell, now_ns: int) -> bool:
        """Whether the few answers that there are, or that there are so few, show that a way is slow by far."""
        answers, before = spell.answers[:], self._before
        if before is None or before.is_full:
            return False
        if len(answers) >= FAR_ANSWERS:
            return mean_log(answers) > before.time + FAR
        late_ns = now_ns - spell.from_ns - math.exp(before.time + FAR)
        return late_ns * before.rate > 2e9 * FAR_ANSWERS

    def _way_after(self, spell: Spell, measure: Measure, now_ns: int) -> str:
        """After a spell of the way that is kept."""
        before, way = self._before, spell.way
        self._learn(before, measure)
        self._tried, self._before = None, measure
        self._note_load(measure, now_ns)
        if self._standing.kept == way and self._before is not None:
            older, newer = self._predictions
            slower_by = {route: max(older[route], newer[route]) for route in newer}
            n_answers = max(ANSWERS, (SETTLES + LATENCIES) * measure.n_under_way)
            # What waits makes predictions worse, and a try no worse than that.
            return self._standing.due(slower_by, UNSURE * n_answers if measure.is_full else n_answers)
        return self._standing.kept

    def _note_load(self, measure: Measure, now_ns: int) -> None:
        """Follow the load; when it is another one at once, the next spell has to say so, too."""
        step = measure.load - self._load_log
        was_other, self._is_other = self._is_other, abs(step) > SAME_LOAD
        if self._is_other and not was_other:
            self._before = None
            return
        self._is_other = False
        self._load_log += step if was_other else step * (1.0 - (1.0 - RATE_STEP) ** self._n_spells)
        if abs(self._load_log - self._load) > SAME_LOAD:
            self._enter(round(self._load_log), now_ns)

    def _learn(self, before: Measure | None, after: Measure) -> None:
        standing = self._standing
        for seen in standing.others.values():
            seen.n_since += after.n_answers
        if before is None:
            return
        if self._tried is not None and abs(after.load - before.load) <= SAME_LOAD:
            way, tried = self._tried
            standing.others[way].learn(
                tried.slower_than(before, after),
                tried.dearer_than(before, after),
                tried.cost(before, after),
                tried.is_full_as(before, after),
            )
            is_steady = abs(after.time - before.time) <= CHANGED
            standing.time = (before.time + after.time) / 2 if is_steady else min(before.time, after.time)
            standing.keep(next_way(standing.kept, standing.others))
        elif min(before.time, after.time) > standing.time + CHANGED:
            doubted = standing.doubted(after.time, by=min(before.time, after.time) - standing.time)
            self._standing = self._standings[self._load] = doubted

    def _begin(self, way: str, now_ns: int, cpu_ns: int, last: Measure) -> None:
        """A spell, after one that was measured."""
        took_ns = math.exp(last.time)
        settles_ns = int(min(SETTLES * took_ns, LONGEST_NS)) if way != self.spell.way else 0
        for_ns = int(min(max(LATENCIES * took_ns, 1.25e9 * ANSWERS / last.rate, SHORTEST_NS), LONGEST_NS))
        from_ns, self._n_spells = now_ns + settles_ns, 1.0
        if not last.is_full and not self._is_other:
            self._n_spells = max(1.0, min(self._standing.times_as_long(way), LONG_NS / for_ns))
        until_ns = from_ns + int(self._n_spells * for_ns)
        spell = Spell(way, now_ns, from_ns, until_ns, cpu_ns, self.spell.n_all)
        # Far more than would come at this load.
        spell.look_asked = ANSWERS + int(2.0 ** (last.load + 2 * SAME_LOAD) * (until_ns - now_ns) / 1e9)
        if way != self._standing.kept:
            spell.look_ns = from_ns + TRY_LOOK_NS
        self.spell = spell

    def _rest(self, now_ns: int, cpu_ns: int) -> None:
        """Nothing is compared until more comes."""
        spell = Spell(PREDICTED, now_ns, now_ns, now_ns + RESTS_NS, cpu_ns, self.spell.n_all)
        spell.look_asked = RESTS_DOCUMENTS
        self.spell = spell

    def _enter(self, load: int, now_ns: int) -> None:
        """The load is another one: what was known of it, or else of the nearest one."""
        standings, old = self._standings, self._standing
        old.left_ns, self._load = now_ns, load
        self._before = self._tried = None
        found = standings.get(load)
        if not load:
            self._standing = Standing()
            return
        if found is None and standings:
            nearest = min(standings, key=lambda other: abs(other - load))
            found = standings[nearest].doubted(by=abs(nearest - load) * LOAD_DOUBT)
        elif found is not None and now_ns - found.left_ns > STALE_NS:
            found = found.doubted()
        self._standing = standings[load] = found or Standing()
