"""A GPU route in simulated time: a scripted engine, groups submitted at times, and what became of them."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

import numpy as np

from dispatcher.gpu.batch import RouteLimits
from dispatcher.gpu.fake_link import DEFAULT_SIZES, FakeEngine, Simulation, make_slots, serve_due
from dispatcher.gpu.group import Group
from dispatcher.gpu.replay import Replay
from dispatcher.gpu.route import GpuRoute
from gpu_core.ladder import SizeClass
from gpu_core.safe_cut import Cuts

MODEL = "m"
SMALL = (SizeClass(64, 4), SizeClass(256, 8))
"""A ladder that a few bytes fill."""
US = 1_000
MS = 1_000_000


def cost_of(n_bytes: int, n_documents: int) -> int:
    """Replays like those of a GPU: 30 us, 0.1 ns a byte, 10 ns a document."""
    return 30 * US + n_bytes // 10 + 10 * n_documents


class EveryByte:
    """Every byte is a place to cut."""

    def last_before(self, text: object, low: int, high: int) -> int | None:
        """See `SafeCuts`."""
        return high if high > low else None


class Rig:
    """One route, one engine at a time."""

    def __init__(
        self,
        *,
        limits: RouteLimits | None = None,
        sizes: Sequence[SizeClass] = DEFAULT_SIZES,
        n_each: int = 2,
        cuts: dict[str, Cuts] | None = None,
        replay_ns: Callable[[int, int], int] = cost_of,
        models: Sequence[str] = (MODEL,),
        n_lanes: int = 1,
        simulation: Simulation | None = None,
        on_replay: Callable[[Replay], object] = lambda replay: None,
    ) -> None:
        self.simulation = simulation or Simulation()
        self.replays: list[Replay] = []
        self._on_replay = on_replay
        self.route = GpuRoute(cuts or {}, limits, self._note_replay, self.simulation.clock, lambda: 0)
        self._sizes, self._n_each, self._models = sizes, n_each, models
        self._replay_ns, self._n_lanes = replay_ns, n_lanes
        self.done: list[Group] = []
        self.fallen: list[tuple[Group, str]] = []
        self.done_ns: dict[int, int] = {}
        """When each group was done, by its `id`."""
        self.engine = self.attach()

    def attach(self) -> FakeEngine:
        """A new engine."""
        slots = {
            model: make_slots(model, self._sizes, self._n_each, 1000 * number)
            for number, model in enumerate(self._models)
        }
        self.engine = FakeEngine(self.simulation, slots, replay_ns=self._replay_ns, n_lanes=self._n_lanes)
        self.engine.on_due = lambda: serve_due(self.route)
        self.route.attach(self.engine)
        return self.engine

    def group(
        self, *documents: bytes | memoryview, model: str = MODEL, count_only: bool = False, deadline_ns: int = 0
    ) -> Group:
        """A group whose end is noted."""
        return Group(model, documents, self._on_done, self._on_fallback, count_only=count_only, deadline_ns=deadline_ns)

    def submit(self, *documents: bytes, at_ns: int = 0, model: str = MODEL, count_only: bool = False) -> Group:
        """Submit a group at a time, or now."""
        group = self.group(*documents, model=model, count_only=count_only)
        if at_ns:
            self.simulation.at(at_ns, lambda: self.route.submit(group))
        else:
            self.route.submit(group)
        return group

    def run(self, until_ns: int | None = None) -> None:
        """Let time pass."""
        self.simulation.run(until_ns)

    def latency_ns(self, group: Group) -> int:
        """From submission to the end."""
        return self.done_ns[id(group)] - group.submitted_ns

    def _note_replay(self, replay: Replay) -> None:
        self.replays.append(replay)
        self._on_replay(replay)

    def _on_done(self, group: Group) -> None:
        self.done.append(group)
        self.done_ns[id(group)] = self.simulation.now_ns

    def _on_fallback(self, group: Group, reason: str) -> None:
        self.fallen.append((group, reason))


def packed(document: bytes | memoryview) -> bytes:
    """The ids that the scripted engine gives a document."""
    return np.frombuffer(document, np.uint8).astype("<u4").tobytes()


def check(group: Group) -> None:
    """Every document has its ids, or is named for the CPU."""
    for number, document in enumerate(group.documents):
        if number in group.needs_cpu:
            assert group.n_tokens[number] == 0
            assert group.count_only or group.ids[number] is None
            continue
        assert group.n_tokens[number] == len(document)
        if group.count_only:
            assert not group.ids
        else:
            ids = group.ids[number]
            assert ids is not None
            assert bytes(ids) == packed(bytes(document))


def texts(seed: int, sizes: Sequence[int]) -> list[bytes]:
    """Documents of given sizes."""
    source = random.Random(seed)
    return [source.randbytes(size) for size in sizes]
