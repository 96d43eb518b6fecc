"""A while in which short work went one way, and what answers took meanwhile: what `dispatcher.ways` compares.

began           from                                until
├─ it settles ──┼─ work that comes now is measured ─┤
"""

from __future__ import annotations

import math
from typing import NamedTuple

from dispatcher.policy import CPU, GPU

FULL = 64
"""With more answers under way, it is their rate that tells ways apart: what waits makes each take long, any way."""


class Spell:
    """Any thread may note answers and predictions; of two at the same moment, one may not be counted."""

    __slots__ = (
        "answers",
        "began_cpu_ns",
        "began_ns",
        "from_ns",
        "look_asked",
        "look_ns",
        "n_all",
        "n_all_before",
        "n_answered",
        "n_asked",
        "n_predicted",
        "seen_from_ns",
        "slower_by",
        "spent_ns",
        "until_ns",
        "way",
    )

    def __init__(
        self,
        way: str,
        began_ns: int,
        from_ns: int,
        until_ns: int,
        began_cpu_ns: int = 0,
        n_all: list[int] | None = None,
    ) -> None:
        """`began_cpu_ns`: of the service until then. `n_all`: one number, the answers of this and all other spells."""
        self.way, self.began_ns, self.from_ns, self.until_ns = way, began_ns, from_ns, until_ns
        self.look_ns = until_ns
        """When it may be over."""
        self.look_asked = 1 << 62
        """It may be over, too, when so many documents were chosen for."""
        self.began_cpu_ns = began_cpu_ns
        self.n_all = [0] if n_all is None else n_all
        self.seen_from_ns = self.n_all_before = 0
        """The first time somebody asked after `from_ns`, and `n_all` then."""
        self.n_asked = 0
        """Documents that were chosen for."""
        self.n_answered = self.spent_ns = 0
        """Its answers, and what they took in sum."""
        self.answers: list[int] = []
        """Nanoseconds that those took which came after `from_ns`."""
        self.n_predicted = 0
        self.slower_by = {CPU: 0.0, GPU: 0.0}
        """By the route that was predicted to be faster: by which part of its time the other one is slower, in sum."""

    def note_start(self, now_ns: int) -> None:
        """Somebody asks, for the first time since `from_ns` or before that."""
        if now_ns >= self.from_ns:
            self.n_all_before, self.seen_from_ns = self.n_all[0], now_ns

    def answered(self, since_ns: int, now_ns: int) -> None:
        """Work that came at `since_ns` is answered."""
        self.n_all[0] += 1
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

    def rate(self, now_ns: int) -> float:
        """Documents per second that were chosen for."""
        return self.n_asked * 1e9 / max(now_ns - self.began_ns, 1)

    def measure(self, now_ns: int, cpu_ns: int, fewest: int) -> Measure:
        """What there is to say by now; `cpu_ns`: of the service. With fewer answers, they take as long as it lasted."""
        answers = self.answers[:]
        if len(answers) < fewest:
            answers = [max(now_ns - self.from_ns, 1)]
        return Measure(
            mean_log(answers),
            math.log(max(cpu_ns - self.began_cpu_ns, 1) / max(self.n_answered, 1)),
            max(self.n_all[0] - self.n_all_before, 1) * 1e9 / max(now_ns - self.seen_from_ns, 1),
            math.log2(max(self.rate(now_ns), 1.0)),
            math.fsum(answers) / len(answers),
            self.n_answered,
            self.spent_ns,
        )


class Measure(NamedTuple):
    """Of a spell."""

    time: float
    """Logarithm of the nanoseconds that an answer took, ..."""
    cpu: float
    """... and of those of host CPU."""
    rate: float
    """Answers per second."""
    load: float
    """Logarithm (base 2) of the documents per second that were chosen for."""
    mean_ns: float
    n_answers: int
    """All, also those to what came before `from_ns`, ..."""
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

    def is_full_as(self, before: Measure, after: Measure) -> bool:
        """Whether all three are full: then their rates hardly depend on luck."""
        return self.is_full and before.is_full and after.is_full

    def slower_than(self, before: Measure, after: Measure) -> float:
        """Logarithm of how many times as long answers took as in the spells around it."""
        if self.is_full_as(before, after):
            return math.log(before.rate * after.rate) / 2 - math.log(self.rate)
        return self.time - (before.time + after.time) / 2

    def dearer_than(self, before: Measure, after: Measure) -> float:
        """Logarithm of how many times as much host CPU an answer took as in the spells around it."""
        return self.cpu - (before.cpu + after.cpu) / 2

    def cost(self, before: Measure, after: Measure) -> float:
        """What it cost all that were answered in it and after it, in answers of the time before."""
        n_answers = self.n_answers + after.n_answers
        return max(0.0, (self.spent_ns + after.spent_ns) / before.mean_ns - n_answers)


def mean_log(times: list[int]) -> float:
    """Mean of logarithms."""
    return math.fsum(map(math.log, times)) / len(times)
