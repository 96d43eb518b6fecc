"""A dispatcher with GPUs whose engines are scripted, in real time, each served by a thread of its own."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dispatcher.costs import Costs
from dispatcher.gpu.batch import RouteLimits
from dispatcher.gpu.fake_link import FakeEngine, make_slots
from dispatcher.gpu.reserved_text import ReservedText
from dispatcher.gpu.route import GpuRoute
from dispatcher.policy import GpuLoad
from gpu_core.normal_form import Rewriter
from gpu_core.spec import read_spec
from tests.fakes import LIMIT_S, TINY_TOKENIZER
from tests.rig import Rig

KEY = read_spec(TINY_TOKENIZER).digest
GPU_OFFSET = 1 << 20
"""Added to every id that the scripted GPU gives, where a test wants to know who answered."""


def code_points(document: bytes) -> NDArray[np.uint32]:
    """What `FakeTokenizer` makes of a document."""
    return np.array([ord(c) for c in document.decode()], np.uint32)


class FakeGpus:
    """See `dispatcher.gpu_set.GpuSet`."""

    def __init__(self, n_gpus: int = 1, limits: RouteLimits | None = None) -> None:
        self.costs = Costs()
        self.routes = [GpuRoute({}, limits) for _ in range(n_gpus)]
        self.engines: list[FakeEngine | None] = [None] * n_gpus
        self.rewriters: dict[str, Rewriter] = {}
        self._threads: dict[int, threading.Thread] = {}

    @property
    def any(self) -> bool:
        """Whether there is a GPU."""
        return bool(self.routes)

    @property
    def engine_cpu_ns(self) -> int:
        """See `GpuSet`."""
        return sum(route.engine_cpu_ns for route in self.routes)

    def loads(self, key: str) -> list[GpuLoad]:
        """See `GpuSet`."""
        return [route.load(key) for route in self.routes]

    def route(self, index: int) -> GpuRoute:
        """See `GpuSet`."""
        return self.routes[index]

    def reserve(self, key: str, n_bytes: int) -> ReservedText | None:
        """See `GpuSet`."""
        texts = [route.reserve(key, n_bytes) for route in self.routes if route.load(key).ready]
        return texts[0] if texts else None

    def settle(self) -> None:
        """See `GpuSet`."""
        for route in self.routes:
            route.settle()

    def why_not(self, key: str) -> str:
        """See `GpuSet`."""
        return "" if any(load.ready for load in self.loads(key)) else "scripted"

    def rewriter(self, key: str) -> Rewriter | None:
        """See `GpuSet`."""
        return self.rewriters.get(key)

    def start(
        self,
        gpu: int = 0,
        encode: Callable[[bytes], NDArray[np.uint32]] = code_points,
        threaded: bool = True,
        **more: Any,
    ) -> FakeEngine:
        """An engine comes up; the one before it was lost. Without a thread the test takes the turns of its route."""
        self._join(gpu)
        engine = FakeEngine(None, {KEY: make_slots(KEY)}, encode=encode, **more)
        route = self.routes[gpu]
        route.attach(engine)
        self.engines[gpu] = engine
        if not threaded:
            return engine
        thread = self._threads[gpu] = threading.Thread(target=_serve, args=(route,), daemon=True)
        thread.start()
        return engine

    def is_down(self, gpu: int = 0) -> bool:
        """Whether no engine is served; the next one may come."""
        return gpu not in self._threads or not self._threads[gpu].is_alive()

    def close(self) -> None:
        """End all engines."""
        for route in self.routes:
            route.close()
        for gpu in self._threads:
            self._join(gpu)

    def _join(self, gpu: int) -> None:
        """Only one thread at a time takes turns on a route."""
        if gpu in self._threads:
            self._threads[gpu].join(LIMIT_S)
        assert self.is_down(gpu)


def _serve(route: GpuRoute) -> None:
    while not route.turn(0.05):
        pass


class GpuRig(Rig):
    """A dispatcher on both routes, and a loop that the test turns."""

    def __init__(self, n_workers: int = 2, n_gpus: int = 1, limits: RouteLimits | None = None, **options: Any) -> None:
        self.gpus = FakeGpus(n_gpus, limits)
        super().__init__(n_workers, gpus=self.gpus, **{"policy": "gpu", **options})

    def close(self) -> None:
        """Open every gate and stop."""
        super().close()
        self.gpus.close()
