"""Which way short work goes: each piece by prediction, or all of it by one route, whichever answers sooner at a load.

A prediction is about one piece of work. What that piece costs all others is in no queue: the threads of both routes
take turns at one interpreter, and a route is cheaper for each piece the more of them take it. So whole ways are
compared by what answers took while all short work went that way, in short spells:

    spell of the way that is kept ─► of another one ─► of the way that is kept ─► how many times as long answers took

What is known holds for one load (documents per second, by powers of 2; `dispatcher.standing`), and what is clear for
those beside it. A spell is compared with the last one at its load, whatever came in between, and a try ends when the
load becomes another one. Another way is tried the more rarely the more it cost (`Standing.due`), taken after two tries,
or a clear one, and then only when it is faster by more than 5 %, or as fast with less of the host's CPU (`next_way`).
One that is slow by far shows it after a few answers, and is rarely tried again. Below `QUIET_RATE` nobody is in
anybody's way: each piece is predicted.

    way = ways.now(now_ns, n)           who chooses asks, and notes `ways.spell` with the work
    spell.answered(since_ns, now_ns)    the work was answered
"""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable

from dispatcher.policy import CPU, GPU, PREDICTED
from dispatcher.spell import Measure, Spell, mean_log
from dispatcher.standing import FAR, KNOWN, SAME_LOAD, UNSURE, Standing, next_way

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
FAR_ANSWERS = 8
"""... or `FAR` times as long, after so few of them, or when twice as many should have come."""
TRY_LOOK_NS = 500_000
"""Time between two looks whether they do."""
BURST, BURST_TIMES = 16, 4
"""More than so many pieces of work beyond so many times what the load is, from one look to the next, end a try, too."""
LONG_NS = 50_000_000
"""Spells that last `LONGER` do no longer than this."""

