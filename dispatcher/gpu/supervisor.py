"""Starts the engine processes, watches them, and starts those again that end. One thread for any number of GPUs.

    starting ─ the device is up ─► ready ─ ends, fails, answers nothing in time ─► down ─ after a while ─► starting
       ╰──────── ends, or is not up in time ────────────────────────────────────────►╯
                 there is no such GPU, no driver, no CuPy ───────────────────────► down for good

Tokenizers are added and removed at any time; every engine that is up gets them, also after a restart. Only an engine
that was never ready can be down for good: what once worked is tried again, ever more rarely.
"""

from __future__ import annotations

import contextlib
import logging
import os
import random
import select
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from dispatcher.failures import where
from dispatcher.gpu.link import EngineLost
from dispatcher.gpu.messages import Fault, Hello, Loaded, Refused, Report
from dispatcher.gpu.options import GpuRouteOptions
from dispatcher.gpu.process_link import ENDED, DeviceFacts, ProcessLink
from dispatcher.gpu.restarts import Restarts
from dispatcher.gpu.table_builder import read_tables
from dispatcher.gpu.wanted import WantedTokenizers
from gpu_core.tables import Tables

log = logging.getLogger("sidetok.gpu")

START_LIMIT_S = 120.0
"""An engine that takes longer until its device is up is killed."""
SILENT_S = 20.0
"""An engine that starts or loads a tokenizer and says nothing for so long hangs. Twice as long after each time that
this was the end of it: perhaps the host is slow."""
NO_DRIVER = "no NVIDIA driver on this host"
_DRIVER = (Path("/proc/driver/nvidia/version"), Path("/dev/nvidiactl"), Path("/dev/dxg"))


@dataclass(frozen=True, slots=True)
class EngineStatus:
    """What is known of the engine of one GPU."""

    gpu: int
    state: str
    """starting, ready or down."""
    reason: str
    """Why it is down, or was the last time; empty if it never was."""
    n_restarts: int
    facts: DeviceFacts | None
    """Of the process that runs now, once its device is up."""
    cpu_ns: int
    """CPU time of all its processes so far."""


