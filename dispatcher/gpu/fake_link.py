"""An engine without a process or a GPU: what a replay takes, answers and breaks is scripted, and time is simulated.

    simulation = Simulation()
    engine = FakeEngine(simulation, {"model": make_slots("model")}, replay_ns=lambda n_bytes, n_documents: 50_000)
    route.attach(engine)
    engine.on_due = lambda: serve_due(route)    the route's thread
    simulation.at(1_000, lambda: route.submit(group))
    simulation.run()

Without a simulation, time is real and `wait` blocks, so that a thread can serve it.
"""

from __future__ import annotations

import heapq
import itertools
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from dispatcher.gpu.link import Completion, EngineLost, Slot
from dispatcher.gpu.route import GpuRoute
from gpu_core.decimal_layout import ROOM
from gpu_core.ladder import SizeClass
from gpu_core.layout import FLAG_DECIMALS, FLAG_IDS, FLAG_NORMAL_FORM, REASON_NOT_NORMAL, REASONS, header_flags
from gpu_core.twin_decimal import write_decimals

KIB = 1 << 10
NOT_NORMAL = REASONS[REASON_NOT_NORMAL]
POISON = 0xDEADBEEF
"""What results hold before they are complete."""
DEFAULT_SIZES = tuple(
    SizeClass(capacity * KIB, max(64, capacity * KIB // 8)) for capacity in (4, 16, 64, 256, 512, 1024, 4096)
)


class Simulation:
    """Time that passes only in `run`. Actions of the same moment run in the order in which they were asked for."""

    def __init__(self) -> None:
        self.now_ns = 1
        self._actions: list[tuple[int, int, Callable[[], object]]] = []
        self._numbers = itertools.count()

    def clock(self) -> int:
        """The time now, in nanoseconds."""
        return self.now_ns

    def at(self, when_ns: int, action: Callable[[], object]) -> None:
        """Do something at a time; at once if that has passed, but not before what is under way returns."""
        heapq.heappush(self._actions, (max(when_ns, self.now_ns), next(self._numbers), action))

    def after(self, delay_ns: int, action: Callable[[], object]) -> None:
        """Do something later."""
        self.at(self.now_ns + delay_ns, action)

    def run(self, until_ns: int | None = None) -> None:
        """Do everything up to a time, or until nothing is left to do."""
        while self._actions and (until_ns is None or self._actions[0][0] <= until_ns):
            self.now_ns, _number, action = heapq.heappop(self._actions)
            action()
        if until_ns is not None:
            self.now_ns = max(self.now_ns, until_ns)


def serve_due(route: GpuRoute) -> None:
    """What the route's thread does between two waits, in simulated time."""
    route.turn(0.0)
    while route.is_filling:
        route.turn(0.0)


def bytes_as_ids(document: bytes) -> NDArray[np.uint32]:
    """A tokenizer with one id for each byte: exact wherever a text is cut."""
    return np.frombuffer(document, np.uint8).astype(np.uint32)


def make_slots(
    model_key: str, sizes: Sequence[SizeClass] = DEFAULT_SIZES, n_each: int = 2, first_number: int = 0
) -> list[Slot]:
    """Slots in ordinary memory."""
    numbers = itertools.count(first_number)
    return [
        Slot(
            next(numbers),
            model_key,
            size,
            memoryview(bytearray(size.capacity)),
            np.zeros(size.max_documents + 1, np.uint32),
            np.full(size.capacity, POISON, np.uint32),
            np.full(size.max_documents + 1, POISON, np.uint32),
            memoryview(bytearray(ROOM * size.capacity)),
            np.full(size.max_documents + 1, POISON, np.uint32),
        )
        for size in sizes
        for _ in range(n_each)
    ]


class FakeEngine:
    """See `EngineLink`. Replays run one after the other, `n_lanes` at a time, as one device would run them.

    Change `replay_ns`, `needs_cpu` and `is_hung` at any time.
    """

    def __init__(
        self,
        simulation: Simulation | None,
        slots: Mapping[str, Sequence[Slot]],
        *,
        replay_ns: Callable[[int, int], int] = lambda n_bytes, n_documents: 0,
        encode: Callable[[bytes], NDArray[np.uint32]] = bytes_as_ids,
        needs_cpu: Callable[[bytes], str | None] | None = None,
        n_lanes: int = 1,
        ready_ns: int = 0,
        engine_cpu_ns: int = 0,
    ) -> None:
        """`replay_ns(n_bytes, n_documents)`; `needs_cpu(document)`: a reason or None; no launch before `ready_ns`."""
        self.replay_ns, self.encode, self.needs_cpu = replay_ns, encode, needs_cpu
        self.engine_cpu_ns = engine_cpu_ns
        self.is_hung = False
        """Replays that were launched never end."""
        self.on_due: Callable[[], object] = lambda: None
        """With a simulation: called when `wait` would return."""
        self.launches: list[tuple[int, int, int, int]] = []
        """Number of the slot, bytes, documents and flags of every launch."""
        self._simulation, self._slots = simulation, dict(slots)
        self._clock = simulation.clock if simulation else time.monotonic_ns
        self._ready_ns = ready_ns
        self._free_ns = [0] * n_lanes
        self._running: list[tuple[int, int, Completion]] = []
        self._is_lost = False
        self._lost_after = -1
        self._interrupted = False
        self._changed = threading.Condition()

    @property
    def ready(self) -> bool:
        """See `EngineLink.ready`."""
        return not self._is_lost and self._clock() >= self._ready_ns

    def slots(self, model_key: str) -> Sequence[Slot]:
        """See `EngineLink.slots`."""
        return self._slots.get(model_key, ())

    def add_model(self, slots: Sequence[Slot]) -> None:
        """Serve one more tokenizer."""
        self._slots[slots[0].model_key] = slots

    def lose(self) -> None:
        """The engine dies now."""
        with self._changed:
            self._is_lost = True
            self._changed.notify_all()
        self._due_at(self._clock())

    def lose_after(self, n_launches: int) -> None:
        """The engine dies at the launch after so many more."""
        self._lost_after = n_launches

    def launch(self, slot: Slot, n_bytes: int, n_documents: int, flags: int) -> None:
        """See `EngineLink.launch`."""
        if self._lost_after == 0:
            self.lose()
        if not self.ready:
            raise EngineLost("the engine is gone")
        self._lost_after -= 1
        self._check(slot, n_bytes, n_documents)
        slot.ids[:n_bytes] = slot.document_tokens[: n_documents + 1] = POISON
        now_ns, took_ns = self._clock(), self.replay_ns(n_bytes, n_documents)
        lane = min(range(len(self._free_ns)), key=self._free_ns.__getitem__)
        end_ns = self._free_ns[lane] = max(now_ns, self._free_ns[lane]) + took_ns
        completion = Completion(slot, 0, end_ns - now_ns, self.engine_cpu_ns)
        with self._changed:
            self.launches.append((slot.number, n_bytes, n_documents, flags))
            heapq.heappush(self._running, (end_ns, len(self.launches), completion))
            self._changed.notify_all()
        self._due_at(end_ns)

    def wait(self, timeout_s: float | None) -> list[Completion]:
        """See `EngineLink.wait`. In simulated time it returns at once."""
        with self._changed:
            if self._simulation is None:
                self._block(timeout_s)
            if self._is_lost:
                raise EngineLost("the engine is gone")
            self._interrupted = False
            completions = []
            while not self.is_hung and self._running and self._running[0][0] <= self._clock():
                _end_ns, number, completion = heapq.heappop(self._running)
                _slot, _n_bytes, n_documents, flags = self.launches[number - 1]
                self._finish(completion, n_documents, flags)
                if flags & FLAG_DECIMALS:
                    slot = completion.slot
                    tokens = slot.document_tokens[: n_documents + 1]
                    write_decimals(slot.ids[: completion.n_tokens], tokens, slot.decimals, slot.document_decimals)
                completions.append(completion)
        return completions

    def interrupt(self) -> None:
        """See `EngineLink.interrupt`."""
        with self._changed:
            self._interrupted = True
            self._changed.notify_all()
        self._due_at(self._clock())

    @property
    def n_running(self) -> int:
        """Replays under way."""
        return len(self._running)

    def _due_at(self, when_ns: int) -> None:
        if self._simulation is not None:
            self._simulation.at(when_ns, lambda: self.on_due())

    def _has_news(self) -> bool:
        due = not self.is_hung and bool(self._running) and self._running[0][0] <= self._clock()
        return self._is_lost or self._interrupted or due

    def _block(self, timeout_s: float | None) -> None:
        """Until there are news, or the timeout."""
        until_s = float("inf") if timeout_s is None else time.monotonic() + timeout_s
        while not self._has_news():
            left_s = until_s - time.monotonic()
            if left_s <= 0:
                return
            if self._running and not self.is_hung:
                left_s = min(left_s, max(0.0, (self._running[0][0] - self._clock()) * 1e-9))
            self._changed.wait(None if left_s == float("inf") else left_s)

    @staticmethod
    def _check(slot: Slot, n_bytes: int, n_documents: int) -> None:
        starts = slot.document_starts[: n_documents + 1].tolist()
        fits = n_bytes <= slot.size.capacity and n_documents <= slot.size.max_documents
        if not fits or starts != sorted(starts) or starts[0] or starts[-1] != n_bytes:
            raise ValueError("a launch that a real engine would refuse")

    def _finish(self, completion: Completion, n_documents: int, flags: int) -> None:
        """Write results, at the last moment: the text must have stayed what it was."""
        slot, position = completion.slot, 0
        starts = slot.document_starts[: n_documents + 1].tolist()
        for number, (start, end) in enumerate(pairwise(starts)):
            document = bytes(slot.text[start:end])
            slot.document_tokens[number] = position
            reason = self.needs_cpu(document) if self.needs_cpu else None
            if reason is not None and not (flags & FLAG_NORMAL_FORM and reason == NOT_NORMAL):
                completion.needs_cpu = {**completion.needs_cpu, number: reason}
                continue
            ids = self.encode(document)
            if header_flags(flags) & FLAG_IDS:
                slot.ids[position : position + len(ids)] = ids
            position += len(ids)
        slot.document_tokens[n_documents] = completion.n_tokens = position