RATE_STEP = 0.2
"""What one spell says about it."""
LOAD_DOUBT = math.log(1.5)
"""How much less slow (a logarithm) a way may be at a load that is next to the one where it was tried."""
CHANGED = math.log(2.0)
"""When answers take so many times as long (a logarithm), what was known counts as one try, ..."""
STALE_NS = 60_000_000_000
"""... and so it does when the load was another one for so long."""
FRESH_NS = 2_000_000_000
"""Spells at one load are compared when no more time than this lies between them, whatever loads came meanwhile."""


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
        self._predictions = self.spell.others_slower_by(), self.spell.others_slower_by()
        """Of the last two spells in which there were any."""
        self._n_spells = 1.0
        """How many times as long as usual the spell is."""
        self._is_other = False
        """Whether the last spell of the way that is kept says that the load is another one."""
        self._looked = 0, 0
        """At a try, when that was, and at how many documents."""
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
        is_burst = is_try and self._is_burst(spell, now_ns)
        is_far = is_try and not is_burst and self._is_far(spell, now_ns)
        if self._load and not is_burst and not is_far and not self._is_over(spell, now_ns, is_try):
            if is_try:
                self._look_again(spell, now_ns, now_ns + TRY_LOOK_NS)
            else:
                spell.look_ns, spell.look_asked = now_ns + SHORTEST_NS, max(spell.look_asked, 2 * spell.n_asked)
            return
        cpu_ns = self._host_ns()
        if not is_burst and not is_far and self._is_quiet(spell, now_ns):
            if is_try:
                self._standing.end_try(spell.way, spell.measure(now_ns, cpu_ns, ANSWERS), is_cut=True)
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
            self._standing.end_try(spell.way, measure, is_far, is_cut=is_burst)
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
        before = self._standing.before
        return before is not None and mean_log(spell.answers[:]) > before.time + TOO_SLOW

    def _is_burst(self, spell: Spell, now_ns: int) -> bool:
        """Whether far more came since the last look than does at this load."""
        looked_ns, n_asked = self._looked
        return spell.n_asked > n_asked + self._allowed(spell.way, now_ns - looked_ns)

    def _allowed(self, way: str, for_ns: int) -> float:
        """Documents that a try takes from one look to the next."""
        before, n_lost = self._standing.before, self._standing.others[way].n_lost
        if before is None:
            return math.inf
        # What always comes in bursts must be tried at last, too.
        n_pieces = (BURST << min(n_lost, KNOWN)) + BURST_TIMES * before.rate * for_ns * 1e-9
        return n_pieces * before.documents

    def _look_again(self, spell: Spell, now_ns: int, look_ns: int) -> None:
        """At a try: at a time, or when far more came."""
        self._looked, spell.look_ns = (now_ns, spell.n_asked), look_ns
        allowed = self._allowed(spell.way, look_ns - now_ns)
        spell.look_asked = spell.n_asked + int(min(allowed, 1 << 60)) + 1

    def _is_far(self, spell: Spell, now_ns: int) -> bool:
        """Whether the few answers that there are, or that there are so few, show that a way is slow by far."""
        answers, before = spell.answers[:], self._standing.before
        if before is None or before.is_full:
            return False
        if len(answers) >= FAR_ANSWERS:
            return mean_log(answers) > before.time + FAR
        late_ns = now_ns - spell.from_ns - math.exp(before.time + FAR)
        # None are missing when the load has become less.
        n_missing = spell.n_asked / before.documents - spell.n_answered
        return late_ns * before.rate > 2e9 * FAR_ANSWERS and n_missing >= FAR_ANSWERS

    def _way_after(self, spell: Spell, measure: Measure, now_ns: int) -> str:
        """After a spell of the way that is kept."""
        way, at = spell.way, self._standing_at(measure.load)
        if at is not None and at.kept == way:
            self._learn(at, measure, now_ns)
        self._note_load(measure, now_ns)
        if self._standing is at and at.kept == way and at.before is not None and not self._is_other:
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
            return
        self._is_other = False
        self._load_log += step if was_other else step * (1.0 - (1.0 - RATE_STEP) ** self._n_spells)
        if abs(self._load_log - self._load) > SAME_LOAD:
            self._enter(round(self._load_log), now_ns)

    def _standing_at(self, load: float) -> Standing | None:
        """What is known of a load that was measured, if it was there before."""
        if abs(load - self._load_log) <= SAME_LOAD:
            return self._standing
        return self._standings.get(round(load))

    @staticmethod
    def _learn(at: Standing, after: Measure, now_ns: int) -> None:
        """From one more spell of the way that is kept at a load."""
        for seen in at.others.values():
            seen.n_since += after.n_answers
        kept, tried = at.kept, at.tried
        before = at.before if now_ns - at.before_ns < FRESH_NS else None
        at.tried = None
        if before is not None and tried is not None and abs(after.load - before.load) <= SAME_LOAD:
            way, measure = tried
            at.others[way].learn(
                measure.slower_than(before, after, at.trend.slope),
                measure.dearer_than(before, after),
                measure.cost(before, after),
                measure.is_full_as(before, after),
            )
            is_steady = abs(after.time - before.time) <= CHANGED
            at.time = (before.time + after.time) / 2 if is_steady else min(before.time, after.time)
            at.keep(next_way(at.kept, at.others))
        elif before is not None and min(before.time, after.time) > at.time + CHANGED:
            at.doubt(after.time, by=min(before.time, after.time) - at.time)
        if at.kept == kept:
            at.before, at.before_ns = after, now_ns
            at.trend.note(after.load, after.time)

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
            self._look_again(spell, now_ns, from_ns + TRY_LOOK_NS)
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
        found = standings.get(load)
        if not load:
            self._standing = Standing()
            return
        if found is None or not found.is_known:
            known = [other for other, standing in standings.items() if standing.is_known]
            if known:
                nearest = min(known, key=lambda other: abs(other - load))
                if found is None or found.kept != standings[nearest].kept:
                    found = standings[nearest].doubted(by=abs(nearest - load) * LOAD_DOUBT)
        elif found is not None and now_ns - found.left_ns > STALE_NS:
            found = found.doubted()
        self._standing = standings[load] = found or Standing()
