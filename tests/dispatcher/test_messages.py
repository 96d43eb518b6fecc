"""What a frontend and an engine process say to each other."""

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from dispatcher.gpu.messages import (
    COMPLETED,
    COMPLETED_PER_PACKET,
    MAX_PACKET,
    BadMessage,
    Fault,
    Hello,
    Load,
    Loaded,
    Progress,
    Refused,
    Report,
    Unload,
    read_report,
    receive_order,
    send_order,
    send_report,
)

Pair = tuple[socket.socket, socket.socket]


@pytest.fixture
def pair() -> Iterator[Pair]:
    """Both ends of a control stream."""
    ends = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    yield ends
    for end in ends:
        end.close()


@pytest.mark.parametrize(
    "report",
    [
        Hello(8, 1 << 40, 1 << 41, "NVIDIA H200"),
        Loaded(3, frozenset({0, 5, 63}), 1 << 40, 72, 1234),
        Loaded(0, frozenset(), 0, 0, 0),
        Refused(7, "no memory, sadly \u2013"),
        Fault(True, "no GPU"),
        Fault(False, ""),
        Progress(),
    ],
    ids=lambda report: type(report).__name__,
)
def test_reports_arrive_as_they_were_sent(pair: Pair, report: Report) -> None:
    """Every report survives the way."""
    send_report(pair[0], report)
    assert read_report(pair[1].recv(MAX_PACKET)) == report


def test_a_long_reason_is_cut() -> None:
    """A reason longer than a packet arrives as far as it fits."""
    left, right = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with left, right:
        send_report(left, Fault(False, "x" * 10_000))
        report = read_report(right.recv(MAX_PACKET))
    assert isinstance(report, Fault)
    assert 4000 < len(report.reason) < MAX_PACKET


def test_orders_bring_their_files(pair: Pair, tmp_path: Path) -> None:
    """The descriptors of a load are open on the other side, in order."""
    for name in ("tables", "arena"):
        (tmp_path / name).write_text(name)
    with (tmp_path / "tables").open() as tables, (tmp_path / "arena").open() as arena:
        send_order(pair[0], Load(3, "digest", tables.fileno(), arena.fileno()))
    order = receive_order(pair[1])
    assert isinstance(order, Load)
    assert (order.model, order.key) == (3, "digest")
    assert [os.read(fd, 10) for fd in (order.tables_fd, order.arena_fd)] == [b"tables", b"arena"]
    os.close(order.tables_fd)
    os.close(order.arena_fd)
    send_order(pair[0], Unload(3))
    assert receive_order(pair[1]) == Unload(3)
    pair[0].close()
    assert receive_order(pair[1]) is None


@pytest.mark.parametrize("packet", [b"x", b"\x63" + bytes(40), b"\x03" + bytes(8), b"\x04" + bytes(8)])
def test_nonsense_is_told_from_reports(packet: bytes) -> None:
    """A packet that is too short or of an unknown kind is no report."""
    with pytest.raises(BadMessage):
        read_report(packet)


def test_nonsense_is_told_from_orders(pair: Pair) -> None:
    """A load without its files, and what is no order, are refused."""
    for packet in (b"x", (1).to_bytes(4, "little") + bytes(4), (9).to_bytes(4, "little") + bytes(4)):
        pair[0].send(packet)
        with pytest.raises(BadMessage):
            receive_order(pair[1])


def test_completions_share_a_packet() -> None:
    """As many as there can be slots of a class under way fit into one packet."""
    assert COMPLETED.size == 40
    assert COMPLETED_PER_PACKET >= 64
