"""Listening sockets: how they are opened, and how they are shut without losing a connection."""

from __future__ import annotations

import os
import socket
import stat
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from service.listeners import Listener, StartError, open_listeners
from service.options import ServiceOptions


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder with a short path: those of Unix sockets are limited."""
    with tempfile.TemporaryDirectory(prefix="sidetok-") as name:
        yield Path(name)


@pytest.fixture
def opened() -> Iterator[list[Listener]]:
    """Listeners that are closed in the end."""
    listeners: list[Listener] = []
    yield listeners
    for listener in listeners:
        listener.sock.close()


def options(path: Path | str = "", host: str = "127.0.0.1", mode: str = "0660", port: int = 0) -> ServiceOptions:
    """The options that say where to listen."""
    return ServiceOptions(host=host, port=port, uds=str(path), uds_mode=mode)


def test_addresses(folder: Path, opened: list[Listener]) -> None:
    """TCP and a Unix socket are opened together, a free port is chosen, and both have a printable address."""
    opened += open_listeners(options(folder / "s"))
    tcp, uds = opened
    port = tcp.sock.getsockname()[1]
    assert port > 0
    assert [listener.address for listener in opened] == [f"http://127.0.0.1:{port}", f"unix:{folder / 's'}"]
    assert stat.S_IMODE((folder / "s").stat().st_mode) == 0o660
    assert uds.file


def test_nothing_to_listen_on() -> None:
    """Without any address there is nothing to serve."""
    with pytest.raises(StartError, match="--host or --uds"):
        open_listeners(options(host=""))


@pytest.mark.parametrize("mode", ["rw", "0888", "-"])
def test_a_mode_is_octal(folder: Path, mode: str) -> None:
    """Permissions that are none are refused before anything is made."""
    with pytest.raises(StartError, match="--uds-mode"):
        open_listeners(options(folder / "s", host="", mode=mode))
    assert not (folder / "s").exists()


def test_the_umask_is_as_it_was(folder: Path, opened: list[Listener]) -> None:
    """Opening leaves the process's umask alone."""
    before = os.umask(0o027)
    try:
        opened += open_listeners(options(folder / "s", host="", mode="0666"))
        assert stat.S_IMODE((folder / "s").stat().st_mode) == 0o666
        assert os.umask(0o027) == 0o027
    finally:
        os.umask(before)


def test_a_taken_port(opened: list[Listener]) -> None:
    """A port where somebody listens is refused with advice."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        with pytest.raises(StartError, match=f"{port}.*--port"):
            open_listeners(options(port=port))


def test_an_unknown_host() -> None:
    """A host that is no address of this machine is named."""
    with pytest.raises(StartError, match=r"192\.0\.2\.1"):
        open_listeners(options(host="192.0.2.1"))


def test_a_stale_file_is_replaced_and_a_live_one_is_not(folder: Path, opened: list[Listener]) -> None:
    """The difference is whether anybody answers."""
    with socket.socket(socket.AF_UNIX) as old:
        old.bind(str(folder / "s"))
        old.listen()
        with pytest.raises(StartError, match="Another process"):
            open_listeners(options(folder / "s", host=""))
    assert (folder / "s").is_socket()
    opened += open_listeners(options(folder / "s", host=""))


def test_a_successors_file_stays(folder: Path, opened: list[Listener]) -> None:
    """`remove_file` removes what this process bound, and nothing else under that name."""
    for _ in range(20):  # the inode of the file is soon reused
        (first,) = open_listeners(options(folder / "s", host=""))
        first.shut()
        assert not (folder / "s").exists()
        (second,) = open_listeners(options(folder / "s", host=""))
        first.remove_file()
        assert (folder / "s").is_socket()
        opened += [first, second]
        (folder / "s").unlink()
        (third,) = open_listeners(options(folder / "s", host=""))
        second.remove_file()
        assert (folder / "s").is_socket()
        third.remove_file()
        opened.append(third)


@pytest.mark.parametrize("family", ["tcp", "uds"])
def test_a_shut_door_keeps_who_is_inside(folder: Path, opened: list[Listener], family: str) -> None:
    """After `shut` nobody gets in, while those who connected before can be accepted with what they sent."""
    opened += open_listeners(options(folder / "s", host="") if family == "uds" else options())
    (listener,) = opened
    listener.sock.listen(16)
    address = listener.sock.getsockname()
    clients = [socket.socket(listener.sock.family) for _ in range(5)]
    for i, client in enumerate(clients):
        client.connect(address)
        client.sendall(b"request %d" % i)
    listener.shut()
    with socket.socket(listener.sock.family) as late:
        late.settimeout(0.1)
        with pytest.raises((FileNotFoundError, TimeoutError)):
            late.connect(address)
    for i, client in enumerate(clients):
        server, _ = listener.sock.accept()
        assert server.recv(100) == b"request %d" % i
        server.sendall(b"answer")
        assert client.recv(100) == b"answer"
        server.close()
        client.close()


@pytest.fixture
def passed(folder: Path) -> Iterator[list[socket.socket]]:
    """Two sockets that listen, under the numbers that systemd gives to the first two."""
    with ExitStack() as stack:
        sockets = [stack.enter_context(socket.create_server(("127.0.0.1", 0))), socket.socket(socket.AF_UNIX)]
        stack.enter_context(sockets[1]).bind(str(folder / "s"))
        sockets[1].listen()
        yield sockets


def test_passed_sockets_are_all_there_is(folder: Path, passed: list[socket.socket]) -> None:
    """They keep their addresses, what the options say means nothing, and engine processes do not inherit them."""
    fds = [os.dup(sock.fileno()) for sock in passed]
    os.set_inheritable(fds[0], True)
    taken = open_listeners(options(folder / "other"), fds)
    port = passed[0].getsockname()[1]
    assert [listener.address for listener in taken] == [f"http://127.0.0.1:{port}", f"unix:{folder / 's'}"]
    assert not (folder / "other").exists()
    assert not os.get_inheritable(fds[0])
    for listener in taken:
        listener.shut()
        listener.remove_file()
        listener.sock.close()
    for sock in passed:
        with socket.socket(sock.family) as client:
            client.connect(sock.getsockname())


@pytest.mark.parametrize("kind", ["closed", "file", "datagram", "connected"])
def test_what_is_passed_must_listen(folder: Path, kind: str) -> None:
    """Anything else is refused, with the number of the descriptor."""
    if kind == "datagram":
        fd = socket.socket(socket.AF_INET, socket.SOCK_DGRAM).detach()
    elif kind == "connected":
        fd = socket.socketpair()[0].detach()
    else:
        fd = os.open(folder, os.O_RDONLY)
    if kind == "closed":
        os.close(fd)
    with pytest.raises(StartError, match=f"Descriptor {fd} "):
        open_listeners(options(), [fd])
    if kind == "file":
        os.close(fd)
