"""The process that keeps the frontends: it opens the sockets, starts them, starts again those that end, and ends them.

It serves nothing itself and loads no models. Connections of a frontend that dies are lost with it; the sockets stay,
so nobody is refused while others serve.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import random
import socket
import sys
import time
from collections.abc import Collection, Coroutine, Sequence

from dispatcher.gpu.child import python_command
from dispatcher.gpu.options import GpuRouteOptions
from dispatcher.gpu.restarts import Restarts
from dispatcher.options import DispatcherOptions
from service import log as logs
from service.frontends.board import Board
from service.frontends.changes import Changes
from service.frontends.division import gpu_part_of, part_of
from service.frontends.kept import FAILED, LOADING, READY, Kept
from service.frontends.messages import Channel, Setup
from service.frontends.rounds import Rounds
from service.listeners import BACKLOG, GRACE_S, Listener, StartError, open_listeners
from service.options import ServiceOptions
from service.settings import passed_sockets
from service.signals import ending

log = logging.getLogger("sidetok.frontends")

MIN_RESTART_S, MAX_RESTART_S = 0.25, 30.0
"""Seconds before a frontend that ended is started again: the first time, and at most."""
LOOK_S = 1.0
"""How often it is looked whether frontends move, and whether there is one at all: if not, the next start is due."""
LATE_S = 5.0
"""How long after the drain timeout, or a second signal, a frontend that does not end is killed."""


def serve(
    options: ServiceOptions, work: DispatcherOptions, gpu: GpuRouteOptions, engine_command: Sequence[str] = ()
) -> int:
    """Keep `options.frontends` processes that serve until a signal ends them; returns the exit code."""
    logs.configure(options.log_level, options.log_format)
    try:
        listeners = open_listeners(options, passed_sockets())
    except (StartError, ValueError) as error:
        print(f"sidetok: {error}", file=sys.stderr)
        return 2
    for listener in listeners:
        if not listener.passed:
            listener.sock.listen(BACKLOG)
    setup = Setup(
        number=0,
        sockets=[(listener.sock.fileno(), listener.path) for listener in listeners],
        board=-1,
        n_frontends=options.frontends,
        passed=any(listener.passed for listener in listeners),
        waits=any(listener.passed for listener in listeners),
        started_s=time.time(),
        service=options,
        work=part_of(work, options.frontends),
        gpu=gpu_part_of(gpu, options.frontends),
        engine_command=list(engine_command),
        changes=[],
    )
    try:
        return asyncio.run(Keeper(setup, listeners, python_command("service.frontends.process")).run())
    finally:
        for listener in listeners:
            listener.remove_file()


class Keeper:
    """All frontends of one service. All methods run on the event loop of the main thread."""

    def __init__(
        self, setup: Setup, listeners: Sequence[Listener], command: Sequence[str], look_s: float = LOOK_S
    ) -> None:
        """`setup`: what frontends have in common. `command` starts one; descriptor and process id follow."""
        self._look_s = look_s
        self._board, self._board_fd = Board.make(setup.n_frontends)
        self._setup = setup
        self._listeners = listeners
        self._command = command
        self._kept: dict[int, Kept] = {}
        self._pids: set[int] = set()
        """Of all frontends whose ends were not seen yet."""
        self._to_come = set(range(1, setup.n_frontends + 1))
        """Numbers of frontends that were not started yet, not even once."""
        self._rounds = Rounds(setup.n_frontends)
        self._changes = Changes()
        self._first = asyncio.Event()
        """The first frontend said that its settings are sound, or ended."""
        self._stopping = asyncio.Event()
        self._status = 0
        self._was_ready = False
        self._tasks: set[asyncio.Task[None]] = set()

    async def run(self) -> int:
        """Serve until a signal comes, then until everything ended; the exit status."""
        with ending(lambda _: self.stop()):
            self._spawn(self._watch())
            log.info("listening", extra={"addresses": self._addresses, "frontends": self._setup.n_frontends})
            await asyncio.gather(*(self._keep(number) for number in range(1, self._setup.n_frontends + 1)))
        if not self._status:
            log.info("stopped")
        return self._status

    def stop(self) -> None:
        """Drain all frontends; a second time: do not wait for what is in flight."""
        if self._stopping.is_set():
            self._tell("leave")
            self._spawn(self._kill_after(LATE_S))
            return
        self._stopping.set()
        self._first.set()
        self._spawn(self._drain())

    @property
    def _is_over(self) -> bool:
        return self._stopping.is_set() or self._status != 0

    @property
    def _addresses(self) -> list[str]:
        return [listener.address for listener in self._listeners]

    async def _keep(self, number: int) -> None:
        """Start a frontend, and again whenever it ended, until the service ends."""
        restarts = Restarts(MIN_RESTART_S, MAX_RESTART_S, random.random)
        waits = self._setup.waits
        while not self._is_over:
            status, served_s = await self._run(number, waits)
            if self._is_over:
                break
            if number == 1 and not self._first.is_set():
                # Settings are wrong, or nothing runs here at all: its last line says why, unless a signal ended it.
                self._status = status if status > 0 else 1
                if status < 0:
                    log.error("frontend ended", extra={"frontend": number, "status": status})
                break
            delay_s = restarts.after(served_s)
            say = log.error if status else log.info
            say("frontend ended", extra={"frontend": number, "status": status, "restart_s": round(delay_s, 3)})
            self._rounds.n_restarts += 1
            waits = True
            await self._rest(delay_s)
        self._first.set()

    async def _run(self, number: int, waits: bool) -> tuple[int, float]:
        """One life of a frontend: its exit status, negative for a signal, and for how many seconds it could serve."""
        try:
            kept = await self._start(number, waits)
        except OSError as error:
            self._to_come.discard(number)
            log.error("frontend not started", extra={"frontend": number, "reason": error.strerror})
            return 1, 0.0
        if number != 1:
            # It imports what it needs in the meantime; what is wrong with settings is said by the first one only.
            await self._first.wait()
        self._begin(kept)
        await self._attend(kept)
        status = await kept.ended()
        self._lose(kept)
        return status, kept.served_s(time.monotonic())

    async def _start(self, number: int, waits: bool) -> Kept:
        ours, theirs = socket.socketpair()
        fds = (theirs.fileno(), self._board_fd, *(fd for fd, _ in self._setup.sockets))
        with theirs:
            # From the main thread: the system ends a frontend with the thread that started it.
            process = await asyncio.create_subprocess_exec(
                *self._command,
                str(theirs.fileno()),
                str(os.getpid()),
                pass_fds=fds,
                stdin=asyncio.subprocess.DEVNULL,
            )
        self._pids.add(process.pid)
        return Kept(number, waits, process, await Channel.over(ours))

    def _begin(self, kept: Kept) -> None:
        """Tell a frontend that was started what to serve; if the service has ended by now, end it."""
        self._to_come.discard(kept.number)
        if self._is_over:
            kept.kill()
            return
        self._kept[kept.number] = kept
        setup = {**self._setup.to_json(), "number": kept.number, "board": self._board_fd, "waits": kept.waits}
        kept.channel.send("setup", {**setup, "changes": self._changes.made})

    async def _attend(self, kept: Kept) -> None:
        """Hear what a frontend says until it ends."""
        while (message := await kept.channel.receive()) is not None:
            kind, content = message
            if kind == "started":
                self._first.set()
            elif kind == "loaded":
                self._loaded(kept, *content)
            elif kind == "report":
                self._rounds.report(kept, *content)
            elif kind == "scrape":
                self._spawn(self._rounds.scrape(kept, self._kept.values(), *content))
            elif kind == "change":
                self._spawn(self._changes.make(kept, self._kept.values(), *content))
            elif kind == "changed":
                self._changes.answered(kept, *content)
                self._tell_models()
            elif kind == "model":
                model, state, error, kept.digests[model] = content
                kept.models[model] = (state, error)
                self._tell_models()

    def _loaded(self, kept: Kept, can_serve: bool, digests: dict[str, str]) -> None:
        kept.digests = digests
        if any(kept.differs(other) for other in self._kept.values() if other.state == READY):
            # The same request would be answered by it in another way. It comes again, as if it had died.
            log.error("files of models changed; restart the service", extra={"frontend": kept.number})
            kept.kill()
            return
        kept.state, kept.ready_s = (READY if can_serve else FAILED), time.monotonic()
        self._tell_state()
        self._tell_models()
        kept.channel.send("admitted")
        if self._state == READY and not self._was_ready:
            self._was_ready = True
            log.info("ready", extra={"addresses": self._addresses, "frontends": self._setup.n_frontends})
            kept.channel.send("banner")

    @property
    def _state(self) -> str:
        """That of all frontends that accept connections."""
        states = {kept.state for kept in self._kept.values() if kept.accepts}
        if self._to_come and not self._setup.waits:
            states.add(LOADING)
        return LOADING if LOADING in states or not states else FAILED if FAILED in states else READY

    def _tell_state(self) -> None:
        for kept in self._kept.values():
            kept.channel.send("peers", self._state)

    def _tell_models(self) -> None:
        states = self._changes.states(self._kept.values())
        for kept in self._kept.values():
            kept.channel.send("models", states)

    def _lose(self, kept: Kept) -> None:
        """A frontend ended: what it had counted stays."""
        self._kept.pop(kept.number, None)
        self._pids.discard(kept.process.pid)
        kept.channel.close()
        self._board.clear(kept.number)
        self._rounds.lose(kept)
        self._changes.lose(kept)
        self._tell_state()

    async def _drain(self) -> None:
        """End the service: as one process does it, but what nobody accepts any more is shut here."""
        timeout_s = self._setup.service.drain_timeout_s
        self._tell("drain")
        await asyncio.sleep(min(GRACE_S, timeout_s / 4))
        for listener in self._listeners:
            listener.shut()
        self._tell("shut")
        await self._kill_after(timeout_s + LATE_S)

    async def _kill_after(self, seconds: float) -> None:
        await asyncio.sleep(seconds)
        for kept in self._kept.values():
            kept.kill()

    def _tell(self, kind: str) -> None:
        for kept in self._kept.values():
            kept.channel.send(kind)

    async def _watch(self) -> None:
        """End frontends that hang: their clients wait for nothing, and others would be as good."""
        while True:
            await asyncio.sleep(self._look_s)
            # What a frontend started ends a moment after it.
            reap_orphans(self._pids)
            for kept in self._kept.values():
                if kept.hangs(self._board.beats(kept.number)):
                    log.error("frontend hangs and is ended", extra={"frontend": kept.number})
                    kept.kill()

    async def _rest(self, seconds: float) -> None:
        """Wait before a further start, not for long while there is nobody who could serve."""
        until_s = time.monotonic() + seconds
        while (left_s := until_s - time.monotonic()) > 0 and not self._is_over:
            await self._stopped_within(min(self._look_s, left_s))
            if not self._pids:
                break

    async def _stopped_within(self, seconds: float) -> None:
        try:
            await asyncio.wait_for(self._stopping.wait(), seconds)
        except TimeoutError:
            return

    def _spawn(self, work: Coroutine[None, None, None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


def reap_orphans(but: Collection[int]) -> None:
    """Take notice of processes that a frontend left behind, where they came to this one, as they do in a container.

    `but`: processes whose end others wait for.
    """
    with contextlib.suppress(ChildProcessError):
        while (ended := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)) and ended.si_pid not in but:
            os.waitpid(ended.si_pid, os.WNOHANG)
