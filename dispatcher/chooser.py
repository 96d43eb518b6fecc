"""Chooses routes, one decision after the other: keeps what was chosen, counts why, and tries the other route at times.

    chooser.choose(model, kind, n_bytes, n_documents, cpu_load, [route.load(key), ...], now_ns) -> Choice
    chooser.spell_of(choice, n_bytes, n_documents)    which is told when the work is answered (`dispatcher.ways`)

Costs of a route that nothing takes go stale. So a bounded part of small work takes the other route, and only when that
one was not seen at this size for a while; work that is large, or that would be slow there, or whose deadline is near,
never does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from dispatcher.costs import Costs, RouteCost, size_class
from dispatcher.policy import (
    ADAPTIVE,
    CPU,
    EXPLORE,
    FASTER,
    GPU,
    LESS_CPU,
    NO_GPU,
    POLICY,
    PREDICTED,
    REASONS,
    TOGETHER,
    Choice,
    CpuLoad,
    GpuLoad,
    best_gpu,
    choose_route,
    cpu_completion_ns,
    gpu_choice,
    is_often_left,
    is_short,
    n_beyond_few,
)
from dispatcher.spell import Spell
from dispatcher.tally import Tally
from dispatcher.ways import Ways

EXPLORE_EVERY = 64
"""Decisions about one model, kind and size class between two explorations, at least; and so many times more as the
other route is predicted to take longer: exploring adds no more than 1/64 to the mean time of such work."""
EXPLORE_AFTER_NS = 1_000_000_000
"""Costs that are older are stale."""
EXPLORE_MAX_BYTES = 1 << 15
EXPLORE_MAX_NS = 10_000_000
"""Work that is predicted to take longer on the other route does not explore it."""
DEADLINE_TIMES = 20
"""A deadline is near when less than so many times the predicted time is left."""
CLEAR_TIMES = 2.5
"""A choice of a GPU is clear when the CPU route takes so many times as long: then it holds for `CLEAR_DECISIONS` and
`CLEAR_NS`, for as many bytes as make it clear or more, as long as `CLEAR_BYTES` more wait there at most."""
CLEAR_DECISIONS = 32
CLEAR_NS = 10_000_000
LONG_CLEAR_NS = 20_000_000
"""In place of `CLEAR_NS` for documents of more than `LONG_BYTES`: they come seldom, so each would be predicted, which
takes longer than usual because nothing that it needs is in a cache."""
LONG_BYTES = 1 << 18
CLEAR_BYTES = 1 << 16
STAYS_TIMES = 1.25
"""A worker that would encode the work itself stays with that for as many decisions and `STAYS_NS`, for as many
documents or fewer, when a GPU takes so many times as long, and while no more jobs wait than there are workers."""
STAYS_NS = 4_000_000
MAX_HABITS = 4096
"""Models may come and go for years; habits are made anew within a moment."""

_EXPLORE_CPU = Choice(CPU, EXPLORE)
_SAME = gpu_choice(0, FASTER)
_ONLY = gpu_choice(0, POLICY)
_TOGETHER = gpu_choice(0, TOGETHER)


@dataclass(slots=True)
class _Habit:
    """What was chosen for one model, kind and size class."""

    last: str = ""
    n_since: int = 0
    """Decisions since the last exploration."""
    n_clear: int = 0
    """So many more decisions are the same, while all that follows holds."""
    until_ns: int = 0
    max_waiting: int = 0
    min_bytes: int = 0
    """On a GPU, ..."""
    max_bytes: int = 0
    max_documents: int = 0
    """... and on the CPU."""

    def goes_on(self, route: str, n_bytes: int, n_documents: int, n_waiting: int, now_ns: int) -> bool:
        """Take one more of the same decisions: for as much or more on a GPU, for as little on the CPU."""
        if (
            not self.n_clear
            or self.last != route
            or now_ns > self.until_ns
            or (
                n_bytes < self.min_bytes
                if route is GPU
                else n_documents > self.max_documents or n_bytes > self.max_bytes
            )
            or n_waiting > self.max_waiting
            or not (self.n_since + 1) % EXPLORE_EVERY
        ):
            return False
        self.n_clear -= 1
        self.n_since += 1
        return True

    def doubt(self, n_bytes: int) -> None:
        """End what holds, if it is about so many bytes."""
        if self.last != GPU or n_bytes >= self.min_bytes:
            self.n_clear = 0

    def predicted(
        self,
        choice: Choice,
        times: float,
        n_bytes: int,
        n_documents: int,
        cpu: CpuLoad,
        gpus: Sequence[GpuLoad],
        now_ns: int,
    ) -> None:
        """Keep a prediction, and for how much it holds; the other route takes so many times as long."""
        if choice.route != self.last:
            # What was clear was so of the other route.
            self.n_clear = 0
        self.last = choice.route
        self.n_since += 1
        if times >= CLEAR_TIMES and choice.gpu == 0 and len(gpus) == 1:
            lasts_ns = LONG_CLEAR_NS if n_bytes > n_documents * LONG_BYTES else CLEAR_NS
            load = gpus[0]
            self.until_ns = now_ns + lasts_ns
            self.max_waiting = load.waiting_bytes + load.alone_waiting_bytes + CLEAR_BYTES
            # What the CPU route takes grows with the bytes, and a replay hardly does.
            self.min_bytes = int(n_bytes * CLEAR_TIMES / times)
        elif times >= STAYS_TIMES and choice.gpu < 0 and cpu.is_first:
            self.until_ns, self.max_waiting = now_ns + STAYS_NS, cpu.n_workers
            self.max_documents, self.max_bytes = n_documents, 2 * n_bytes
        else:
            return
        self.n_clear = CLEAR_DECISIONS


class RouteChooser:
    """Any thread may choose; of two at the same moment, one may not be remembered, but both are counted."""

    def __init__(self, costs: Costs, policy: str = ADAPTIVE, ways: Ways | None = None) -> None:
        """`policy` is that of requests without one of their own."""
        self.costs, self.policy = costs, policy
        self.ways = ways or Ways()
        self._habits: dict[tuple[str, str, int], _Habit] = {}
        self._counts = {(route, reason): Tally() for route in (CPU, GPU) for reason in REASONS}
        self._count_asked = self._counts[GPU, POLICY].add
        self._count_together = self._counts[GPU, TOGETHER].add
        self._count_faster = self._counts[GPU, FASTER].add

    def choose(
        self,
        model: str,
        kind: str,
        n_bytes: int,
        n_documents: int,
        cpu: CpuLoad,
        gpus: Sequence[GpuLoad],
        now_ns: int,
        deadline_ns: int = 0,
        policy: str = "",
    ) -> Choice:
        """The route for at least one document of one kind. `deadline_ns` 0 = never; `policy`: their own."""
        policy = policy or self.policy
        if policy == GPU and len(gpus) == 1 and gpus[0].ready:
            # Whatever it costs.
            self._count_asked()
            return _ONLY
        gpu_cost, cpu_cost = self.costs.of(GPU, model, kind), self.costs.of(CPU, model, kind)
        if policy != ADAPTIVE:
            choice, _ = choose_route(n_bytes, n_documents, cpu, cpu_cost, gpus, gpu_cost, now_ns, policy)
            self._counts[choice.route, choice.reason].add()
            return choice
        way = PREDICTED
        if is_short(n_bytes, n_documents) and any([load.ready for load in gpus]):
            way = self.ways.now(now_ns, n_documents)
        habit = self._habit_of(model, kind, size_class(n_bytes // n_documents))
        choice, times = choose_route(
            n_bytes, n_documents, cpu, cpu_cost, gpus, gpu_cost, now_ns, policy, habit.last, way
        )
        habit.doubt(n_bytes)
        if choice.reason is FASTER or choice.reason is LESS_CPU:
            if is_short(n_bytes, n_documents):
                self.ways.spell.predicted(choice.route, times)
            habit.predicted(choice, times, n_bytes, n_documents, cpu, gpus, now_ns)
            if not habit.n_since % EXPLORE_EVERY and n_bytes <= EXPLORE_MAX_BYTES:
                look = _Look(n_bytes, n_documents, cpu, cpu_cost, gpus, gpu_cost, now_ns)
                other = look.at_the_other(choice.route, habit.n_since, deadline_ns)
                if other is not None:
                    habit.n_since = 0
                    choice = other
        self._counts[choice.route, choice.reason].add()
        return choice

    def together_on_cpu(self, n_bytes: int, n_documents: int, gpus: Sequence[GpuLoad], now_ns: int) -> bool:
        """Whether work is short and all such work takes the CPU route now, though a GPU is ready for it."""
        if self.ways.spell.way != CPU or not is_short(n_bytes, n_documents) or not any([load.ready for load in gpus]):
            return False
        if self.ways.now(now_ns, n_documents) != CPU:
            return False
        self._counts[CPU, TOGETHER].add()
        return True

    def spell_of(self, choice: Choice, n_bytes: int, n_documents: int) -> Spell | None:
        """Whom to tell when the work is answered that was chosen for just now."""
        if choice is _TOGETHER:
            return self.ways.spell
        if choice.reason is POLICY or choice.reason is NO_GPU or not is_short(n_bytes, n_documents):
            return None
        return self.ways.spell

    def again(
        self, model: str, kind: str, n_bytes: int, n_documents: int, gpus: Sequence[GpuLoad], now_ns: int
    ) -> Choice | None:
        """A GPU that needs no prediction, since all short work goes there, or as a moment ago.

        That choice was clear, and nothing has changed that could change it.
        """
        load = gpus[0]
        if not load.ready:
            return None
        short, way = is_short(n_bytes, n_documents), self.ways.spell.way
        if short and way != PREDICTED:
            if way == CPU or len(gpus) > 1:
                return None
            costs = self.costs
            if costs.leaves_any and is_often_left(n_bytes // n_documents, costs.of(GPU, model, kind)):
                return None
            if self.ways.now(now_ns, n_documents) != GPU:
                return None
            self._count_together()
            return _TOGETHER
        habit = self._habits.get((model, kind, size_class(n_bytes // n_documents)))
        if habit is None or not habit.n_clear:
            return None
        if not habit.goes_on(GPU, n_bytes, n_documents, load.waiting_bytes + load.alone_waiting_bytes, now_ns):
            return None
        if short and self.ways.now(now_ns, n_documents) != PREDICTED:
            return None
        self._count_faster()
        return _SAME

    def holds(
        self, choice: Choice, model: str, kind: str, n_bytes: int, now_ns: int
    ) -> tuple[int, Callable[[], object]] | None:
        """From how many bytes on a choice like this one, of a GPU for a document, would be the same for a moment.

        And what counts one more; None if it may not.
        """
        min_bytes = 0
        if choice.reason is not POLICY:
            habit = self._habits.get((model, kind, size_class(n_bytes)))
            if habit is None or not habit.n_clear or habit.last != GPU or now_ns > habit.until_ns:
                return None
            min_bytes = habit.min_bytes
        return min_bytes, self._counts[choice.route, choice.reason].add

    def stays(self, model: str, kind: str, n_bytes: int, n_documents: int, n_waiting: int, now_ns: int) -> bool:
        """Whether a worker goes on with the CPU route as a moment ago; `n_waiting` jobs are in front of the workers."""
        habit = self._habits.get((model, kind, size_class(n_bytes // n_documents)))
        if habit is None or not habit.goes_on(CPU, n_bytes, n_documents, n_waiting, now_ns):
            return False
        if not self._is_predicted(n_bytes, n_documents, now_ns):
            return False
        self._counts[CPU, FASTER].add()
        return True

    def snapshot(self) -> dict[tuple[str, str], int]:
        """Decisions by route and reason; callable from any thread."""
        return {key: tally.value for key, tally in self._counts.items()}

    def _habit_of(self, model: str, kind: str, of_size: int) -> _Habit:
        habit = self._habits.get((model, kind, of_size))
        if habit is not None:
            return habit
        if len(self._habits) >= MAX_HABITS:
            self._habits = {}
        return self._habits.setdefault((model, kind, of_size), _Habit())

    def _is_predicted(self, n_bytes: int, n_documents: int, now_ns: int) -> bool:
        """Whether such work is predicted now."""
        return not is_short(n_bytes, n_documents) or self.ways.now(now_ns, n_documents) == PREDICTED


class _Look(NamedTuple):
    """One piece of work that may take the route that is not the best one."""

    n_bytes: int
    n_documents: int
    cpu: CpuLoad
    cpu_cost: RouteCost
    gpus: Sequence[GpuLoad]
    gpu_cost: RouteCost
    now_ns: int

    def at_the_other(self, chosen: str, n_since: int, deadline_ns: int) -> Choice | None:
        """The other route, if its costs are stale and nobody is hurt by it."""
        gpu, gpu_ns = best_gpu(self.n_bytes, self.n_documents, self.gpus, self.gpu_cost, self.now_ns)
        if gpu < 0 or not self._is_stale(chosen):
            return None
        if chosen == GPU and n_beyond_few(self.gpus[gpu], self.n_bytes // self.n_documents) > 0:
            return None
        cpu_ns = cpu_completion_ns(self.n_documents, self.n_bytes // self.n_documents, self.cpu, self.cpu_cost)
        chosen_ns, other_ns, other = (
            (cpu_ns, gpu_ns, gpu_choice(gpu, EXPLORE)) if chosen == CPU else (gpu_ns, cpu_ns, _EXPLORE_CPU)
        )
        is_near = deadline_ns and deadline_ns - self.now_ns < DEADLINE_TIMES * other_ns
        is_dear = (other_ns - chosen_ns) * EXPLORE_EVERY > n_since * chosen_ns
        return None if other_ns > EXPLORE_MAX_NS or is_near or is_dear else other

    def _is_stale(self, chosen: str) -> bool:
        """Whether the other route was not seen lately at the size that it would learn from."""
        cost, n_bytes = (
            (self.gpu_cost, self.n_bytes) if chosen == CPU else (self.cpu_cost, self.n_bytes // self.n_documents)
        )
        seen_ns = cost.time.seen_ns[size_class(n_bytes)]
        return not seen_ns or self.now_ns - seen_ns > EXPLORE_AFTER_NS
