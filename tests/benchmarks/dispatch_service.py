"""The service under test: a dispatcher with its CPU workers and its GPU engines, without an event loop or sockets."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Sequence
from functools import partial
from typing import Any

from dispatcher.costs import KINDS, CostKey
from dispatcher.dispatcher import Dispatcher
from dispatcher.errors import NoGpuRoute
from dispatcher.gpu.driver import RouteDriver
from dispatcher.gpu.engine_process import NAME
from dispatcher.gpu.group import EncodedGroup
from dispatcher.gpu.local_engine import MakeGpu
from dispatcher.gpu.options import PROCESS, GpuRouteOptions
from dispatcher.gpus import Gpus
from dispatcher.meter import ThreadClocks
from dispatcher.options import DispatcherOptions
from dispatcher.request import Route
from dispatcher.tokenizer import load_tokenizer
from gpu_core.errors import SidetokError
from tests.benchmarks.dispatch_cpu import descendants, name_of
from tests.benchmarks.dispatch_load import Record

POLICIES = ("adaptive", "gpu", "cpu")
START_LIMIT_S = 120.0
CALIBRATION_LIMIT_S = 8.0
LOOK_S = 0.02
HOST_ENGINES: dict[str, Any] = {"gpu_watchdog_s": 60.0}
"""Options of engines whose program was replaced: one without a GPU may be held up like any other process."""
SWEEP_S = 0.1
"""The event loop of the service does so, too."""


class DispatcherService:
    """One dispatcher; every policy is a target of it. The constructor returns when the GPUs serve, if there are any."""

    def __init__(
        self,
        tokenizer_json: bytes,
        *,
        gpus: str = "auto",
        n_gpus: int = 1,
        n_workers: int = 0,
        command: Sequence[str] = (),
        driven: bool = False,
        engine: str = PROCESS,
        make_gpu: MakeGpu | None = None,
    ) -> None:
        """`n_gpus` of those that `gpus` names are waited for. `command` and `make_gpu` replace what engines are.

        `driven`: the thread that offers the load drives the GPU routes, too. `engine` is `gpu_engine`.

        Costs are measured before the constructor returns, except those of engines whose program was replaced.
        """
        clocks = ThreadClocks()
        self.tokenizer = load_tokenizer(tokenizer_json, cache_dir=None)
        is_real = not command and make_gpu is None
        self.gpus = Gpus(
            GpuRouteOptions(gpus=gpus, gpu_engine=engine, **({} if is_real else HOST_ENGINES)),
            clocks,
            command=command,
            calibrate=is_real,
            driven=driven,
            make_gpu=make_gpu,
        )
        options = DispatcherOptions(cpu_workers=n_workers)
        self.dispatcher = Dispatcher(options, lambda deliver: None, gpus=self.gpus, clocks=clocks)
        self._stopped = threading.Event()
        self._sweeper = threading.Thread(target=self._sweep, name="sweeper", daemon=True)
        self._sweeper.start()
        self.gpus.start()
        self.gpus.add(self.tokenizer, tokenizer_json)
        if gpus != "none":
            self._await_gpus(n_gpus)
            if is_real:
                self._await_calibration()

    def target(self, policy: str, receives: bool = False) -> DispatcherTarget:
        """The service with a policy. `receives`: long documents are received in memory that is reserved for them."""
        driver = self.gpus.driver
        if receives:
            return ReservingTarget(self, policy) if driver is None else DrivenReservingTarget(self, policy, driver)
        return DispatcherTarget(self, policy) if driver is None else DrivenTarget(self, policy, driver)

    def rest(self, seconds: float) -> bool:
        """Wait so long at most, and take a turn if there is something to do; whether there was."""
        driver = self.gpus.driver
        if driver is None:
            time.sleep(seconds)
            return False
        return driver.rest(seconds)

    def engines(self) -> list[int]:
        """Process ids of the engines, up or not."""
        return [pid for pid in descendants(os.getpid()) if name_of(pid) == NAME.decode()]

    def n_ready(self) -> int:
        """Engines that take documents now."""
        return sum(load.ready for load in self.gpus.loads(self.tokenizer.spec.digest))

    def close(self) -> None:
        """End engines and workers."""
        self._stopped.set()
        self._sweeper.join()
        self.gpus.close()
        self.dispatcher.close()

    def _await_gpus(self, n_gpus: int) -> None:
        until_s = time.monotonic() + START_LIMIT_S
        while self.n_ready() < n_gpus:
            if time.monotonic() > until_s:
                why = self.gpus.why_not(self.tokenizer.spec.digest)
                self.close()
                raise RuntimeError(f"fewer than {n_gpus} GPUs serve the model: {why}")
            self.rest(LOOK_S)

    def _await_calibration(self) -> None:
        """A route that does not answer is not timed, so this ends without it, too."""
        until_s, digest = time.monotonic() + CALIBRATION_LIMIT_S, self.tokenizer.spec.digest
        wanted = {CostKey("gpu", digest, kind) for kind in KINDS}
        while not wanted <= self.gpus.costs.snapshot().keys() and time.monotonic() < until_s:
            self.rest(LOOK_S)

    def _sweep(self) -> None:
        while not self._stopped.wait(SWEEP_S):
            self.dispatcher.sweep()


class DispatcherTarget:
    """See `CountingTarget`: groups of documents through `Dispatcher.encode_group`, all on the route of a policy."""

    def __init__(self, service: DispatcherService, policy: str) -> None:
        self.name = policy
        self._service = service
        self._route: Route = _ROUTES[policy]
        self._by_route: dict[str, list[int]] = {"gpu": [], "cpu": []}
        """Documents of each answer: lists can be appended to by any thread."""

    def submit(self, first: int, documents: Sequence[bytes], record: Record) -> None:
        """See `Target`."""
        service = self._service
        on_done = partial(self._done, first, len(documents), record)
        try:
            service.dispatcher.encode_group(service.tokenizer, documents, on_done, route=self._route)
        except NoGpuRoute:
            record.refused(first, len(documents))

    def counters(self) -> dict[str, float]:
        """See `CountingTarget`. Documents by route as the answers say it, the rest as the GPU routes count it."""
        routes = self._service.gpus.snapshots()
        counters: dict[str, float] = {f"{route}_documents": sum(n) for route, n in self._by_route.items()}
        counters |= dict.fromkeys(_COUNTED, 0)
        for gpu, route in routes.items():
            replays = sum(row.times.n for row in route.replays.values())
            counters["replays"] += replays
            counters[f"replays_{gpu}"] = replays
            counters["replayed"] += sum(row.n_documents for row in route.replays.values())
            counters["replay_ns"] += sum(row.times.sum_s for row in route.replays.values()) * 1e9
            counters["stage_ns"] += route.stage_cpu_ns
            counters["deliver_ns"] += route.deliver_cpu_ns
            counters["engine_ns"] += route.engine_cpu_ns
            counters["views"] += route.n_views
            for reason, n in (*route.fallbacks.items(), *route.needs_cpu.items()):
                counters[reason] = counters.get(reason, 0) + n
        return counters

    def _done(
        self, first: int, n_documents: int, record: Record, result: EncodedGroup | None, error: SidetokError | None
    ) -> None:
        """On a thread of the dispatcher."""
        if result is None:
            record.faults.append(type(error).__name__)
            record.refused(first, n_documents)
            return
        for sample in record.sampled(first, n_documents):
            record.kept[sample] = bytes(result.ids[sample - first])
        record.answered(first, n_documents)
        self._by_route[result.route].append(n_documents)


class DrivenTarget(DispatcherTarget):
    """See `Driving`."""

    def __init__(self, service: DispatcherService, policy: str, driver: RouteDriver) -> None:
        super().__init__(service, policy)
        self._driver = driver

    def rest(self, seconds: float) -> int:
        """See `Driving.rest`."""
        driver = self._driver
        if driver.is_busy:
            driver.rest(seconds)
            return 0
        begin_ns = time.thread_time_ns()
        return 0 if driver.rest(seconds) else time.thread_time_ns() - begin_ns


class ReservingTarget(DispatcherTarget):
    """See `Receiving`."""

    def __init__(self, service: DispatcherService, policy: str) -> None:
        super().__init__(service, policy)
        self.name = f"{policy}, reserved"

    def receive(self, document: bytes) -> Any:
        """See `Receiving.receive`."""
        text = self._service.dispatcher.reserve(self._service.tokenizer, len(document))
        text.data[:] = document
        return text


class DrivenReservingTarget(DrivenTarget, ReservingTarget):
    """See `Driving` and `Receiving`."""

    def __init__(self, service: DispatcherService, policy: str, driver: RouteDriver) -> None:
        super().__init__(service, policy, driver)
        self.name = f"{policy}, reserved"


_COUNTED = ("replays", "replay_ns", "replayed", "stage_ns", "deliver_ns", "engine_ns", "views")
_ROUTES: dict[str, Route] = {"adaptive": "auto", "gpu": "gpu", "cpu": "cpu"}
