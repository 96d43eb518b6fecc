"""The engine of `gpu_engine=local`: one GPU, used by this process itself, in place of the supervisor.

    starting ─ the device is up ─► ready ─ the device fails, a replay hangs ─► down for good

A launch costs a tenth of what it costs through a process, and so does its answer. But a process whose device failed
cannot use it again, so there is no second start.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path
from queue import SimpleQueue

from dispatcher.gpu.local_link import LocalLink
from dispatcher.gpu.options import GpuRouteOptions
from dispatcher.gpu.process_link import DeviceFacts
from dispatcher.gpu.supervisor import EngineStatus, no_engines
from dispatcher.gpu.table_builder import read_tables
from dispatcher.gpu.wanted import WantedTokenizers
from gpu_core.errors import DeviceFault, DeviceUnavailable
from gpu_core.execution import Gpu
from gpu_core.options import GpuOptions
from gpu_core.tables import Tables

log = logging.getLogger("sidetok.gpu")

MakeGpu = Callable[[GpuOptions], Gpu]


class LocalEngine:
    """See `dispatcher.gpu.supervisor.Supervisor`. Every method may be called from any thread."""

    def __init__(
        self,
        options: GpuRouteOptions,
        *,
        on_ready: Callable[[int, LocalLink], None],
        on_lost: Callable[[int, LocalLink, str], None],
        on_withdrawn: Callable[[int, str], object] = lambda gpu, key: None,
        on_tables: Callable[[str, Tables], object] = lambda key, tables: None,
        cache_dir: Path | None = None,
        make_gpu: MakeGpu | None = None,
    ) -> None:
        """Callbacks as those of the supervisor; `on_lost` comes on the thread that notices. `make_gpu` is for tests."""
        self._gpu = (options.gpu_numbers() or (0,))[0]
        self._options = options.encoder_options(self._gpu)
        self._on_ready, self._on_lost, self._on_withdrawn = on_ready, on_lost, on_withdrawn
        self._on_tables = on_tables
        self._make_gpu = make_gpu or _cuda_gpu
        self._link: LocalLink | None = None
        self._facts: DeviceFacts | None = None
        self._state, self._why = "starting", ""
        self._loaded: set[str] = set()
        self._orders: SimpleQueue[tuple[str, int] | None] = SimpleQueue()
        """(key, descriptor of its tables) to add, (key, -1) to remove, None to end."""
        self._wanted = WantedTokenizers(cache_dir, lambda key, fd: self._orders.put((key, fd)))
        self._thread = threading.Thread(target=self._run, name="sidetok-gpus", daemon=True)
        self._is_closed = False
        self.reason = no_engines(options)
        """Why there is no engine at all; empty when there is one."""

    @property
    def thread(self) -> threading.Thread:
        """The thread that loads tokenizers, for whoever counts CPU time."""
        return self._thread

    def start(self) -> None:
        """Bring the device up, on a thread that loads tokenizers then."""
        self._thread.start()

    def add(self, key: str, data: bytes) -> None:
        """Serve a tokenizer.json; `key` is its digest. Takes a second or more, elsewhere."""
        if not self.reason:
            self._wanted.add(key, data)

    def remove(self, key: str) -> None:
        """Serve it no more."""
        self._wanted.remove(key)

    def unserved(self, key: str) -> str:
        """Why a tokenizer that was added is not served; empty if it is or may be soon."""
        return self.reason or self._wanted.why_not(key)

    def statuses(self) -> tuple[EngineStatus, ...]:
        """Of the one engine. Its CPU time is that of this process, and not told apart."""
        link = self._link
        if self.reason:
            return ()
        if link is not None and link.lost_reason:
            return (EngineStatus(self._gpu, "down", link.lost_reason, 0, None, 0),)
        return (EngineStatus(self._gpu, self._state, self._why, 0, self._facts, 0),)

    def close(self) -> None:
        """End the thread and the link. May be called again."""
        self._is_closed = True
        self._wanted.close()
        self._orders.put(None)
        if self._thread.is_alive():
            self._thread.join()
        if self._link is not None:
            self._link.close()

    def _run(self) -> None:
        begin_s = time.monotonic()
        gpu = None if self.reason else self._start(begin_s)
        while (order := self._orders.get()) is not None:
            key, fd = order
            try:
                if fd < 0:
                    self._unload(key)
                elif gpu is not None and self._is_wanted(key):
                    self._load(gpu, key, fd)
            finally:
                if fd >= 0:
                    os.close(fd)

    def _is_wanted(self, key: str) -> bool:
        link = self._link
        if self._is_closed or link is None or link.lost_reason:
            return False
        return key in self._wanted and key not in self._loaded

    def _start(self, begin_s: float) -> Gpu | None:
        try:
            gpu = self._make_gpu(self._options)
            free_bytes, total_bytes = gpu.memory_bytes()
        except Exception as error:  # whatever the driver says, the CPU route serves
            self._state, self._why = "down", str(error) or type(error).__name__
            log.warning("GPU %d is down: %s; it stays down", self._gpu, self._why, extra={"gpu": self._gpu})
            return None
        self._facts = DeviceFacts(gpu.name, gpu.n_gpus, total_bytes, free_bytes, 0, time.monotonic() - begin_s)
        self._link = link = LocalLink(gpu, self._options, self._note_loss)
        self._state = "ready"
        log.info("GPU %d is ready in this process: %s", self._gpu, gpu.name, extra={"gpu": self._gpu})
        self._on_ready(self._gpu, link)
        return gpu

    def _load(self, gpu: Gpu, key: str, fd: int) -> None:
        link, facts = self._link, self._facts
        assert link is not None
        assert facts is not None
        try:
            tables = read_tables(fd)
            self._on_tables(key, tables)
            n_slots, n_wanted = link.load(key, tables)
        except DeviceFault as error:
            link.kill(str(error))
            return
        except DeviceUnavailable as error:
            self._wanted.refuse(key, str(error))
            return
        except Exception as error:  # one tokenizer must not keep the others from the device
            self._wanted.refuse(key, f"{type(error).__name__} while it was loaded")
            return
        self._loaded.add(key)
        if n_slots < n_wanted:
            text = "GPU %d has memory for %d of %d execution contexts of a tokenizer"
            log.warning(text, self._gpu, n_slots, n_wanted, extra={"gpu": self._gpu})
        self._facts = DeviceFacts(
            facts.name, facts.n_gpus, facts.total_bytes, gpu.memory_bytes()[0], link.n_captures, facts.start_s
        )

    def _unload(self, key: str) -> None:
        if key in self._loaded and self._link is not None:
            self._loaded.remove(key)
            self._link.withdraw(key)
            self._on_withdrawn(self._gpu, key)
            self._link.unload(key)

    def _note_loss(self, reason: str) -> None:
        if self._link is not None and not self._is_closed:
            log.error("GPU %d is down: %s; it stays down", self._gpu, reason, extra={"gpu": self._gpu})
            self._on_lost(self._gpu, self._link, reason)


def _cuda_gpu(options: GpuOptions) -> Gpu:
    # CuPy takes a second to import, and a host device needs none of it.
    from gpu_core.device import CudaGpu

    return CudaGpu(options.device)