class Supervisor:
    """The engines of this service. Every method may be called from any thread."""

    def __init__(
        self,
        options: GpuRouteOptions,
        *,
        on_ready: Callable[[int, ProcessLink], None],
        on_lost: Callable[[int, ProcessLink, str], None],
        on_withdrawn: Callable[[int, str], object] = lambda gpu, key: None,
        on_tables: Callable[[str, Tables], object] = lambda key, tables: None,
        cache_dir: Path | None = None,
        command: Sequence[str] = (),
        uniform: Callable[[], float] = random.random,
    ) -> None:
        """`on_ready` and `on_lost` get the index of the GPU, and are called on the supervisor's thread.

        `on_ready`: a device is up; tokenizers appear in `ProcessLink.slots` as they are loaded. `on_lost`: a link that
        was ready is lost, for the reason given; a new one follows. `on_withdrawn`: the slots of a tokenizer are not
        shown any more, and must not be launched after the call. `on_tables`: those of a tokenizer that was added are
        built; they stay where they are while somebody refers to them. `cache_dir` keeps tables. `command` replaces the
        engine's program, `uniform` what delays are drawn with. Nothing runs before `start`.
        """
        self._options, self._command = options, command
        self._on_ready, self._on_lost, self._on_withdrawn = on_ready, on_lost, on_withdrawn
        self._on_tables = on_tables
        self._uniform = uniform
        self._engines: dict[int, _Engine] = {}
        self._tables: dict[str, int] = {}
        """Descriptors of the tables of the tokenizers that every engine gets."""
        self._orders: deque[tuple[str, int]] = deque()
        """(key, descriptor of its tables) to add, (key, -1) to remove."""
        self._wake_fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._wanted = WantedTokenizers(cache_dir, self._order)
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="sidetok-gpus", daemon=True)
        self.reason = no_engines(options)
        """Why there are no engines at all; empty when there are some."""

    @property
    def thread(self) -> threading.Thread:
        """The thread that watches, for whoever counts CPU time."""
        return self._thread

    def start(self) -> None:
        """Start the engines, and the thread that watches them."""
        if not self.reason:
            # Of all GPUs the first comes alone: its engine knows how many there are.
            for gpu in self._options.gpu_numbers() or (0,):
                self._add_engine(gpu)
        self._thread.start()

    def add(self, key: str, data: bytes) -> None:
        """Let every engine serve a tokenizer.json; `key` is its digest. Takes a second or more, elsewhere."""
        if not self.reason:
            self._wanted.add(key, data)

    def remove(self, key: str) -> None:
        """Let no engine serve it any more."""
        self._wanted.remove(key)

    def unserved(self, key: str) -> str:
        """Why no engine serves a tokenizer that was added; empty if one does or may soon."""
        links = [engine.link for engine in self._engines.copy().values() if engine.link is not None]
        refusals = [link.refused.get(key, "") for link in links]
        return self.reason or self._wanted.why_not(key) or (refusals[0] if refusals and all(refusals) else "")

    def statuses(self) -> tuple[EngineStatus, ...]:
        """Of every engine, by GPU."""
        return tuple(engine.status() for _gpu, engine in sorted(self._engines.copy().items()))

    def close(self) -> None:
        """End all engines and the thread. May be called again."""
        self._wanted.close()
        self._closing = True
        self._wake()
        if self._thread.is_alive():
            self._thread.join()
        elif self._wake_fd >= 0:
            self._end()

    def _add_engine(self, gpu: int) -> None:
        restarts = Restarts(self._options.gpu_restart_min_s, self._options.gpu_restart_max_s, self._uniform)
        self._engines[gpu] = _Engine(gpu, restarts)

    def _order(self, key: str, fd: int) -> None:
        self._orders.append((key, fd))
        self._wake()

    def _wake(self) -> None:
        # There is none any more once the supervisor has ended.
        with contextlib.suppress(OSError, ValueError):
            os.eventfd_write(self._wake_fd, 1)

    # --- On the supervisor's thread ----------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            while not self._closing:
                self._take_orders()
                for engine in list(self._engines.values()):
                    self._guarded(self._look_after, engine)
                self._wait()
        finally:
            self._end()

    def _wait(self) -> None:
        """Until an engine has something to say, somebody gives an order, or it is time to look."""
        poller = select.poll()
        poller.register(self._wake_fd, select.POLLIN)
        streams = {e.link.control.fileno(): e for e in self._engines.values() if e.link is not None}
        for fd in streams:
            poller.register(fd, select.POLLIN)
        for fd, _events in poller.poll(1000 * self._pause_s()):
            if fd == self._wake_fd:
                with contextlib.suppress(BlockingIOError):
                    os.eventfd_read(fd)
            else:
                self._guarded(self._listen, streams[fd])

    def _guarded(self, act: Callable[[_Engine], None], engine: _Engine) -> None:
        """Whatever goes wrong with one engine is the end of that one: the thread lives for all of them."""
        try:
            act(engine)
        except Exception as error:
            self._lose(engine, f"{type(error).__name__} at {where(error)}")

    def _pause_s(self) -> float:
        """How long nothing needs a look."""
        now = time.monotonic()
        pauses = [60.0]
        for engine in self._engines.values():
            if engine.state == "down" and engine.next_start_s is not None:
                pauses.append(engine.next_start_s - now)
            elif engine.state == "starting":
                pauses.append(engine.silent_s / 8)
            elif engine.state == "ready":
                pauses.append(self._options.gpu_watchdog_s / 4)
        return max(0.001, min(pauses))

    def _look_after(self, engine: _Engine) -> None:
        now = time.monotonic()
        if engine.state == "down" and engine.next_start_s is not None and now >= engine.next_start_s:
            self._start_engine(engine)
        elif engine.state == "starting" and now > engine.since_s + START_LIMIT_S:
            self._lose(engine, f"the device was not up within {START_LIMIT_S:.0f} seconds")
        elif engine.link is not None and engine.link.silence_s() > engine.silent_s:
            what = "its start" if engine.state == "starting" else "the load of a tokenizer"
            reason = f"{what} made no progress for {engine.silent_s:g} seconds"
            engine.silent_s = min(2 * engine.silent_s, START_LIMIT_S)
            self._lose(engine, reason)
        elif engine.state == "ready" and engine.link is not None:
            limit_s = self._options.gpu_watchdog_s
            if engine.link.longest_replay_s() > limit_s:
                self._lose(engine, f"a replay was not finished within {limit_s:g} seconds")

    def _start_engine(self, engine: _Engine) -> None:
        engine.starting()
        try:
            link = engine.link = ProcessLink(self._options.encoder_options(engine.gpu), self._command)
            link.start()
            for key, fd in self._tables.items():
                link.load(key, fd)
        except OSError as error:
            self._lose(engine, f"the engine process cannot be started: {error.strerror}")

    def _listen(self, engine: _Engine) -> None:
        link = engine.link
        if link is None:
            return
        try:
            report = link.receive()
        except EngineLost as error:
            self._lose(engine, str(error))
            return
        if report is None:
            self._lose(engine, link.lost_reason)
        else:
            self._heed(engine, link, report)

    def _heed(self, engine: _Engine, link: ProcessLink, report: Report) -> None:
        where = {"gpu": engine.gpu}
        if isinstance(report, Hello):
            engine.ready()
            log.info("GPU %d is ready: %s", engine.gpu, report.device_name, extra=where)
            if self._options.gpu_numbers() is None:
                for gpu in range(report.n_gpus):
                    if gpu not in self._engines:
                        self._add_engine(gpu)
            self._on_ready(engine.gpu, link)
        elif isinstance(report, Loaded):
            n_places = len(link.places)
            if len(report.places) < n_places:
                text = "GPU %d has memory for %d of %d execution contexts of a tokenizer"
                log.warning(text, engine.gpu, len(report.places), n_places, extra=where)
        elif isinstance(report, Refused):
            log.warning("GPU %d cannot serve a tokenizer: %s", engine.gpu, report.reason, extra=where)
        elif isinstance(report, Fault):
            engine.permanent = report.permanent and not engine.was_ready
            self._lose(engine, report.reason)

    def _lose(self, engine: _Engine, reason: str) -> None:
        """End an engine, and plan its next start."""
        link, was_ready = engine.link, engine.state == "ready"
        status: int | None = 0
        if link is not None:
            link.kill(reason)
            status = link.close()
            reason = _how_it_ended(link.lost_reason, status)
        if status is None:
            log.error("the engine process of GPU %d outlives SIGKILL", engine.gpu, extra={"gpu": engine.gpu})
        pause_s = engine.down(reason)
        plan = "it stays down" if pause_s is None else f"next start in {pause_s:.1f} s"
        log.warning("GPU %d is down: %s; %s", engine.gpu, reason, plan, extra={"gpu": engine.gpu, "reason": reason})
        if was_ready and link is not None:
            self._on_lost(engine.gpu, link, reason)

    def _take_orders(self) -> None:
        while self._orders:
            key, fd = self._orders.popleft()
            if fd < 0:
                if key in self._tables:
                    os.close(self._tables.pop(key))
                    self._pass_on(ProcessLink.withdraw, key)
                    for gpu in self._engines:
                        self._on_withdrawn(gpu, key)
                    self._pass_on(ProcessLink.unload, key)
            elif key in self._wanted and key not in self._tables:
                self._tables[key] = fd
                self._on_tables(key, read_tables(fd))
                self._pass_on(ProcessLink.load, key, fd)
            else:
                # It was removed, and perhaps added again, while its tables were built.
                os.close(fd)

    def _pass_on(self, order: Callable[..., None], *arguments: str | int) -> None:
        for engine in list(self._engines.values()):
            if engine.link is not None:
                try:
                    order(engine.link, *arguments)
                except Exception as error:
                    why = error.strerror if isinstance(error, OSError) else type(error).__name__
                    self._lose(engine, f"a tokenizer cannot be loaded: {why}")

    def _end(self) -> None:
        for engine in self._engines.values():
            if engine.link is not None:
                engine.link.close()
                engine.stopped()
        for fd in [*self._tables.values(), *(fd for _key, fd in self._orders if fd >= 0)]:
            os.close(fd)
        self._tables.clear()
        self._orders.clear()
        fd, self._wake_fd = self._wake_fd, -1
        os.close(fd)


