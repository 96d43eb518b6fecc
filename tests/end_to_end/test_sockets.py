"""Where a process listens: taken addresses, stale and foreign socket files, permissions, and successors."""

from __future__ import annotations

import os
import signal
import socket
import stat
from pathlib import Path

import pytest

from tests.end_to_end.harness import ServiceProcess, Wire, encode, serving


def refused(process: ServiceProcess) -> str:
    """What a process that does not start says."""
    assert process.wait_exit() == 2
    (line,) = process.lines
    assert line.startswith("sidetok: ")
    return line


def test_a_stale_socket_is_replaced(folder: Path, home: Path, model: str) -> None:
    """The file that a killed process left behind is no obstacle."""
    with serving(folder, model, cache_dir=home / "cache") as killed:
        killed.signal(signal.SIGKILL)
        killed.wait_exit()
        assert killed.uds.is_socket()
    with serving(folder, model, cache_dir=home / "cache") as process:
        assert Wire(process.connect(uds=True)).ask(encode("a")).status == 200


def test_a_live_socket_is_refused(service: ServiceProcess, folder: Path, model: str) -> None:
    """The socket of a process that serves is left alone, and goes on serving."""
    assert "Another process serves" in refused(ServiceProcess(folder, model, uds=service.uds))
    assert Wire(service.connect(uds=True)).ask(encode("a")).status == 200


@pytest.mark.parametrize("kind", ["file", "folder", "link", "fifo"])
def test_what_is_no_socket_is_refused(folder: Path, model: str, kind: str) -> None:
    """Other files are never removed, not even behind a link."""
    path = folder / "s"
    target = folder / "target"
    target.write_text("precious")
    if kind == "file":
        path.write_text("precious")
    elif kind == "folder":
        path.mkdir()
    elif kind == "link":
        path.symlink_to(target)
    else:
        os.mkfifo(path)
    before = path.lstat().st_ino
    assert "is no socket" in refused(ServiceProcess(folder, model))
    assert path.lstat().st_ino == before
    assert target.read_text() == "precious"


def test_a_missing_folder_is_named(folder: Path, model: str) -> None:
    """A socket cannot be made where there is no folder."""
    assert "No such file" in refused(ServiceProcess(folder, model, uds=folder / "missing" / "s"))


def test_a_path_that_is_too_long_is_named(folder: Path, model: str) -> None:
    """So is a path that no Unix socket can have."""
    assert "Cannot listen" in refused(ServiceProcess(folder, model, uds=folder / ("x" * 150)))


def test_a_taken_port_is_refused(service: ServiceProcess, folder: Path, model: str) -> None:
    """A port where somebody listens is named with advice, before anything is loaded."""
    line = refused(ServiceProcess(folder, model, f"--port={service.port}"))
    assert f":{service.port}" in line
    assert "--port" in line


@pytest.mark.parametrize("mode", ["0600", "0660", "0666"])
def test_permissions_of_the_socket(folder: Path, home: Path, model: str, mode: str) -> None:
    """The socket has the permissions that were asked for, whatever the umask."""
    with serving(folder, model, f"--uds-mode={mode}", cache_dir=home / "cache") as process:
        assert stat.S_IMODE(process.uds.stat().st_mode) == int(mode, 8)


def test_only_a_unix_socket(folder: Path, home: Path, model: str) -> None:
    """Without a host there is no TCP."""
    process = ServiceProcess(folder, model, "--host=", cache_dir=home / "cache")
    try:
        assert process.wait_logged("ready")["addresses"] == [f"unix:{process.uds}"]
        assert Wire(process.connect(uds=True)).ask(encode("a")).status == 200
        process.signal()
        assert process.wait_exit() == 0
    finally:
        process.stop()


def test_ipv6(folder: Path, home: Path, model: str) -> None:
    """An IPv6 address is listened on and printed as a URL."""
    if not socket.has_ipv6 or not Path("/proc/net/if_inet6").read_text():
        pytest.skip("no IPv6 here")
    process = ServiceProcess(folder, model, "--host=::1", cache_dir=home / "cache")
    try:
        (address, _) = process.wait_logged("ready")["addresses"]
        assert address.startswith("http://[::1]:")
        sock = socket.create_connection(("::1", int(address.rsplit(":", 1)[1])))
        assert Wire(sock).ask(encode("a")).status == 200
        process.signal()
        assert process.wait_exit() == 0
    finally:
        process.stop()


def test_a_successor_keeps_its_socket(folder: Path, home: Path, model: str) -> None:
    """A process may start on the path of one that drains; when that one ends, the path stays."""
    with serving(folder, model, cache_dir=home / "cache") as first:
        busy = Wire(first.connect())
        busy.sock.sendall(encode("x" * 100)[:-5])
        first.eventually(lambda: first.in_flight == 1)
        first.signal()
        first.eventually(lambda: not first.uds.exists())
        with serving(folder, model, cache_dir=home / "cache") as second:
            busy.sock.sendall(encode("x" * 100)[-5:])
            assert busy.read().status == 200
            assert first.wait_exit() == 0
            assert Wire(second.connect(uds=True)).ask(encode("a")).status == 200
