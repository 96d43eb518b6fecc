"""Serving: sockets, uvicorn on all of them at once, signals and the drain."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import signal
import socket
import sys
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import uvicorn
import uvloop

from dispatcher.gpu.options import GpuRouteOptions
from dispatcher.options import DispatcherOptions
from service import log as logs
from service.app import make_app
from service.banner import show_banner
from service.listeners import Listener, StartError, open_listeners
from service.options import ServiceOptions
from service.protocol import Protocol
from service.registry import Registry
from service.settings import passed_sockets
from service.state import Service

log = logging.getLogger("sidetok.server")

SWITCH_INTERVAL_S = 0.0005
"""How long a worker may keep the interpreter while the event loop wants it (Python's default is ten times that)."""
GRACE_S = 0.25
"""How long a drain lets new connections in: the news that the service wants no traffic needs time to spread."""
LAST_S = 0.1
"""How long the requests of the last connections get to arrive, before idle connections are closed."""
EXIT_S = 1.0
"""The part of the drain timeout that is left for the end of the process."""


class Server(uvicorn.Server):
    """uvicorn on TCP and Unix sockets of one process, with signals and exit code of our own."""

    def __init__(self, config: uvicorn.Config, service: Service, listeners: list[Listener]) -> None:
        super().__init__(config)
        self._service = service
        self._listeners = listeners

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen on every socket; uvicorn itself would treat a Unix socket as TCP."""
        tcp = [sock for sock in sockets or [] if sock.family != socket.AF_UNIX]
        await super().startup(sockets=tcp)
        loop = asyncio.get_running_loop()
        for sock in sockets or []:
            if sock.family == socket.AF_UNIX:
                # Its own clean-up knows a file by its inode only, which may be a successor's by then.
                kept: Any = {"cleanup_socket": False}
                server = await loop.create_unix_server(self._protocol, sock=sock, backlog=self.config.backlog, **kept)
                self.servers.append(server)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Drain: answers close their connections, then no new ones get in, then uvicorn waits for what is in flight."""
        timeout_s = self._service.options.drain_timeout_s
        loop = asyncio.get_running_loop()
        until_s = loop.time() + timeout_s - min(EXIT_S, timeout_s / 2)
        self._service.drain()
        await asyncio.sleep(min(GRACE_S, timeout_s / 4))
        for listener in self._listeners:
            listener.shut()
        if any(listener.passed for listener in self._listeners):
            # What is not accepted by now is left to the next process.
            for server in self.servers:
                server.close()
        await asyncio.sleep(min(LAST_S, timeout_s / 8))
        left_s: Any = max(0.0, until_s - loop.time())
        self.config.timeout_graceful_shutdown = left_s
        await super().shutdown(sockets)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """SIGTERM and SIGINT drain; a second one exits at once. The exit code of a drain is 0."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self._stop)
        try:
            yield
        finally:
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.remove_signal_handler(number)

    def _stop(self) -> None:
        if self.should_exit:
            self.force_exit = True
        self.should_exit = True
        self._service.drain()

    def _protocol(self) -> asyncio.Protocol:
        protocol: Any = self.config.http_protocol_class
        return protocol(config=self.config, server_state=self.server_state, app_state=self.lifespan.state)  # type: ignore[no-any-return]


def serve(
    options: ServiceOptions, work: DispatcherOptions, gpu: GpuRouteOptions, engine_command: Sequence[str] = ()
) -> int:
    """Serve until SIGTERM or SIGINT; returns the exit code. `engine_command` replaces the program of GPU engines."""
    logs.configure(options.log_level, options.log_format)
    # Its name makes its start and stop look like errors, and the service logs its own.
    logging.getLogger("uvicorn.error").setLevel(max(logging.WARNING, logging.getLogger().level))
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    try:
        registry = Registry(options, work)
        listeners = open_listeners(options, passed_sockets())
    except (StartError, ValueError) as error:
        print(f"sidetok: {error}", file=sys.stderr)
        return 2
    try:
        uvloop.run(_serve(options, work, registry, listeners, gpu, engine_command))
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
) -> None:
    service = Service(options, work, registry, gpu, engine_command)
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
        backlog=2048,
        timeout_keep_alive=options.keep_alive_s,
    )
    server = Server(config, service, listeners)
    loading = asyncio.ensure_future(_load(service, [listener.address for listener in listeners]))
    try:
        if any(listener.passed for listener in listeners):
            # Until models are loaded connections wait, as they did before this process was started.
            await loading
        await server.serve([listener.sock for listener in listeners])
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
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)


async def _load(service: Service, where: list[str]) -> None:
    log.info("listening", extra={"addresses": where})
    await service.start()
    # Models and modules stay: a full collection that looks at them takes 10 ms.
    gc.collect()
    gc.freeze()
    if service.ready:
        log.info("ready", extra={"addresses": where})
        show_banner(service.options.banner, service.registry, where)
