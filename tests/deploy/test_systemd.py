"""The units: systemd accepts them, their command starts the service, and sockets outlive the processes."""

from __future__ import annotations

import configparser
import contextlib
import os
import re
import shlex
import socket
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from service.server import LAST_S
from service.settings import parse_serve
from tests.deploy.conftest import DEPLOY, run, tool
from tests.end_to_end.harness import LIMIT_S, MAIN, Closed, ServiceProcess, Wire, encode

FOLDER = DEPLOY / "systemd"
HAND_OVER = """
import os, sys
for number, fd in enumerate(map(int, sys.argv[1].split(",")), 3):
    os.dup2(fd, number)
os.environ.update(LISTEN_PID=str(os.getpid()), LISTEN_FDS=str(len(sys.argv[1].split(","))))
os.execv(sys.executable, [sys.executable, "-c", *sys.argv[2:]])
"""
"""What systemd does before it starts a program that is to be given sockets."""
EXPOSURE = 2.5
"""Of `systemd-analyze security`: 0 is none, 10 is all; a service without options has 9.6."""


def unit(name: str) -> configparser.ConfigParser:
    """A unit file; of options that stand there several times the last one."""
    parser = configparser.ConfigParser(strict=False, interpolation=None, delimiters=("=",))
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    parser.read(FOLDER / name)
    return parser


@pytest.fixture
def installed(folder: Path) -> Path:
    """The units as an administrator installs them, with a program that exists here."""
    (folder / "sidetok.service.d").mkdir()
    for name in ("sidetok.service", "sidetok.socket"):
        text = (FOLDER / name).read_text(encoding="utf-8")
        text = text.replace("/opt/sidetok/bin/sidetok", sys.executable)
        (folder / name).write_text(re.sub("(?m)^(User|Group|SocketGroup)=sidetok$", r"\1=root", text))
    return folder


@pytest.mark.parametrize("gpu", [False, True])
def test_systemd_accepts_the_units(installed: Path, gpu: bool) -> None:
    """No option is unknown or misspelt, with and without the part for GPUs."""
    if gpu:
        text = (FOLDER / "sidetok-gpu.conf").read_text(encoding="utf-8")
        (installed / "sidetok.service.d" / "gpu.conf").write_text(text)
    output = run(
        tool("systemd-analyze"),
        *("verify", "--man=no", "--recursive-errors=no", "sidetok.service", "sidetok.socket"),
        SYSTEMD_UNIT_PATH=f"{installed}:",
        SYSTEMD_LOG_LEVEL="warning",
    )
    assert "sidetok" not in output


def test_the_service_may_do_little(installed: Path) -> None:
    """systemd itself finds that next to nothing is left to be forbidden."""
    unit_file = str(installed / "sidetok.service")
    limit = f"--threshold={EXPOSURE * 10:.0f}"
    run(tool("systemd-analyze"), "security", "--offline=true", "--no-pager", limit, unit_file)


def test_the_command_is_understood() -> None:
    """Arguments and variables are settings; the drain ends before systemd's patience does, and reaches engines last."""
    service = unit("sidetok.service")["Service"]
    program, command, *arguments = shlex.split(service["ExecStart"])
    environ = dict(pair.split("=", 1) for pair in service["Environment"].split())
    options, work, _ = parse_serve(arguments, environ)
    assert (Path(program).name, command) == ("sidetok", "serve")
    assert work.cache_dir == f"/var/cache/{service['CacheDirectory']}"
    assert float(service["TimeoutStopSec"]) > options.drain_timeout_s
    assert service["KillMode"] == "mixed"


class Sockets:
    """What a socket unit holds: a TCP socket and a Unix socket, open as long as the unit is."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "unit"
        self.tcp = socket.create_server(("127.0.0.1", 0), backlog=128)
        self.uds = socket.socket(socket.AF_UNIX)
        self.uds.bind(str(self.path))
        self.uds.listen(128)
        self.started: list[ServiceProcess] = []

    def start(self, folder: Path, *arguments: str, cache_dir: Path) -> ServiceProcess:
        """A process that is given both."""
        fds = (self.tcp.fileno(), self.uds.fileno())
        program = (sys.executable, "-c", HAND_OVER, ",".join(map(str, fds)), MAIN, "serve")
        more: dict[str, Any] = {"uds": self.path, "cache_dir": cache_dir, "program": program, "pass_fds": fds}
        self.started.append(ServiceProcess(folder, *arguments, **more))
        return self.started[-1]

    def connect(self, uds: bool) -> Wire:
        """A new connection, whether or not anybody accepts it now."""
        sock = socket.socket(socket.AF_UNIX if uds else socket.AF_INET)
        sock.settimeout(LIMIT_S)
        sock.connect(str(self.path) if uds else self.tcp.getsockname())
        return Wire(sock)


@pytest.fixture
def sockets(folder: Path) -> Iterator[Sockets]:
    """Sockets that are closed in the end, when no process is left that was given them."""
    held = Sockets(folder)
    yield held
    for process in held.started:
        process.stop()
    held.tcp.close()
    held.uds.close()


@pytest.mark.parametrize("frontends", [1, 2])
def test_an_upgrade_refuses_nobody(sockets: Sockets, folder: Path, home: Path, frontends: int) -> None:
    """One process ends and the next one starts: every request on a new connection is answered, before and after."""
    model = f"--model=small={home / 'tokenizer.json'}"
    statuses: dict[bool, list[int]] = {False: [], True: []}
    enough = threading.Event()

    def ask(uds: bool) -> None:
        while not enough.is_set():
            before_s = time.monotonic()
            with contextlib.closing(sockets.connect(uds)) as wire:
                try:
                    wire.sock.sendall(encode("Hello"))
                except OSError:
                    continue  # not sent completely
                # A connection that is idle for so long may end: the machine held up this thread, or the test fails.
                is_late = time.monotonic() - before_s >= LAST_S
                try:
                    statuses[uds].append(wire.read().status)
                except Closed:
                    statuses[uds] += [] if is_late else [0]

    clients = [threading.Thread(target=ask, args=(uds,), daemon=True) for uds in (False, True)]
    flags = (model, f"--frontends={frontends}")
    first = sockets.start(folder, *flags, cache_dir=home / "cache").wait_ready()
    assert first.port == sockets.tcp.getsockname()[1]
    for client in clients:
        client.start()
    first.eventually(lambda: all(statuses.values()))
    first.signal()
    assert first.wait_exit() == 0
    waiting = sockets.connect(uds=True)
    second = sockets.start(folder, *flags, cache_dir=home / "cache").wait_ready()
    assert waiting.ask(encode("Hello")).status == 200
    n_before = {uds: len(found) for uds, found in statuses.items()}
    # One of each was perhaps sent before.
    second.eventually(lambda: all(len(found) > n_before[uds] + 1 for uds, found in statuses.items()))
    enough.set()
    for client in clients:
        client.join(LIMIT_S)
    second.signal()
    assert second.wait_exit() == 0
    assert all(set(found) == {200} for found in statuses.values()), statuses
    assert sockets.path.is_socket()


def test_only_listening_sockets_are_taken(folder: Path, home: Path) -> None:
    """What is no listening socket is named, and the process ends with status 2."""
    fd = os.open(folder, os.O_RDONLY)
    program = (sys.executable, "-c", HAND_OVER, str(fd), MAIN, "serve")
    process = ServiceProcess(folder, program=program, pass_fds=(fd,))
    assert process.wait_exit() == 2
    os.close(fd)
    (line,) = process.lines
    assert line.startswith("sidetok: Descriptor 3 ")
