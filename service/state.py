"""What one serving process holds: options, models, dispatcher, meters. Made once, on the event loop."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from dispatcher.dispatcher import Dispatcher
from dispatcher.engines.memory import release_free_memory
from dispatcher.gpu.options import LOCAL, GpuRouteOptions
from dispatcher.gpus import Gpus
from dispatcher.meter import ThreadClocks
from dispatcher.options import DispatcherOptions
from dispatcher.policy import ADAPTIVE
from service.additions import Additions
from service.gate import Gate
from service.hot import HotPath
from service.meter import LoopLag, RequestMeter
from service.metrics import Metrics
from service.options import ServiceOptions
from service.registry import Registry

if TYPE_CHECKING:
    from service.frontends.frontend import Frontend

log = logging.getLogger("sidetok.service")

T = TypeVar("T")

TICK_S = 0.05
"""Period of deadline checks and of the lag meter."""
IDLE_TICKS = 20
"""Ticks without a request in flight after which the memory that huge jobs freed goes back to the system."""


class Service:
    """The state behind the app."""

    def __init__(
        self,
        options: ServiceOptions,
        work: DispatcherOptions,
        registry: Registry,
        gpu: GpuRouteOptions | None = None,
        engine_command: Sequence[str] = (),
        frontend: Frontend | None = None,
    ) -> None:
        """Without `gpu` there is no GPU route; `engine_command` replaces the program of its engines.

        `frontend`: the place of this process among several that are one service.
        """
        self.options = options
        self.registry = registry
        self.frontend = frontend
        self.started_s = time.time() if frontend is None else frontend.setup.started_s
        self.draining = False
        self.meter = RequestMeter()
        self.lag = LoopLag()
        self._loop = asyncio.get_running_loop()
        clocks = registry.clocks = ThreadClocks()
        self.gpus: Gpus | None = None
        if gpu is not None and gpu.gpu_numbers() != ():
            self.gpus = Gpus(
                gpu,
                clocks,
                Path(work.cache_dir) if work.cache_dir else None,
                engine_command,
                calibrate=not engine_command and work.policy == ADAPTIVE,
                # Replays on a GPU of this process end without waking the loop.
                driven=gpu.gpu_engine != LOCAL,
            )
            registry.gpus = self.gpus
        self.dispatcher = Dispatcher(work, self._loop.call_soon_threadsafe, self._loop.call_soon, self.gpus, clocks)
        self.dispatcher.clocks.register("event_loop")
        self.gate = Gate(self.dispatcher, self.meter, options, work, registry)
        self.hot = HotPath(self.gate)
        self.metrics = Metrics(self)
        self.additions = Additions(registry, clocks)
        self._background = ThreadPoolExecutor(1, "sidetok-background", self._register_background)
        self._tick_due_s = 0.0
        self._ticker: asyncio.TimerHandle | None = None
        self._n_idle_ticks = 0
        self._n_huge_seen = 0

    @property
    def ready(self) -> bool:
        """Whether the service wants traffic: every model ended its load, one serves at least, and nothing drains.

        GPUs come and go without a word here: the CPU route can serve all that they do.
        """
        return self.status == "ready"

    @property
    def status(self) -> str:
        """`ready`, or why not: `loading`, `draining`, or `failed`; of all frontends that accept connections."""
        if self.draining:
            return "draining"
        if self.registry.ready:
            return "ready" if self.frontend is None else self.frontend.state
        return "loading" if any(model.state == "loading" for model in self.registry.models()) else "failed"

    def start(self) -> asyncio.Future[None]:
        """Start the ticker and the load of the models; the future ends when every model is ready or failed."""
        if self.gpus is not None:
            self.gpus.start()
            if self.gpus.driver is not None:
                self._loop.add_reader(self.gpus.driver, self.gpus.driver.turn)
        self._tick_due_s = self._loop.time() + TICK_S
        self._ticker = self._loop.call_at(self._tick_due_s, self._tick)
        loaded: asyncio.Future[None] = self._loop.create_future()
        loaded.add_done_callback(lambda _: self._release_memory())
        # A daemon thread: a load that takes minutes must not hold up the exit.
        threading.Thread(target=self._load, args=(loaded,), name="sidetok-load", daemon=True).start()
        return loaded

    async def exposition(self) -> bytes:
        """The metrics of the service, of all its frontends. Raises `TimeoutError`."""
        if self.frontend is not None:
            return await self.frontend.exposition()
        return await self.in_background(self.metrics.render)

    def in_background(self, function: Callable[..., T], *args: Any) -> asyncio.Future[T]:
        """Run something short that is not a request (a scrape) off the event loop."""
        return self._loop.run_in_executor(self._background, function, *args)

    def drain(self) -> None:
        """Stop wanting traffic: /ready says so, and answers close their connections."""
        if not self.draining:
            log.info("draining", extra={"in_flight": self.dispatcher.n_in_flight})
        self.draining = self.gate.closing = True

    def close(self) -> None:
        """Stop the threads; what is queued is finished first."""
        if self._ticker is not None:
            self._ticker.cancel()
        # What GPUs leave behind goes to the workers, so these end last.
        if self.gpus is not None:
            if self.gpus.driver is not None:
                self._loop.remove_reader(self.gpus.driver)
            self.gpus.close()
        self.dispatcher.close()
        self.registry.close()
        self._background.shutdown(wait=False, cancel_futures=True)

    def _tick(self) -> None:
        now_s = self._loop.time()
        self.lag.observe(now_s - self._tick_due_s)
        # First of all the next tick: it comes even if something below breaks.
        self._tick_due_s = now_s + TICK_S
        self._ticker = self._loop.call_at(self._tick_due_s, self._tick)
        if self.gpus is not None and self.gpus.driver is not None:
            self.gpus.driver.turn()
        self.dispatcher.sweep()
        self.gate.sweep()
        self.hot.tick()
        self._watch_memory()

    def _watch_memory(self) -> None:
        self._n_idle_ticks = 0 if self.dispatcher.n_in_flight else self._n_idle_ticks + 1
        if self._n_idle_ticks >= IDLE_TICKS and self._n_huge_seen != self.dispatcher.n_huge_finished:
            self._n_huge_seen = self.dispatcher.n_huge_finished
            self._release_memory()

    def _release_memory(self) -> None:
        # After the end of the service there is no thread for it.
        with contextlib.suppress(RuntimeError):
            self.in_background(release_free_memory)

    def _load(self, loaded: asyncio.Future[None]) -> None:
        self.registry.load_all(lambda: self.dispatcher.clocks.counting("load"))
        # The loop may have ended before the load.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(lambda: None if loaded.done() else loaded.set_result(None))

    def _register_background(self) -> None:
        self.dispatcher.clocks.register("background", threading.current_thread())