def no_engines(options: GpuRouteOptions) -> str:
    """Why there is nothing to start; empty if there is."""
    numbers = options.gpu_numbers()
    if numbers == ():
        return "the option gpus is none"
    if numbers is None and not any(path.exists() for path in _DRIVER):
        return NO_DRIVER
    return ""


def _how_it_ended(reason: str, status: int | None) -> str:
    """The reason, and where it says nothing else how the process ended."""
    if reason != ENDED or not status:
        return reason
    return f"{ENDED} by {signal.Signals(-status).name}" if status < 0 else f"{ENDED} with status {status}"


class _Engine:
    """The engine of one GPU, over all its processes."""

    def __init__(self, gpu: int, restarts: Restarts) -> None:
        self.gpu = gpu
        self.link: ProcessLink | None = None
        self.state = "down"
        self.next_start_s: float | None = 0.0
        self.since_s = 0.0
        self.silent_s = SILENT_S
        self.permanent = self.was_ready = False
        self._restarts, self._reason = restarts, ""
        self._n_starts = self._past_cpu_ns = 0

    def starting(self) -> None:
        self.state, self.since_s = "starting", time.monotonic()
        self._n_starts += 1

    def ready(self) -> None:
        self.state, self.since_s, self.was_ready = "ready", time.monotonic(), True

    def down(self, reason: str) -> float | None:
        """Seconds until the next start; None = never."""
        now = time.monotonic()
        ready_s = now - self.since_s if self.state == "ready" else 0.0
        self.stopped()
        self._reason = reason
        if self.permanent:
            self.next_start_s = None
            return None
        pause_s = self._restarts.after(ready_s)
        self.next_start_s = now + pause_s
        return pause_s

    def stopped(self) -> None:
        link, self.link, self.state = self.link, None, "down"
        self._past_cpu_ns += link.cpu_ns() if link is not None else 0

    def status(self) -> EngineStatus:
        link = self.link
        cpu_ns = self._past_cpu_ns + (link.cpu_ns() if link is not None else 0)
        facts = link.facts if link is not None else None
        return EngineStatus(self.gpu, self.state, self._reason, max(0, self._n_starts - 1), facts, cpu_ns)
