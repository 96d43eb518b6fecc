"""Serving: sockets, uvicorn on all of them at once, signals and the drain."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import socket
import sys
import threading
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import uvicorn
import uvloop

from dispatcher.gpu.options import GpuRouteOptions
from dispatcher.options import DispatcherOptions
from service import log as logs
from service.app import make_app
from service.banner import show_banner
from service.listeners import BACKLOG, GRACE_S, Listener, StartError, open_listeners
from service.options import ServiceOptions
from service.protocol import Protocol
from service.registry import Registry
from service.settings import passed_sockets
from service.signals import ending
from service.state import Service

if TYPE_CHECKING:
    from service.frontends.frontend import Frontend

log = logging.getLogger("sidetok.server")

SWITCH_INTERVAL_S = 0.0002
"""How long a worker may keep the interpreter while the event loop wants it (Python's default is 25 times that)."""
LOOK_S = 0.1
"""How often a process that waits for its models looks for a signal."""
LAST_S = 0.1
"""How long the requests of the last connections get to arrive, before idle connections are closed."""
LAST_TURNS = 8
"""Turns of the event loop behind that time. A process that was held up for longer has not looked at its sockets yet."""
EXIT_S = 1.0
"""The part of the drain timeout that is left for the end of the process."""


class Server(uvicorn.Server):
    """uvicorn on TCP and Unix sockets of one process, with signals and exit code of our own."""

    def __init__(self, config: uvicorn.Config, service: Service, listeners: list[Listener]) -> None:
        super().__init__(config)
        self._service = service
        self._listeners = listeners
        self.waits_for: asyncio.Future[None] | None = None
        """The load of the models, if connections are to wait for it."""

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen on every socket, now or when the models are loaded; not at all if a signal comes first."""
        if (loading := self.waits_for) is not None:
            while not loading.done() and not self.should_exit:
                await asyncio.wait({loading}, timeout=LOOK_S)
            if self.should_exit:
                return
            loading.result()
        await self.listen(sockets)

    async def listen(self, sockets: list[socket.socket] | None) -> None:
        """Accept connections; uvicorn itself would treat a Unix socket as TCP."""
        tcp = [sock for sock in sockets or [] if sock.family != socket.AF_UNIX]
        await super().startup(sockets=tcp)
        loop = asyncio.get_running_loop()
        for sock in sockets or []:
            if sock.family == socket.AF_UNIX:
                # Its own clean-up knows a file by its inode only, which may be a successor's by then.
                kept: Any = {"cleanup_socket": False}
                server = await loop.create_unix_server(
                    self.make_protocol, sock=sock, backlog=self.config.backlog, **kept
                )
                self.servers.append(server)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Drain: answers close their connections, then no new ones get in, then uvicorn waits for what is in flight."""
        timeout_s = self._service.options.drain_timeout_s
        loop = asyncio.get_running_loop()
        until_s = loop.time() + timeout_s - min(EXIT_S, timeout_s / 2)
        self._service.drain()
        await self.let_nobody_in(timeout_s)
        await asyncio.sleep(min(LAST_S, timeout_s / 8))
        for _ in range(LAST_TURNS):
            await asyncio.sleep(0)
        left_s: Any = max(0.0, until_s - loop.time())
        self.config.timeout_graceful_shutdown = left_s
        await super().shutdown(sockets)

    async def let_nobody_in(self, timeout_s: float) -> None:
        """Shut the listeners in a moment, in a drain of so many seconds."""
        await asyncio.sleep(min(GRACE_S, timeout_s / 4))
        for listener in self._listeners:
            listener.shut()
        if any(listener.passed for listener in self._listeners):
            # What is not accepted by now is left to the next process.
            for server in self.servers:
                server.close()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """The first signal drains; who insists does not wait for what is in flight. The exit code of a drain is 0."""
        with ending(self._stop):
            yield

    def make_protocol(self) -> asyncio.Protocol:
        """The protocol of a new connection."""
        protocol: Any = self.config.http_protocol_class
        return protocol(config=self.config, server_state=self.server_state, app_state=self.lifespan.state)  # type: ignore[no-any-return]

    def _stop(self, at_once: bool) -> None:
        self.force_exit |= at_once
        self.should_exit = True
        self._service.drain()


def serve(
    options: ServiceOptions,
    work: DispatcherOptions,
    gpu: GpuRouteOptions,
    engine_command: Sequence[str] = (),
    frontend: Frontend | None = None,
) -> int:
    """Serve until a signal ends it; returns the exit code. `engine_command` replaces the program of GPU engines.

    `frontend`: the place of this process among several, whose options these are.
    """
    always: dict[str, Any] = {} if frontend is None else {"frontend": frontend.number}
    logs.configure(options.log_level, options.log_format, **always)
    # Its name makes its start and stop look like errors, and the service logs its own.
    logging.getLogger("uvicorn.error").setLevel(max(logging.WARNING, logging.getLogger().level))
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    try:
        registry = Registry(options, work)
        if frontend is not None:
            frontend.adopt(registry)
        listeners = open_listeners(options, passed_sockets()) if frontend is None else frontend.listeners
    except (StartError, ValueError) as error:
        print(f"sidetok: {error}", file=sys.stderr)
        return 2
    try:
        uvloop.run(_serve(options, work, registry, listeners, gpu, engine_command, frontend))
    finally:
        for listener in listeners:
            listener.remove_file()
    _leave_threads_behind()
    return 0


async def _serve(
    options: ServiceOptions,
    work: DispatcherOptions,
    registry: Registry,
    listeners: list[Listener],
    gpu: GpuRouteOptions,
    engine_command: Sequence[str],
    frontend: Frontend | None,
) -> None:
    service = Service(options, work, registry, gpu, engine_command, frontend)
    config = uvicorn.Config(
        make_app(service),
        http=type("BoundProtocol", (Protocol,), {"gate": service.gate}),
        ws="none",
        lifespan="off",
        interface="asgi3",
        log_config=None,
        access_log=False,
        server_header=False,
        date_header=False,
        proxy_headers=False,
        backlog=BACKLOG,
        timeout_keep_alive=options.keep_alive_s,
    )
    server = Server(config, service, listeners) if frontend is None else frontend.server(config, service)
    if frontend is not None:
        await frontend.join(service, server)
    waits = any(listener.passed for listener in listeners) if frontend is None else frontend.setup.waits
    loading = asyncio.ensure_future(_load(service, [listener.address for listener in listeners]))
    if waits:
        # Until then connections wait, as they did before this process was started.
        server.waits_for = loading
    try:
        await server.serve([listener.sock for listener in listeners])
        if frontend is not None:
            await frontend.leave()
    finally:
        loading.cancel()
        service.close()
    log.info("stopped", extra={"requests": server.server_state.total_requests})


def _leave_threads_behind() -> None:
    """End the process here if a load or a document outlived the drain.

    At the end of the interpreter a thread that comes back from a native library would abort the process.
    """
    if any(thread.daemon for thread in threading.enumerate()):
        logging.shutdown()
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError):
                stream.flush()
        os._exit(0)


async def _load(service: Service, where: list[str]) -> None:
    frontend = service.frontend
    if frontend is None:
        log.info("listening", extra={"addresses": where})
    await service.start()
    # Models and modules stay: a full collection that looks at them takes 10 ms.
    gc.collect()
    gc.freeze()
    if frontend is not None:
        await frontend.loaded()
    elif service.ready:
        log.info("ready", extra={"addresses": where})
        show_banner(service.options.banner, service.registry, where)
