"""Chooses routes, one decision after the other: keeps what was chosen, counts why, and tries the other route at times.

    chooser.choose(model, kind, n_bytes, n_documents, cpu_load, [route.load(key), ...], now_ns) -> Choice

Costs of a route that nothing takes go stale. So a bounded part of small work takes the other route, and only when that
one was not seen at this size for a while; work that is large, or that would be slow there, or whose deadline is near,
never does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dispatcher.costs import Costs, RouteCost, size_class
from dispatcher.policy import (
    ADAPTIVE,
    CPU,
    EXPLORE,
    FASTER,
    GPU,
    LESS_CPU,
    REASONS,
    Choice,
    CpuLoad,
    GpuLoad,
    best_gpu,
    choose_route,
    cpu_completion_ns,
    gpu_choice,
)
from dispatcher.tally import Tally

EXPLORE_SHARE = 1 / 64
"""Part of the decisions about one model, kind and size class, at most."""
EXPLORE_AFTER_NS = 1_000_000_000
"""Costs that are older are stale."""
EXPLORE_MAX_BYTES = 1 << 15
EXPLORE_MAX_NS = 10_000_000
"""Work that is predicted to take longer on the other route does not explore it."""
DEADLINE_TIMES = 20
"""A deadline is near when less than so many times the predicted time is left."""

_EXPLORE_CPU = Choice(CPU, EXPLORE)


@dataclass(slots=True)
class _Habit:
    """What was chosen for one model, kind and size class."""

    last: str = ""
    credit: float = 0.0
    """Explorations that may be made."""


class RouteChooser:
    """Any thread may choose; of two at the same moment, one may not be remembered, but both are counted."""

    def __init__(self, costs: Costs, policy: str = ADAPTIVE) -> None:
        """`policy` is that of requests without one of their own."""
        self.costs, self.policy = costs, policy
        self._habits: dict[tuple[str, str, int], _Habit] = {}
        self._counts = {(route, reason): Tally() for route in (CPU, GPU) for reason in REASONS}

    def choose(
        self,
        model: str,
        kind: str,
        n_bytes: int,
        n_documents: int,
        cpu: CpuLoad,
        gpus: Sequence[GpuLoad],
        now_ns: int,
        policy: str = "",
        deadline_ns: int = 0,
    ) -> Choice:
        """The route for at least one document of one kind. `policy`: the request's own; `deadline_ns` 0 = never."""
        policy = policy or self.policy
        costs = self.costs
        cpu_cost, gpu_cost = costs.of(CPU, model, kind), costs.of(GPU, model, kind)
        key = (model, kind, size_class(n_bytes // n_documents))
        habit = self._habits.get(key)
        if habit is None:
            habit = self._habits.setdefault(key, _Habit())
        choice = choose_route(n_bytes, n_documents, cpu, cpu_cost, gpus, gpu_cost, now_ns, policy, habit.last)
        if choice.reason is FASTER or choice.reason is LESS_CPU:
            habit.last = choice.route
            if n_bytes <= EXPLORE_MAX_BYTES:
                habit.credit = min(habit.credit + EXPLORE_SHARE, 1.0)
                other_cost = gpu_cost if choice.route == CPU else cpu_cost
                if habit.credit >= 1.0 and _is_stale(choice.route, other_cost, n_bytes, n_documents, now_ns):
                    other = _other(choice.route, n_bytes, n_documents, cpu, gpus, other_cost, now_ns, deadline_ns)
                    if other is not None:
                        habit.credit -= 1.0
                        choice = other
        self._counts[choice.route, choice.reason].add()
        return choice

    def snapshot(self) -> dict[tuple[str, str], int]:
        """Decisions by route and reason; callable from any thread."""
        return {key: tally.value for key, tally in self._counts.items()}


def _is_stale(chosen: str, other_cost: RouteCost, n_bytes: int, n_documents: int, now_ns: int) -> bool:
    """Whether the other route was not seen lately at the size that it would learn from."""
    at = size_class(n_bytes if chosen == CPU else n_bytes // n_documents)
    return now_ns - other_cost.time.seen_ns[at] > EXPLORE_AFTER_NS


def _other(
    chosen: str,
    n_bytes: int,
    n_documents: int,
    cpu: CpuLoad,
    gpus: Sequence[GpuLoad],
    cost: RouteCost,
    now_ns: int,
    deadline_ns: int,
) -> Choice | None:
    """The other route, if nobody is hurt by it."""
    if chosen == GPU:
        ns, choice = cpu_completion_ns(n_documents, n_bytes // n_documents, cpu, cost), _EXPLORE_CPU
    else:
        gpu, ns = best_gpu(n_bytes, n_documents, gpus, cost, now_ns)
        if gpu < 0:
            return None
        choice = gpu_choice(gpu, EXPLORE)
    is_near = deadline_ns and deadline_ns - now_ns < DEADLINE_TIMES * ns
    return None if ns > EXPLORE_MAX_NS or is_near else choice
