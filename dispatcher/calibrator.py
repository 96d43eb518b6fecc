"""Times both routes once for each model that a GPU serves, as soon as one does, on a thread of its own."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from pathlib import Path

from dispatcher.calibration import (
    CalibrationCache,
    CalibrationKey,
    Probe,
    ProbeFailed,
    cpu_probe,
    gpu_probe,
    host_name,
    start_values,
)
from dispatcher.costs import CostKey, Costs
from dispatcher.engines import is_fault
from dispatcher.gpu.route import GpuRoute
from dispatcher.meter import ThreadClocks
from dispatcher.policy import CPU, GPU
from dispatcher.request import EncodeOptions
from dispatcher.tokenizer import Tokenizer
from gpu_core.tables import VERSION

log = logging.getLogger("sidetok.calibrator")

LOOK_S = 0.1
"""How often it looks for an engine that serves what was not timed yet, while there is something of that kind."""
_PLAIN = EncodeOptions(add_special_tokens=False)

Serving = Callable[[str], tuple[str, GpuRoute] | None]
"""Digest -> a device that serves it now, and its route."""


class Calibrator(threading.Thread):
    """Gives start values to the costs. A route that does not answer keeps the default ones."""

    def __init__(self, costs: Costs, cache_dir: Path | None, serving: Serving, clocks: ThreadClocks) -> None:
        super().__init__(name="sidetok-calibrator", daemon=True)
        self._costs, self._serving, self._clocks = costs, serving, clocks
        self._cache = CalibrationCache(cache_dir)
        self._waiting: dict[str, Tokenizer] = {}
        self._changed = threading.Event()
        self._closing = False

    def add(self, tokenizer: Tokenizer) -> None:
        """Time a tokenizer when a GPU serves it; from any thread."""
        self._waiting[tokenizer.spec.digest] = tokenizer
        self._changed.set()

    def remove(self, digest: str) -> None:
        """Do not wait for a GPU that serves it any more; from any thread."""
        self._waiting.pop(digest, None)

    def close(self) -> None:
        """End the thread after the probe at hand."""
        self._closing = True
        self._changed.set()

    def run(self) -> None:
        """Until it is closed."""
        with self._clocks.counting("calibration"):
            while not self._closing:
                self._changed.wait(LOOK_S if self._waiting else None)
                self._changed.clear()
                for digest, tokenizer in tuple(self._waiting.items()):
                    if not self._closing and (found := self._serving(digest)) is not None:
                        self._waiting.pop(digest, None)
                        self._time(tokenizer, *found)

    def _time(self, tokenizer: Tokenizer, device: str, route: GpuRoute) -> None:
        digest, host = tokenizer.spec.digest, host_name()
        cpu = CalibrationKey(host, "", digest, tokenizer.engine, tokenizer.engine_version)
        gpu = CalibrationKey(host, device, digest, GPU, str(VERSION))
        self._begin(CPU, cpu, cpu_probe(lambda text: tokenizer.encode([text], _PLAIN)))
        self._begin(GPU, gpu, gpu_probe(route, digest))

    def _begin(self, route: str, key: CalibrationKey, probe: Probe) -> None:
        try:
            values = start_values(probe, key, self._cache)
        except BaseException as error:  # native engines raise panics that are no `Exception`
            if not isinstance(error, ProbeFailed) and not is_fault(error):
                raise
            log.warning("a route was not timed", extra={"route": route, "error": type(error).__name__})
            return
        for kind, start in values.items():
            self._costs.begin(CostKey(route, key.digest, kind), start)
