"""Serving: sockets, uvicorn on all of them at once, signals and the drain."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import signal
import socket
import stat
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import uvicorn
import uvloop

from dispatcher.options import DispatcherOptions
from service import log as logs
from service.app import make_app
from service.banner import show_banner
from service.options import ServiceOptions
from service.protocol import Protocol
from service.registry import Registry
from service.state import Service

log = logging.getLogger("sidetok.server")

SWITCH_INTERVAL_S = 0.0005
"""How long a worker may keep the interpreter while the event loop wants it (Python's default is ten times that)."""
DRAIN_GRACE_S = 0.25
"""How long the drain keeps answering on open connections before it closes idle ones."""


class StartError(Exception):
    """The service cannot start; the message says why and what to do."""


class Server(uvicorn.Server):
    """uvicorn on TCP and Unix sockets of one process, with signals and exit code of our own."""

    def __init__(self, config: uvicorn.Config, service: Service) -> None:
        super().__init__(config)
        self._service = service

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen on every socket; uvicorn itself would treat a Unix socket as TCP."""
        tcp = [sock for sock in sockets or [] if sock.family != socket.AF_UNIX]
        await super().startup(sockets=tcp)
        loop = asyncio.get_running_loop()
        for sock in sockets or []:
            if sock.family == socket.AF_UNIX:
                server = await loop.create_unix_server(self._protocol, sock=sock, backlog=self.config.backlog)
                self.servers.append(server)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Drain: no new connections, answers close theirs, then uvicorn's own shutdown waits for what is in flight."""
        self._service.drain()
        for server in self.servers:
            server.close()
        await asyncio.sleep(DRAIN_GRACE_S)
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


def serve(options: ServiceOptions, work: DispatcherOptions) -> int:
    """Serve until SIGTERM or SIGINT; returns the exit code."""
    logs.configure(options.log_level, options.log_format)
    sys.setswitchinterval(SWITCH_INTERVAL_S)
    try:
        registry = Registry(options, work)
        sockets = open_sockets(options)
    except (StartError, ValueError) as error:
        print(f"sidetok: {error}", file=sys.stderr)
        return 2
    try:
        return uvloop.run(_serve(options, work, registry, sockets))
    finally:
        if options.uds:
            with contextlib.suppress(OSError):
                os.unlink(options.uds)


async def _serve(
    options: ServiceOptions, work: DispatcherOptions, registry: Registry, sockets: list[socket.socket]
) -> int:
    service = Service(options, work, registry)
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
        timeout_graceful_shutdown=max(1, round(options.drain_timeout_s)),
    )
    server = Server(config, service)
    loading = asyncio.ensure_future(_load(service, addresses(sockets)))
    try:
        await server.serve(sockets)
    finally:
        loading.cancel()
        service.close()
    log.info("stopped", extra={"requests": server.server_state.total_requests})
    return 0


async def _load(service: Service, where: list[str]) -> None:
    log.info("listening", extra={"addresses": where})
    await service.start()
    if service.ready:
        log.info("ready", extra={"addresses": where})
        show_banner(service.options.banner, service.registry, where)


def addresses(sockets: list[socket.socket]) -> list[str]:
    """Where the service listens, as URLs and `unix:PATH`."""
    names = []
    for sock in sockets:
        if sock.family == socket.AF_UNIX:
            names.append(f"unix:{sock.getsockname()}")
        else:
            host, port = sock.getsockname()[:2]
            names.append(f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}")
    return names


def open_sockets(options: ServiceOptions) -> list[socket.socket]:
    """Bind every listener before anything is loaded, so that a taken address fails at once."""
    sockets = []
    if options.host:
        sockets.append(_open_tcp(options.host, options.port))
    if options.uds:
        sockets.append(_open_uds(Path(options.uds), options.uds_mode))
    if not sockets:
        raise StartError("There is nothing to listen on; give --host or --uds.")
    return sockets


def _open_tcp(host: str, port: int) -> socket.socket:
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        sock = socket.socket(family, kind, protocol)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(address)
    except OSError as error:
        hint = "another process listens there; choose another --port" if error.errno == errno.EADDRINUSE else error
        raise StartError(f"Cannot listen on {host}:{port}: {hint}.") from error
    return sock


def _open_uds(path: Path, mode: str) -> socket.socket:
    """Bind a Unix socket: a stale file is replaced; a live socket, or a file that is no socket, is refused."""
    try:
        permissions = int(mode, 8)
    except ValueError:
        raise StartError(f"--uds-mode is an octal mode like 0660, not {mode}.") from None
    try:
        if path.exists() or path.is_symlink():
            _remove_stale(path)
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        previous = os.umask(0o777 & ~permissions)
        try:
            sock.bind(str(path))
        finally:
            os.umask(previous)
        os.chmod(path, permissions)
    except OSError as error:
        raise StartError(f"Cannot listen on the Unix socket {path}: {error.strerror or error}.") from error
    return sock


def _remove_stale(path: Path) -> None:
    if not stat.S_ISSOCK(path.lstat().st_mode):
        raise StartError(f"{path} exists and is no socket; choose another --uds path.")
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            path.unlink()
            return
        except OSError:
            pass
    raise StartError(f"Another process serves on the Unix socket {path}; stop it or choose another --uds path.")
