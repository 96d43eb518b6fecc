"""Listening sockets: opened before anything is loaded, or handed over open, and shut without losing a connection."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import socket
import stat
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from service.options import ServiceOptions

SO_ATTACH_FILTER = 26
"""Linux: a packet filter on a socket."""

BACKLOG = 2048
"""Connections that may wait to be accepted."""
GRACE_S = 0.25
"""How long a drain lets new connections in: the news that the service wants no traffic needs time to spread."""


class StartError(Exception):
    """The service cannot start; the message says why and what to do."""


@dataclass
class Listener:
    """One listening socket."""

    sock: socket.socket
    path: str = ""
    """Of a Unix socket."""
    file: tuple[int, ...] = ()
    """What tells the file that was bound from another one under that path; empty once it was removed."""
    passed: bool = False
    """Whether somebody else opened it, and goes on listening when this process is gone."""

    @property
    def address(self) -> str:
        """Where it listens, as a URL or `unix:PATH`."""
        if self.path:
            return f"unix:{self.path}"
        host, port = self.sock.getsockname()[:2]
        return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"

    def shut(self) -> None:
        """Let no further connection in; those that are in can still be accepted.

        Closing the socket would reset connections that nobody accepted yet, with the requests that they carry. In a
        socket that was passed they wait for the next process.
        """
        if self.passed:
            return
        if self.path:
            self.remove_file()
        else:
            _drop_connection_attempts(self.sock)

    def remove_file(self) -> None:
        """Remove the path of a Unix socket, once, and not if it is another process's by now."""
        file, self.file = self.file, ()
        with contextlib.suppress(OSError):
            if file and _identity(self.path) == file:
                os.unlink(self.path)


def open_listeners(options: ServiceOptions, passed: Sequence[int] = ()) -> list[Listener]:
    """Bind every listener, so that a taken address fails at once. Raises `StartError`.

    Sockets that were passed, by their descriptors, are all there is then: the addresses of the options mean nothing.
    """
    if passed:
        return [_take(fd) for fd in passed]
    listeners = []
    if options.host:
        listeners.append(Listener(_open_tcp(options.host, options.port)))
    if options.uds:
        sock = _open_uds(Path(options.uds), options.uds_mode)
        listeners.append(Listener(sock, options.uds, _identity(options.uds)))
    if not listeners:
        raise StartError("There is nothing to listen on; give --host or --uds.")
    return listeners


def _take(fd: int) -> Listener:
    """A socket that was passed under this number; it is not passed on to engine processes."""
    try:
        sock = socket.socket(fileno=fd)
        os.set_inheritable(fd, False)
        listens = sock.type == socket.SOCK_STREAM and sock.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN)
    except OSError as error:
        raise StartError(f"Descriptor {fd} was to be a listening socket (LISTEN_FDS): {error.strerror}.") from error
    if not listens or sock.family not in (socket.AF_INET, socket.AF_INET6, socket.AF_UNIX):
        raise StartError(f"Descriptor {fd} is no listening TCP or Unix socket; use ListenStream= and Accept=no.")
    return Listener(sock, sock.getsockname() if sock.family == socket.AF_UNIX else "", passed=True)


def _identity(path: str) -> tuple[int, ...]:
    status = os.lstat(path)
    # The number of a removed file is soon given to the next one, hence the time.
    return status.st_dev, status.st_ino, status.st_ctime_ns


def _drop_connection_attempts(sock: socket.socket) -> None:
    """Drop packets that would open a connection (SYN). A kernel without filters goes on accepting, and loses little."""
    # A classic BPF program: load the byte of TCP flags; with SYN in it drop the packet, else keep all of it.
    program = struct.pack("HBBI" * 4, 0x30, 0, 0, 13, 0x45, 0, 1, 2, 0x06, 0, 0, 0, 0x06, 0, 0, 0xFFFFFFFF)
    buffer = ctypes.create_string_buffer(program)
    with contextlib.suppress(OSError):
        sock.setsockopt(socket.SOL_SOCKET, SO_ATTACH_FILTER, struct.pack("HL", 4, ctypes.addressof(buffer)))


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
