"""All GPUs of the service: their engines, a route for each, what they serve, and what they cost.

    supervisor ─ an engine is up ─► thread of its GPU ─ serves it until it is lost ─► waits for the next one

One engine more or less is only more or less capacity: whoever asks gets the queues of all of them, ready or not.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from queue import SimpleQueue

from dispatcher.calibrator import Calibrator
from dispatcher.costs import Costs
from dispatcher.gpu.batch import RouteLimits
from dispatcher.gpu.driver import RouteDriver, end_engine
from dispatcher.gpu.local_engine import LocalEngine, MakeGpu
from dispatcher.gpu.local_link import LocalLink
from dispatcher.gpu.options import LOCAL, GpuRouteOptions
from dispatcher.gpu.process_link import ProcessLink
from dispatcher.gpu.replay import Replay
from dispatcher.gpu.reserved_text import ReservedText
from dispatcher.gpu.route import GpuRoute
from dispatcher.gpu.route_tally import RouteSnapshot
from dispatcher.gpu.supervisor import EngineStatus, Supervisor
from dispatcher.meter import ThreadClocks
from dispatcher.policy import GpuLoad
from dispatcher.tokenizer import Tokenizer
from gpu_core.bridge_cut import cuts_of
from gpu_core.errors import UnsupportedTokenizer
from gpu_core.normal_form import Rewriter
from gpu_core.safe_cut import Cuts
from gpu_core.spec import TokenizerSpec
from gpu_core.tables import Tables, check_support

log = logging.getLogger("sidetok.gpus")

STARTING = "starting"
DELIVER = "gpu_deliver"
"""The part of CPU time that the threads of routes use."""
SILENT_AFTER_WATCHDOG_S = 1.0
"""The watchdog of the supervisor comes first: it also ends the process."""

LOCAL_LIMITS = RouteLimits(beside_documents=8, beside_bytes=1 << 16, beside_gap_ns=40_000)
"""One thread launches and hands out: a replay beside another one costs it more than the wait, unless it is idle."""


class Gpus:
    """The GPU route. Every method may be called from any thread."""

    def __init__(
        self,
        options: GpuRouteOptions,
        clocks: ThreadClocks,
        cache_dir: Path | None = None,
        command: Sequence[str] = (),
        calibrate: bool = True,
        driven: bool = False,
        make_gpu: MakeGpu | None = None,
    ) -> None:
        """`cache_dir` keeps tables and calibrations. `command` and `make_gpu` replace the program of the engines.

        Without `calibrate` costs begin at their defaults. Nothing runs before `start`. `driven`: the caller takes the
        turns of `driver` instead of a thread for each GPU.
        """
        self.driver = RouteDriver() if driven else None
        self.costs = Costs()
        self._clocks = clocks
        beside = LOCAL_LIMITS if options.gpu_engine == LOCAL else RouteLimits()
        self._limits = replace(beside, silent_after_s=options.gpu_watchdog_s + SILENT_AFTER_WATCHDOG_S)
        self._cuts: dict[str, Cuts] = {}
        self._specs: dict[str, TokenizerSpec] = {}
        self._rewriters: dict[str, Rewriter] = {}
        self._lock = threading.Lock()
        self._n_users: dict[str, int] = {}
        """How many models have a tokenizer, which are served or could not be."""
        self._unsupported: dict[str, str] = {}
        self._calibrator = Calibrator(self.costs, cache_dir, self._serving, clocks) if calibrate else None
        self._threads: dict[int, _GpuThread] = {}
        self._by_gpu: dict[int, GpuRoute] = {}
        self._routes: tuple[GpuRoute, ...] = ()
        self.any = False
        """Whether some engine was ever up."""
        self._supervisor: Supervisor | LocalEngine
        if options.gpu_engine == LOCAL:
            self._supervisor = LocalEngine(
                options,
                on_ready=self._serve,
                on_lost=self._note_loss,
                on_withdrawn=self._forget,
                on_tables=self._find_cuts,
                cache_dir=cache_dir,
                make_gpu=make_gpu,
            )
        else:
            self._supervisor = Supervisor(
                options,
                on_ready=self._serve,
                on_lost=self._note_loss,
                on_withdrawn=self._forget,
                on_tables=self._find_cuts,
                cache_dir=cache_dir,
                command=command,
            )

    def start(self) -> None:
        """Start the engines."""
        self._supervisor.start()
        self._clocks.register("gpu_supervisor", self._supervisor.thread)
        if self._supervisor.reason:
            log.info("no GPU route", extra={"reason": self._supervisor.reason})
        elif self._calibrator is not None:
            self._calibrator.start()

    def add(self, tokenizer: Tokenizer, data: bytes) -> None:
        """Serve a tokenizer, loaded from `data`, on all GPUs, if it can be; it may be that of several models.

        The first one with a normalizer takes seconds, for which nobody else waits.
        """
        spec, unsupported, rewriter = tokenizer.spec, "", None
        try:
            check_support(spec)
        except UnsupportedTokenizer as error:
            unsupported = str(error)
        else:
            rewriter = Rewriter(spec, tokenizer.normalize) if spec.normalizers == ("NFC",) else None
        with self._lock:
            n_users = self._n_users[spec.digest] = self._n_users.get(spec.digest, 0) + 1
            if n_users > 1:
                return
            if unsupported:
                self._unsupported[spec.digest] = unsupported
            else:
                self._add(tokenizer, data, rewriter)

    def remove(self, tokenizer: Tokenizer) -> None:
        """One model less has it; without any, its memory is given back. What is under way is still answered."""
        key = tokenizer.spec.digest
        with self._lock:
            n_users = self._n_users.pop(key, 0) - 1
            if n_users > 0:
                self._n_users[key] = n_users
            elif n_users == 0:
                self._forget_model(key)

    def _forget_model(self, key: str) -> None:
        if self._unsupported.pop(key, None) is None:
            if self._calibrator is not None:
                self._calibrator.remove(key)
            self._supervisor.remove(key)
            self._specs.pop(key, None)
            self._cuts.pop(key, None)
            self._rewriters.pop(key, None)
        self.costs.forget(key)

    def _add(self, tokenizer: Tokenizer, data: bytes, rewriter: Rewriter | None) -> None:
        spec = tokenizer.spec
        self._specs[spec.digest] = spec
        if rewriter is not None:
            self._rewriters[spec.digest] = rewriter
        self._supervisor.add(spec.digest, data)
        if self._calibrator is not None:
            self._calibrator.add(tokenizer)

    @property
    def engine_cpu_ns(self) -> int:
        """CPU time of the engine processes, for replays."""
        return sum([route.engine_cpu_ns for route in self._routes])

    def loads(self, key: str) -> list[GpuLoad]:
        """The queue of each GPU for a model, ready or not. The order never changes."""
        routes = self._routes
        return [routes[0].load(key)] if len(routes) == 1 else [route.load(key) for route in routes]

    def route(self, index: int) -> GpuRoute:
        """The route of an entry of `loads`."""
        return self._routes[index]

    def reserve(self, key: str, n_bytes: int) -> ReservedText | None:
        """Memory that a GPU reads, for a long text of a model (see `GpuRoute.reserve`); of the GPU with least to do."""
        ready = [(route.load(key), route) for route in self._routes]
        ready = [(load, route) for load, route in ready if load.ready]
        ready.sort(key=lambda item: item[0].alone_waiting_bytes + item[0].alone_launched_bytes)
        for _load, route in ready:
            if (text := route.reserve(key, n_bytes)) is not None:
                return text
        return None

    def settle(self) -> None:
        """See `dispatcher.gpu_set`."""
        for route in self._routes:
            route.settle()

    def serves(self, key: str) -> bool:
        """Whether some engine would take a document of this model now."""
        return any(route.load(key).ready for route in self._routes)

    def why_not(self, key: str) -> str:
        """Why no engine serves a model now; empty if one does."""
        if self.serves(key):
            return ""
        if reason := self._supervisor.reason or self._unsupported.get(key) or self._supervisor.unserved(key):
            return reason
        for status in self._supervisor.statuses():
            if status.state == "down" and status.reason:
                return f"GPU {status.gpu} is down: {status.reason}"
        return STARTING

    def rewriter(self, key: str) -> Rewriter | None:
        """What rewrites documents of a model that are not in normal form; None when nothing does."""
        return self._rewriters.get(key)

    def statuses(self) -> tuple[EngineStatus, ...]:
        """Of every engine, by GPU."""
        return self._supervisor.statuses()

    def snapshots(self) -> dict[int, RouteSnapshot]:
        """What each route counted, by GPU."""
        return {gpu: route.snapshot() for gpu, route in sorted(self._by_gpu.copy().items())}

    def close(self) -> None:
        """End the engines. What is still queued or in flight falls back, to whoever still takes it."""
        if self._calibrator is not None:
            self._calibrator.close()
        for thread in self._threads.copy().values():
            thread.end()
        if self.driver is not None:
            self.driver.close()
        self._supervisor.close()
        for thread in self._threads.copy().values():
            thread.join()

    def _serving(self, key: str) -> tuple[str, GpuRoute] | None:
        """A device that serves a model now."""
        for gpu, route in self._by_gpu.copy().items():
            if route.load(key).ready:
                facts = next((status.facts for status in self.statuses() if status.gpu == gpu), None)
                return (facts.name if facts else "", route)
        return None

    def _serve(self, gpu: int, link: ProcessLink | LocalLink) -> None:
        """On the supervisor's thread: an engine is up."""
        route = self._by_gpu.get(gpu)
        if route is None:
            route = GpuRoute(self._cuts, self._limits, self._observe)
            if self.driver is not None:
                self.driver.add(route)
            else:
                self._threads[gpu] = _GpuThread(gpu, route, self._clocks)
                self._threads[gpu].start()
            self._by_gpu[gpu] = route
            self._routes = (*self._routes, route)
            self.any = True
        if self.driver is not None:
            self.driver.serve(route, link)
        else:
            self._threads[gpu].links.put(link)

    def _find_cuts(self, key: str, tables: Tables) -> None:
        """On the supervisor's thread, before any engine serves a tokenizer: its tables are there."""
        with contextlib.suppress(UnsupportedTokenizer):
            # Without cuts, a document beyond the largest size class takes the CPU route.
            cuts = None if (spec := self._specs.get(key)) is None else cuts_of(spec, tables)
            with self._lock:
                if cuts is not None and key in self._specs:
                    self._cuts[key] = cuts

    def _forget(self, gpu: int, key: str) -> None:
        """On the supervisor's thread: a tokenizer was withdrawn."""
        if (route := self._by_gpu.get(gpu)) is not None:
            route.forget(key)

    def _note_loss(self, gpu: int, link: ProcessLink | LocalLink, reason: str) -> None:
        """On the supervisor's thread: its link tells a thread that waits by itself."""
        if self.driver is not None:
            self.driver.wake()
        log.warning("documents of a lost GPU engine take the CPU route", extra={"gpu": gpu, "reason": reason})

    def _observe(self, replay: Replay) -> int:
        """On the thread of a route; until when it need not tell more like this."""
        return self.costs.observe_gpu_route(
            replay.model_key,
            replay.kind,
            replay.n_bytes,
            replay.n_documents,
            replay.took_ns,
            replay.cpu_ns,
            time.monotonic_ns(),
            replay.n_unanswered,
            replay.replay_ns,
        )


class _GpuThread(threading.Thread):
    """The thread of one GPU's route."""

    def __init__(self, gpu: int, route: GpuRoute, clocks: ThreadClocks) -> None:
        super().__init__(name=f"sidetok-gpu-{gpu}", daemon=True)
        self.route = route
        self.links: SimpleQueue[ProcessLink | LocalLink | None] = SimpleQueue()
        self._clocks = clocks

    def run(self) -> None:
        """Serve one link after the other."""
        self._clocks.register(DELIVER)
        while (link := self.links.get()) is not None:
            end_engine(link, self.route.serve(link))

    def end(self) -> None:
        """Let the thread end."""
        self.route.close()
        self.links.put(None)
