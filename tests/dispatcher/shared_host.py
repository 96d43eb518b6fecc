"""The service in simulated time: workers, a GPU route and an event loop's share of one interpreter.

Every document is read by a worker, which then asks the chooser. On the CPU route the same worker encodes it; part of
that holds the interpreter, the rest runs beside others. On the GPU route the worker submits it, and the interpreter is
needed once more for each replay and for each answer.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from statistics import median

from dispatcher.chooser import RouteChooser
from dispatcher.costs import CostKey, Costs, Line, StartValues
from dispatcher.gpu.batch import RouteLimits
from dispatcher.gpu.fake_link import Simulation
from dispatcher.gpu.group import Group
from dispatcher.gpu.replay import Replay
from dispatcher.policy import ADAPTIVE, CPU, FASTER, GPU, Choice, CpuLoad
from dispatcher.spell import Spell
from dispatcher.ways import Ways
from tests.dispatcher.route_rig import MODEL, Rig

KIND = "ascii"


def line(ns: int) -> Line:
    """The same for any size."""
    return Line(float(ns), 0.0)


@dataclass(frozen=True)
class Host:
    """What documents of one size cost, in nanoseconds. `*_held_ns` holds the interpreter."""

    n_bytes: int
    read_held_ns: int
    cpu_held_ns: int
    """Of encoding on the CPU route, ..."""
    cpu_beside_ns: int
    """... and the rest of it."""
    submit_held_ns: int
    replay_held_ns: int
    """For each replay: launch, results."""
    answer_held_ns: int
    """For each document that comes back from the GPU route."""
    replay_ns: Callable[[int], int]
    """Of the device, by bytes."""
    n_workers: int = 8


class Service:
    """Documents of one size come one by one."""

    def __init__(self, host: Host, policy: str = ADAPTIVE) -> None:
        self.host = host
        self.simulation = Simulation()
        alone_ns = host.cpu_held_ns + host.cpu_beside_ns
        on_gpu_ns = host.submit_held_ns + host.replay_held_ns + host.answer_held_ns
        # What is measured when nothing else runs.
        start = {
            CostKey(CPU, MODEL, KIND): StartValues(line(alone_ns), line(alone_ns)),
            CostKey(GPU, MODEL, KIND): StartValues(line(host.replay_ns(host.n_bytes)), line(on_gpu_ns)),
        }
        self._host_ns = 0
        self.chooser = RouteChooser(Costs(start), policy, Ways(lambda: self._host_ns))
        self._spells: dict[int, Spell | None] = {}
        self.latencies_ns: list[int] = []
        """By document; 0 = not answered yet."""
        self.routes: list[str] = []
        self.reasons: list[str] = []
        self._gpu = Rig(
            replay_ns=self._replay_ns, simulation=self.simulation, limits=RouteLimits(), on_replay=self._observe
        )
        self._document = bytes(host.n_bytes)
        self._n_idle = host.n_workers
        self._queue: deque[tuple[int, int]] = deque()
        self._free_ns = 0
        """When the interpreter is free."""

    def poisson(self, rate: float, n_documents: int, seed: int = 1) -> None:
        """Let documents come at a rate (per second), and everything be answered."""
        source = random.Random(seed)
        at_ns = float(self.simulation.now_ns)
        for _ in range(n_documents):
            at_ns += source.expovariate(rate) * 1e9
            self.simulation.at(int(at_ns), self._arrive)
        self._start_ns = self.simulation.now_ns
        self.simulation.run()
        assert all(self.latencies_ns), "everything is answered"

    @property
    def per_second(self) -> float:
        """Documents answered per second, of all."""
        return len(self.latencies_ns) * 1e9 / (self.simulation.now_ns - self._start_ns)

    @property
    def median_ns(self) -> float:
        """Median latency, without the first third."""
        return median(self.latencies_ns[len(self.latencies_ns) // 3 :])

    def share_of(self, route: str) -> float:
        """Part of the documents that took a route."""
        return self.routes.count(route) / len(self.routes)

    def _hold(self, held_ns: int) -> int:
        """Use the interpreter when it is one's turn; nanoseconds from now until that is done."""
        now_ns = self.simulation.now_ns
        self._free_ns = max(self._free_ns, now_ns) + held_ns
        return self._free_ns - now_ns

    def _arrive(self) -> None:
        self._queue.append((len(self.latencies_ns), self.simulation.now_ns))
        self.latencies_ns.append(0)
        self._next()

    def _next(self) -> None:
        if self._n_idle and self._queue:
            self._n_idle -= 1
            self.simulation.after(self._hold(self.host.read_held_ns), partial(self._send, *self._queue.popleft()))

    def _send(self, number: int, since_ns: int) -> None:
        """On a worker that has read a document."""
        host, now_ns = self.host, self.simulation.now_ns
        loads, n_waiting = [self._gpu.route.load(MODEL)], len(self._queue)
        choice = None
        if self.chooser.policy == ADAPTIVE:
            if self.chooser.stays(MODEL, KIND, host.n_bytes, 1, n_waiting, now_ns):
                choice = Choice(CPU, FASTER)
            else:
                choice = self.chooser.again(MODEL, KIND, host.n_bytes, 1, loads, now_ns)
        if choice is None:
            load = CpuLoad(host.n_workers, self._n_idle + 1, n_waiting * host.n_bytes, n_waiting, is_first=True)
            choice = self.chooser.choose(MODEL, KIND, host.n_bytes, 1, load, loads, now_ns)
        self._spells[number] = self.chooser.spell_of(choice, host.n_bytes, 1)
        self.routes.append(choice.route)
        self.reasons.append(choice.reason)
        if choice.route == CPU:
            self.simulation.after(
                self._hold(host.cpu_held_ns) + host.cpu_beside_ns, partial(self._encoded, number, since_ns, now_ns)
            )
        else:
            self.simulation.after(self._hold(host.submit_held_ns), partial(self._submitted, number, since_ns, now_ns))

    def _encoded(self, number: int, since_ns: int, started_ns: int) -> None:
        host, now_ns = self.host, self.simulation.now_ns
        cpu_ns = host.cpu_held_ns + host.cpu_beside_ns
        self._host_ns += cpu_ns
        self.chooser.costs.observe_cpu_route(MODEL, KIND, host.n_bytes, 1, now_ns - started_ns, cpu_ns, now_ns)
        self._answered(number, since_ns)
        self._n_idle += 1
        self._next()

    def _submitted(self, number: int, since_ns: int, chosen_ns: int) -> None:
        submit_ns = self.simulation.now_ns - chosen_ns
        self._gpu.route.submit(
            Group(
                MODEL,
                [self._document],
                lambda group: self._replayed(number, since_ns, submit_ns),
                lambda group, reason: self._answered(number, 0),
            )
        )
        self._n_idle += 1
        self._next()

    def _replay_ns(self, n_bytes: int, _n_documents: int) -> int:
        """From a launch to results at hand: the route waits for the interpreter like everybody."""
        return max(self.host.replay_ns(n_bytes), self._hold(self.host.replay_held_ns))

    def _observe(self, seen: Replay) -> None:
        each_ns = self.host.submit_held_ns + self.host.answer_held_ns
        cpu_ns = self.host.replay_held_ns + each_ns * seen.n_documents
        self._host_ns += cpu_ns
        self.chooser.costs.observe_gpu_route(
            *(MODEL, KIND, seen.n_bytes, seen.n_documents, seen.took_ns, cpu_ns, self.simulation.now_ns),
            replay_ns=self.host.replay_ns(seen.n_bytes),
        )

    def _replayed(self, number: int, since_ns: int, submit_ns: int) -> None:
        now_ns = self.simulation.now_ns
        answer_ns = self._hold(self.host.answer_held_ns)
        self.chooser.costs.observe_gpu_answer(MODEL, KIND, self.host.n_bytes, submit_ns + answer_ns, now_ns)
        self.simulation.after(answer_ns, partial(self._answered, number, since_ns))

    def _answered(self, number: int, since_ns: int) -> None:
        now_ns = self.simulation.now_ns
        self.latencies_ns[number] = now_ns - since_ns
        if (spell := self._spells[number]) is not None:
            spell.answered(since_ns, now_ns)
