"""What is known of the ways of short work at one load: how much slower and dearer each is, and when to try it again.

    Standing(kept = GPU, others = {PREDICTED: Seen(2 tries, 1.3 times as long), CPU: Seen(4 tries, 9 times as long)})

Every spell of the way that is kept is compared with the last one at the same load, whatever loads came in between: a
load that comes and goes within a few milliseconds is not there for three spells in a row.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from dispatcher.policy import CPU, GPU, LESS, PREDICTED
from dispatcher.spell import Measure, Trend

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

FAR = math.log(2.5)
"""A way that takes so many times as long (a logarithm) is slow by far."""
LONGER, LONGER_AT_FIRST = 4.0, 2.0
"""Spells of the way that is kept last so many times as long, since they cost nothing (less so until all others are
known, so that what is compared is near in time), ..."""
LIKE = 0.3
"""... and so do those of ways that differ by less than this (a logarithm), since it takes more answers to tell."""
SAME_LOAD = 0.7
"""The load is another one when its logarithm (base 2) is so far off."""


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
    n_lost: int = 0
    """Tries since the last one that said something."""

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
        self.cost, self.n_lost = cost if slower > 0 else 0.0, 0
        part = 1 / (min(self.n_tries, REMEMBERED - 1) + 1)
        self.slower += (slower - self.slower) * part
        self.dearer += (dearer - self.dearer) * part
        self.n_tries = max(min(self.n_tries + 1, REMEMBERED), TRIES if is_clear else 0)

    def tried(self, cost: float) -> None:
        """A try is over. Until there is something to compare it with, it counts as lost: tries may cost so much."""
        self.cost, self.n_since, self.n_lost = max(cost, self.cost), 0, self.n_lost + 1


@dataclass(slots=True)
class Standing:
    """What is known of all ways at one load."""

    kept: str = PREDICTED
    others: dict[str, Seen] = field(default_factory=lambda: {CPU: Seen(), GPU: Seen()})
    time: float = math.inf
    """Logarithm of what an answer took the way that is kept, when others were compared with it."""
    left_ns: int = 0
    """When the load became another one."""
    before: Measure | None = None
    """Of the last spell of the way that is kept, ..."""
    before_ns: int = 0
    """... and when it ended."""
    trend: Trend = field(default_factory=Trend)
    tried: tuple[str, Measure] | None = None
    """Of a spell of another way after that."""

    @property
    def is_known(self) -> bool:
        """Whether there were enough tries of another way to go by."""
        return any(seen.n_tries >= TRIES for seen in self.others.values())

    def keep(self, way: str) -> None:
        """Change the way that is kept: all others are compared with it from now on."""
        if way == self.kept:
            return
        self.before, self.tried, self.trend = None, None, Trend()
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

    def doubt(self, time: float, by: float) -> None:
        """The way that is kept has become slower by so much (a logarithm), and takes a time."""
        self.others, self.time = self.doubted(time, by).others, time

    def end_try(self, way: str, measure: Measure, is_far: bool = False, is_cut: bool = False) -> None:
        """A spell of another way is over. What was cut short by another load, or was at one, says nothing."""
        before = self.before
        assert before is not None
        self.others[way].tried(measure.spent_ns / before.mean_ns - measure.n_answers)
        is_other = not is_far and measure.is_other_load(before, 2 * SAME_LOAD)
        self.tried = None if is_cut or is_other else (way, measure)

    def due(self, slower_by: Mapping[str, float], n_answers: float) -> str:
        """Another way to try now, or the one that is kept.

        `slower_by`: what predictions said last; `n_answers`: how many a try takes.
        """
        for way, seen in sorted(self.others.items(), key=lambda item: item[1].slower):
            cost = seen.cost if seen.n_tries >= TRIES or seen.n_lost else UNSURE * seen.cost
            if self.kept == PREDICTED or not seen.n_tries:
                cost = max(cost, n_answers * slower_by.get(way, 0.0))
            n_tries = KNOWN if seen.is_far else min(seen.n_tries + seen.n_lost, KNOWN)
            if seen.n_since >= max(TRY_EVERY * cost, FIRST_ANSWERS << n_tries):
                return way
        return self.kept

    def times_as_long(self, way: str) -> float:
        """How many times as long as others a spell of a way lasts."""
        seen = self.others.get(way)
        if seen is None:
            return LONGER if all(other.n_tries >= TRIES for other in self.others.values()) else LONGER_AT_FIRST
        return LONGER if seen.n_tries >= TRIES and abs(seen.slower) < LIKE else 1.0


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
