"""Both routes in simulated time: a pool of workers, GPUs with scripted replays, and a chooser that sees only what it
observes."""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from statistics import mean, median

from dispatcher.chooser import RouteChooser
from dispatcher.costs import Costs
from dispatcher.gpu.batch import RouteLimits
from dispatcher.gpu.fake_link import Simulation
from dispatcher.gpu.group import Group
from dispatcher.gpu.replay import Replay
from dispatcher.policy import ADAPTIVE, CPU, Choice, CpuLoad
from dispatcher.spell import Spell
from dispatcher.ways import Ways
from tests.dispatcher.route_rig import MODEL, Rig

KIND = "ascii"
TextCost = Callable[[int], int]
"""Nanoseconds of a document by its bytes."""


@dataclass
class World:
    """What things cost. Change it while time passes."""

    cpu_ns: TextCost
    replay_ns: Callable[[int, int], int]
    gpu_cpu_ns: int = 20_000
    """Host CPU of a replay."""
    n_workers: int = 4
    n_gpus: int = 1


class TwoRoutes:
    """Documents come one by one; each takes the route that the chooser says."""

    def __init__(self, world: World, policy: str = ADAPTIVE) -> None:
        self.world = world
        self.simulation = Simulation()
        self._host_ns = 0
        self.chooser = RouteChooser(Costs(), policy, Ways(lambda: self._host_ns))
        self.gpus = [
            Rig(
                replay_ns=self._replay_ns,
                simulation=self.simulation,
                limits=RouteLimits(),
                on_replay=self._observe,
            )
            for _ in range(world.n_gpus)
        ]
        for rig in self.gpus:
            rig.engine.engine_cpu_ns = world.gpu_cpu_ns
        self.choices: list[Choice] = []
        self.latencies_ns: list[int] = []
        """In the order of arrival; 0 for a document that is not answered yet."""
        self._spells: list[Spell | None] = []
        self._n_idle = world.n_workers
        self._queue: deque[tuple[int, int, int]] = deque()
        self._queued_bytes = 0

    def poisson(self, rate: float, n_documents: int, size: Callable[[random.Random], int], seed: int = 1) -> None:
        """Let documents come at a rate (per second), and everything be answered."""
        source = random.Random(seed)
        at_ns = float(self.simulation.now_ns)
        for _ in range(n_documents):
            at_ns += source.expovariate(rate) * 1e9
            self.simulation.at(int(at_ns), partial(self.arrive, size(source)))
        self.simulation.run()
        assert all(self.latencies_ns), "everything is answered"

    def arrive(self, n_bytes: int, deadline_ns: int = 0) -> Choice:
        """One document now."""
        now_ns = self.simulation.now_ns
        load = CpuLoad(self.world.n_workers, self._n_idle, self._queued_bytes, len(self._queue))
        loads = [rig.route.load(MODEL) for rig in self.gpus]
        choice = self.chooser.again(MODEL, KIND, n_bytes, 1, loads, now_ns) if loads else None
        if choice is None or self.chooser.policy != ADAPTIVE:
            choice = self.chooser.choose(MODEL, KIND, n_bytes, 1, load, loads, now_ns, deadline_ns=deadline_ns)
        self._spells.append(self.chooser.spell_of(choice, n_bytes, 1))
        number = len(self.choices)
        self.choices.append(choice)
        self.latencies_ns.append(0)
        if choice.route == CPU:
            self._to_cpu(number, n_bytes, now_ns)
        else:
            self._to_gpu(choice.gpu, number, n_bytes, now_ns)
        return choice

    def share_of(self, route: str, first: int = 0) -> float:
        """Part of the documents from `first` on that took a route."""
        return mean(choice.route == route for choice in self.choices[first:])

    def changes(self, first: int = 0) -> float:
        """Part of the documents from `first` on that took another route than the one before; explorations left out."""
        routes = [choice.route for choice in self.choices[first:] if choice.reason != "explore"]
        return mean(a != b for a, b in pairwise(routes))

    def median_ns(self, first: int = 0) -> float:
        """Median latency of the documents from `first` on."""
        return median(self.latencies_ns[first:])

    def mean_ns(self, first: int = 0) -> float:
        """Mean latency of the documents from `first` on."""
        return mean(self.latencies_ns[first:])

    def _replay_ns(self, n_bytes: int, n_documents: int) -> int:
        return self.world.replay_ns(n_bytes, n_documents)

    def _observe(self, seen: Replay) -> None:
        self._host_ns += seen.cpu_ns
        self.chooser.costs.observe_gpu_route(
            *(MODEL, KIND, seen.n_bytes, seen.n_documents, seen.took_ns, seen.cpu_ns, self.simulation.now_ns),
            seen.n_unanswered,
            seen.replay_ns,
        )

    def _to_cpu(self, number: int, n_bytes: int, since_ns: int) -> None:
        if not self._n_idle:
            self._queue.append((number, n_bytes, since_ns))
            self._queued_bytes += n_bytes
            return
        self._n_idle -= 1
        took_ns = self.world.cpu_ns(n_bytes)

        def finish() -> None:
            now_ns = self.simulation.now_ns
            self._host_ns += took_ns
            self._answered(number, since_ns)
            self.chooser.costs.observe_cpu_route(MODEL, KIND, n_bytes, 1, took_ns, took_ns, now_ns)
            self._n_idle += 1
            if self._queue:
                waiting = self._queue.popleft()
                self._queued_bytes -= waiting[1]
                self._to_cpu(*waiting)

        self.simulation.after(took_ns, finish)

    def _answered(self, number: int, since_ns: int) -> None:
        now_ns = self.simulation.now_ns
        self.latencies_ns[number] = now_ns - since_ns
        if (spell := self._spells[number]) is not None:
            spell.answered(since_ns, now_ns)

    def _to_gpu(self, gpu: int, number: int, n_bytes: int, since_ns: int) -> None:
        rig = self.gpus[gpu]

        def on_done(group: Group) -> None:
            if group.needs_cpu:
                self._to_cpu(number, n_bytes, since_ns)
            else:
                self._answered(number, since_ns)

        rig.route.submit(
            Group(MODEL, [bytes(n_bytes)], on_done, lambda _group, _why: self._to_cpu(number, n_bytes, since_ns))
        )
