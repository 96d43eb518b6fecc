"""A service behind sockets in simulated time: an event loop, workers that take rounds, and a GPU route, which take
turns at one interpreter.

    socket ─► loop: turn ─► queue ─► worker: read, choose ─┬─ encode, write ───────────────────► loop: turn ─► answered
                                                           └─ submit ─► replays ─► loop: results ─╯

The loop receives in one turn what came during the last one. A worker takes a round, and another one is woken only when
much waits (`dispatcher.work_queue`). What holds the interpreter waits for its turn; encoding beside that does not.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from statistics import median

from dispatcher.chooser import RouteChooser
from dispatcher.costs import CostKey, Costs, Line, StartValues
from dispatcher.gpu.batch import RouteLimits
from dispatcher.gpu.fake_link import Simulation
from dispatcher.gpu.group import Group
from dispatcher.gpu.replay import Replay
from dispatcher.policy import ADAPTIVE, CPU, FASTER, GPU, POLICY, TOGETHER, Choice, CpuLoad
from dispatcher.spell import Spell
from dispatcher.ways import Ways
from tests.dispatcher.route_rig import MODEL, US, Rig

KIND = "ascii"
N_BYTES = 5_000
N_CONNECTIONS = 192
N_WORKERS = 8
WAKES_AT = 16
"""Documents that wait before one more worker is woken."""
ROUND = 24
"""Documents of a round, at most."""


@dataclass(frozen=True)
class Work:
    """Nanoseconds of a step: for each time, and for each document in it."""

    each_time: int
    each_document: int

    def of(self, n_documents: int) -> int:
        """For so many documents at once."""
        return self.each_time + n_documents * self.each_document


@dataclass(frozen=True)
class Served:
    """What the steps cost. All but `encode_beside` and `replay` hold the interpreter."""

    receive: Work
    send: Work
    read: Work
    predict: Work
    """Choosing a route by prediction, ..."""
    repeat: Work
    """... and as a moment ago."""
    encode: Work
    encode_beside: Work
    write: Work
    submit: Work
    launch: Work
    """Of a replay, and looking for its end."""
    results: Work
    """On the loop: reading ids and writing answers."""
    replay: Work
    """Of the device."""


@dataclass(slots=True)
class _Request:
    number: int
    came_ns: int
    received_ns: int = 0
    spell: Spell | None = None


class Service:
    """Documents of one size come one by one."""

    def __init__(self, served: Served, policy: str = ADAPTIVE) -> None:
        self.served = served
        self.simulation = Simulation()
        start = {
            CostKey(CPU, MODEL, KIND): _start(served.encode.of(1) + served.encode_beside.of(1)),
            CostKey(GPU, MODEL, KIND): _start(served.replay.of(1)),
        }
        self._host_ns = 0
        self.chooser = RouteChooser(Costs(start), policy, Ways(lambda: self._host_ns))
        self.latencies_ns: list[int] = []
        """By document; 0 = not answered yet."""
        self.routes: list[str] = []
        self._gpu = Rig(
            replay_ns=self._replay_ns, simulation=self.simulation, limits=RouteLimits(), on_replay=self._observe
        )
        self._document = bytes(N_BYTES)
        self._clients: deque[_Request] = deque()
        self._n_connected = 0
        self._sockets: list[_Request] = []
        self._done: list[_Request] = []
        self._done_ns = 0
        """When the first one of these was."""
        self._results: list[list[_Request]] = []
        self._is_turning = False
        self._queue: deque[_Request] = deque()
        self._n_awake = 0
        self._free_ns = 0
        """When the interpreter is free."""

    def poisson(self, rate: float, n_documents: int, seed: int = 1) -> None:
        """Let documents come at a rate (per second), and everything be answered."""
        source = random.Random(seed)
        at_ns = float(self.simulation.now_ns)
        first = len(self.latencies_ns)
        self.latencies_ns += [0] * n_documents
        self.routes += [""] * n_documents
        for number in range(first, first + n_documents):
            at_ns += source.expovariate(rate) * 1e9
            self.simulation.at(int(at_ns), partial(self._arrive, _Request(number, int(at_ns))))
        self.simulation.run()
        assert all(self.latencies_ns), "everything is answered"

    def median_ns(self, first: int = 0) -> float:
        """Median latency from a document on."""
        return median(self.latencies_ns[first:])

    def share_of(self, route: str, first: int = 0) -> float:
        """Part of the documents from one on that took a route."""
        return self.routes[first:].count(route) / len(self.routes[first:])

    def _hold(self, held_ns: int) -> int:
        """Use the interpreter when it is one's turn; nanoseconds from now until that is done."""
        now_ns = self.simulation.now_ns
        self._host_ns += held_ns
        self._free_ns = max(self._free_ns, now_ns) + held_ns
        return self._free_ns - now_ns

    def _arrive(self, request: _Request) -> None:
        self._clients.append(request)
        self._connect()

    def _connect(self) -> None:
        """Send what connections are free for."""
        while self._clients and self._n_connected < N_CONNECTIONS:
            self._n_connected += 1
            self._sockets.append(self._clients.popleft())
        self._turn()

    def _turn(self) -> None:
        """A turn of the loop, if there is something to do."""
        if self._is_turning or not (self._sockets or self._done or self._results):
            return
        self._is_turning = True
        arrived, done, results, late_ns = (
            self._sockets,
            self._done,
            self._results,
            self.simulation.now_ns - self._done_ns,
        )
        self._sockets, self._done, self._results = [], [], []
        for request in arrived:
            request.received_ns = self.simulation.now_ns
        served, held_ns = self.served, 0
        held_ns += served.receive.of(len(arrived)) if arrived else 0
        held_ns += served.send.of(len(done)) if done else 0
        held_ns += sum(served.results.of(len(group)) for group in results)
        self.simulation.after(self._hold(held_ns), partial(self._end_turn, arrived, done, results, late_ns))

    def _end_turn(
        self, arrived: list[_Request], done: list[_Request], results: list[list[_Request]], late_ns: int
    ) -> None:
        now_ns = self.simulation.now_ns
        for request in done:
            self.latencies_ns[request.number] = now_ns - request.came_ns
            if request.spell is not None:
                request.spell.answered(request.received_ns, now_ns + late_ns)
        self._queue.extend(arrived)
        for group in results:
            self._finish(group)
        self._is_turning = False
        self._n_connected -= len(done)
        self._wake()
        self._connect()

    def _finish(self, requests: Sequence[_Request]) -> None:
        if not self._done:
            self._done_ns = self.simulation.now_ns
        self._done += requests
        self._turn()

    def _wake(self) -> None:
        if self._queue and self._n_awake < N_WORKERS and len(self._queue) >= WAKES_AT * self._n_awake:
            self._n_awake += 1
            self._next()

    def _next(self) -> None:
        """On a worker that is awake."""
        taken = [self._queue.popleft() for _ in range(min(ROUND, len(self._queue)))]
        if not taken:
            self._n_awake -= 1
            return
        self.simulation.after(self._hold(self.served.read.of(len(taken))), partial(self._send, taken))

    def _send(self, requests: list[_Request]) -> None:
        """On a worker that has read a round."""
        served, n, now_ns = self.served, len(requests), self.simulation.now_ns
        choice, decided = self._choose(n, now_ns)
        spell = self.chooser.spell_of(choice, n * N_BYTES, n)
        for request in requests:
            request.spell = spell
            self.routes[request.number] = choice.route
        held_ns = 0 if choice.reason in (POLICY, TOGETHER) else (served.predict if decided else served.repeat).of(n)
        if choice.route == CPU:
            held_ns = self._hold(held_ns + served.encode.of(n))
            beside_ns = served.encode_beside.of(n)
            self._host_ns += beside_ns
            self.simulation.after(held_ns + beside_ns, partial(self._encoded, requests, now_ns))
        else:
            self.simulation.after(self._hold(held_ns + served.submit.of(n)), partial(self._submit, requests, now_ns))

    def _choose(self, n: int, now_ns: int) -> tuple[Choice, bool]:
        """The choice, and whether it took a prediction."""
        loads, n_waiting, n_bytes = [self._gpu.route.load(MODEL)], len(self._queue), n * N_BYTES
        if self.chooser.policy == ADAPTIVE:
            if self.chooser.together_on_cpu(n_bytes, n, loads, now_ns):
                return Choice(CPU, TOGETHER), False
            if n == 1 and self.chooser.stays(MODEL, KIND, n_bytes, n, n_waiting, now_ns):
                return Choice(CPU, FASTER), False
            if (choice := self.chooser.again(MODEL, KIND, n_bytes, n, loads, now_ns)) is not None:
                return choice, False
        n_idle = N_WORKERS - self._n_awake + 1
        load = CpuLoad(N_WORKERS, n_idle, n_waiting * N_BYTES, n_waiting, is_first=True)
        return self.chooser.choose(MODEL, KIND, n_bytes, n, load, loads, now_ns), True

    def _encoded(self, requests: list[_Request], started_ns: int) -> None:
        n, now_ns = len(requests), self.simulation.now_ns
        cpu_ns = self.served.encode.of(n) + self.served.encode_beside.of(n)
        self.chooser.costs.observe_cpu_route(MODEL, KIND, n * N_BYTES, n, now_ns - started_ns, cpu_ns, now_ns)
        self.simulation.after(self._hold(self.served.write.of(n)), partial(self._written, requests))

    def _written(self, requests: list[_Request]) -> None:
        self._finish(requests)
        self._next()

    def _submit(self, requests: list[_Request], chosen_ns: int) -> None:
        submit_ns = self.simulation.now_ns - chosen_ns
        documents = [self._document] * len(requests)
        self._gpu.route.submit(
            Group(MODEL, documents, lambda group: self._replayed(requests, submit_ns), lambda group, reason: None)
        )
        self._next()

    def _replay_ns(self, n_bytes: int, _n_documents: int) -> int:
        """From a launch to results at hand: the route waits for the interpreter like everybody."""
        return max(self.served.replay.of(n_bytes // N_BYTES), self._hold(self.served.launch.of(n_bytes // N_BYTES)))

    def _observe(self, seen: Replay) -> None:
        served, n, now_ns = self.served, seen.n_documents, self.simulation.now_ns
        cpu_ns = served.launch.of(n) + served.results.of(n)
        self.chooser.costs.observe_gpu_route(
            *(MODEL, KIND, seen.n_bytes, n, seen.took_ns, cpu_ns, now_ns), replay_ns=served.replay.of(n)
        )

    def _replayed(self, requests: list[_Request], submit_ns: int) -> None:
        now_ns, served = self.simulation.now_ns, self.served
        self.chooser.costs.observe_gpu_answer(
            MODEL, KIND, N_BYTES, submit_ns + served.results.of(len(requests)), now_ns
        )
        self._results.append(requests)
        self._turn()


def _start(ns: int) -> StartValues:
    """What is measured when nothing else runs."""
    return StartValues(Line(float(ns), 0.0), Line(float(ns), 0.0))


def h200() -> Served:
    """Short prompts on a host with an H200, from the CPU times of its parts (`docs/performance.md`)."""
    return Served(
        receive=Work(30 * US, 38 * US),
        send=Work(10 * US, 24 * US),
        read=Work(15 * US, 19 * US),
        predict=Work(40 * US, 4 * US),
        repeat=Work(5 * US, 4 * US),
        encode=Work(15 * US, 24 * US),
        encode_beside=Work(10 * US, 45 * US),
        write=Work(5 * US, 4 * US),
        submit=Work(15 * US, 4 * US),
        launch=Work(25 * US, 0),
        results=Work(10 * US, 6 * US),
        replay=Work(60 * US, 1 * US),
    )
