"""The GPU route of one device: groups in, results out, over one engine incarnation after the other."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping

from dispatcher.failures import where
from dispatcher.gpu.account import Clocks, OnReplay
from dispatcher.gpu.batch import RouteLimits
from dispatcher.gpu.group import ENGINE_LOST, NOT_READY, Group, answer
from dispatcher.gpu.incarnation import Incarnation
from dispatcher.gpu.link import EngineLink
from dispatcher.gpu.model_queue import ModelQueue
from dispatcher.gpu.reserved_text import Lease, ReservedText
from dispatcher.gpu.route_tally import RouteSnapshot, RouteTally
from dispatcher.gpu.short_ways import ShortWays
from dispatcher.policy import GpuLoad
from gpu_core.encoder import NO_CUT
from gpu_core.ladder import Ladder, Piece, SizeClass
from gpu_core.safe_cut import Cuts

_NO_LOAD = GpuLoad()

log = logging.getLogger("sidetok.gpu_route")


class GpuRoute:
    """Batches groups for one device. `submit`, `load`, `serves` and `snapshot` from any thread."""

    def __init__(
        self,
        cuts: Mapping[str, Cuts],
        limits: RouteLimits | None = None,
        on_replay: OnReplay = lambda replay: None,
        clock: Callable[[], int] = time.monotonic_ns,
        cpu_clock: Callable[[], int] = time.thread_time_ns,
    ) -> None:
        """`cuts` by model key, live; without an entry no document is cut.

        `on_replay` is called on the route's thread for every replay. `clock` is that of deadlines, too.
        """
        self.limits = limits or RouteLimits()
        self._cuts, self._on_replay = cuts, on_replay
        self._clocks = Clocks(clock, cpu_clock)
        self._tally = RouteTally()
        self._incarnation: Incarnation | None = None
        self._closed = False

    @property
    def ready(self) -> bool:
        """Whether an engine takes launches."""
        incarnation = self._incarnation
        return incarnation is not None and not incarnation.over and incarnation.link.ready

    @property
    def engine_cpu_ns(self) -> int:
        """CPU time of engines for replays, since the route was made."""
        return self._tally.engine_cpu_ns

    def serves(self, model_key: str) -> bool:
        """Whether the engine has the tokenizer, now."""
        incarnation = self._incarnation
        return incarnation is not None and incarnation.queue_of(model_key) is not None

    def load(self, model_key: str) -> GpuLoad:
        """The queue of a model, live until the engine is lost; one that is not ready when nothing serves it."""
        incarnation = self._incarnation
        if incarnation is None:
            return _NO_LOAD
        queue = incarnation.former.queues.get(model_key) or incarnation.queue_of(model_key)
        if queue is None:
            return _NO_LOAD
        load = queue.load
        load.ready = not incarnation.over and incarnation.link.ready
        return load

    def reserve(self, model_key: str, n_bytes: int) -> ReservedText | None:
        """Memory of a slot for a text that gets a replay of its own; None when none can be spared, and for short ones.

        A group of nothing but this text, or of its beginning, is replayed there, once. Never waits for the engine.
        """
        incarnation = self._incarnation
        queue = None if incarnation is None or not incarnation.link.ready else incarnation.queue_of(model_key)
        if incarnation is None or queue is None or n_bytes <= queue.load.alone_over_bytes:
            return None
        found = incarnation.reserve(queue, n_bytes)
        if found is None:
            return None
        slot, ending = found
        return ReservedText(slot.text[:n_bytes], Lease(self, incarnation.short.of(queue), slot, ending))

    def submit(self, group: Group) -> None:
        """Queue a group and launch what can be launched; never waits. One of its callbacks will be called, once."""
        group.submitted_ns = group.queued_ns = self._clocks.wall()
        if group.normal_form:
            self._tally.came_again(len(group.documents))
        incarnation = self._incarnation
        queue = None
        if incarnation is not None and incarnation.link.ready:
            queue = incarnation.former.queues.get(group.model_key) or incarnation.queue_of(group.model_key)
        if incarnation is not None:
            incarnation.short.disturb()
        if incarnation is None or queue is None:
            group.settled = True
            self._tally.fell_back(NOT_READY)
            answer(group.on_fallback, group, NOT_READY)
            return
        is_long = group.n_bytes > queue.load.alone_over_bytes
        if (lease := group.lease) is not None and not (is_long and lease.use(queue)):
            group.lease = None
        if group.n_bytes > queue.top.capacity:
            self._cut(queue, group)
        if group.n_left:
            incarnation.submit(queue, group)
        else:
            group.settled = True
            answer(group.on_done, group)

    def forget(self, model_key: str) -> None:
        """Launch nothing more of a model, whose slots will be taken away; what waits for it falls back."""
        incarnation = self._incarnation
        if incarnation is not None:
            incarnation.forget(model_key)
            incarnation.short.forget(model_key)
        self._tally.forget(model_key)

    def attach(self, link: EngineLink) -> None:
        """Serve through this link from now on; the one before it must have ended."""
        self._incarnation = Incarnation(link, self.limits, self._clocks, self._tally, self._on_replay)
        if self._closed:
            self._incarnation.end(NOT_READY)

    def turn(self, timeout_s: float) -> str:
        """One turn: wait, launch, hand out. Why the engine ended; empty while it serves.

        Turns are taken one after the other, by any thread. With a timeout of 0 whoever takes them has waited.
        """
        incarnation = self._incarnation
        if incarnation is None:
            return NOT_READY
        if not incarnation.over:
            try:
                incarnation.turn(timeout_s)
            except Exception as error:  # nobody else would answer what waits
                log.error("the GPU route failed", extra={"error": type(error).__name__, "where": where(error)})
                incarnation.end(ENGINE_LOST)
        return incarnation.over

    @property
    def is_filling(self) -> bool:
        """The next turn has something to do and will not wait."""
        incarnation = self._incarnation
        return incarnation is not None and not incarnation.over and incarnation.is_filling

    @property
    def is_full(self) -> bool:
        """A document that came now would wait for the end of a replay."""
        incarnation = self._incarnation
        return incarnation is not None and incarnation.former.is_full

    @property
    def short(self) -> ShortWays | None:
        """Short ways on the engine that serves."""
        incarnation = self._incarnation
        return None if incarnation is None else incarnation.short

    def serve(self, link: EngineLink) -> str:
        """Serve through this link until it is lost, on the calling thread; why it ended (`group.FALLBACK_REASONS`)."""
        self.attach(link)
        timeout_s = self.limits.silent_after_s / 4
        while not (reason := self.turn(timeout_s)):
            pass
        return reason

    def close(self) -> None:
        """Give up what is queued and in flight, and let `serve` return."""
        self._closed = True
        incarnation = self._incarnation
        if incarnation is not None:
            incarnation.end(NOT_READY)
            incarnation.link.interrupt()

    def settle(self) -> None:
        """Count what is only noted so far; `snapshot` does, too."""
        if (short := self.short) is not None:
            short.settle()

    def snapshot(self) -> RouteSnapshot:
        """What was counted since the route was made."""
        self.settle()
        incarnation = self._incarnation
        if incarnation is None or incarnation.over:
            return self._tally.snapshot(False, 0, 0, 0, 0)
        queues = tuple(incarnation.former.queues.values())
        return self._tally.snapshot(
            self.ready,
            incarnation.former.n_under_way + incarnation.short.n_under_way,
            sum(queue.n_waiting + len(queue.alone) + len(queue.filled) for queue in queues),
            sum(queue.load.waiting_bytes + queue.load.alone_waiting_bytes for queue in queues),
            sum(sum(queue.n_held) for queue in queues),
        )

    def _cut(self, queue: ModelQueue, group: Group) -> None:
        """Find the places to cut documents that fit no slot. Outside the lock: a search may take milliseconds."""
        cuts = self._cuts.get(group.model_key)
        for document, length in enumerate(group.lengths):
            if length <= queue.top.capacity:
                continue
            pieces = _pieces(cuts, group.documents[document], queue.top)
            if pieces is None:
                group.needs_cpu[document] = NO_CUT
                group.n_left -= 1
            else:
                group.cuts = group.cuts or {}
                group.cuts[document] = pieces
                group.n_left += len(pieces) - 1
        if group.needs_cpu:
            group.n_tokens = [0] * len(group.lengths)
            group.ids = [] if group.count_only else [None] * len(group.lengths)


def _pieces(cuts: Cuts | None, document: bytes | memoryview, top: SizeClass) -> tuple[Piece, ...] | None:
    """Where a document is cut; None when it cannot be."""
    if cuts is None:
        return None
    plan = Ladder([top]).plan([len(document)], lambda _document, low, high: cuts.last_before(document, low, high))
    return None if plan.uncut else tuple(piece for part in plan.parts for piece in part.pieces)
