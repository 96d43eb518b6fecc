"""Clients that die, stall, do not read, or ask too much: their work is dropped, and others are not disturbed."""

from __future__ import annotations

import contextlib
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import orjson
import pytest
from tokenizers import Tokenizer as Reference

from tests.end_to_end.harness import (
    LIMIT_S,
    Closed,
    ServiceProcess,
    Wire,
    encode,
    held_program,
    request,
    serving,
)

CLIENT = """
import socket, sys
sock = socket.socket(socket.AF_UNIX if sys.argv[1] == "uds" else socket.AF_INET)
sock.connect(sys.argv[2] if sys.argv[1] == "uds" else ("127.0.0.1", int(sys.argv[2])))
sock.sendall(sys.stdin.buffer.read())
print("sent", flush=True)
sock.recv(1)
"""
BOTH = pytest.mark.parametrize("uds", [False, True], ids=["tcp", "uds"])
SLOW_TEXT = "A document that keeps the reference busy, again and again. " * 8_000
"""About a fifth of a second of work for the reference."""


@pytest.fixture(scope="module")
def slow(home: Path, model: str) -> Iterator[ServiceProcess]:
    """A process whose engine is slow, and as slow as a test wants it."""
    arguments = ("--cpu-engine=reference", "--max-body-bytes=20MB")
    more: dict[str, Any] = {"uds": home / "slow", "cache_dir": home / "cache", "program": held_program()}
    with serving(home, model, *arguments, **more) as process:
        yield process


@contextlib.contextmanager
def dying_client(service: ServiceProcess, uds: bool, data: bytes) -> Iterator[None]:
    """A client process that sends all of this and waits; it is killed at the end."""
    where = ("uds", str(service.uds)) if uds else ("tcp", str(service.port))
    process = subprocess.Popen([sys.executable, "-c", CLIENT, *where], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(data)
    process.stdin.close()
    assert process.stdout.readline() == b"sent\n"
    try:
        yield
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait(LIMIT_S)
        process.stdout.close()


@contextlib.contextmanager
def undisturbed(service: ServiceProcess, reference: Reference) -> Iterator[None]:
    """Another client that asks all the while, and gets every answer right."""
    stop = threading.Event()
    texts = [f"small request {i} " * (i % 5) for i in range(20)]
    expected = [reference.encode(text).ids for text in texts]
    wrong: list[object] = []

    def ask() -> None:
        wire = Wire(service.connect())
        i = 0
        while not stop.is_set():
            try:
                got = wire.ask(encode(texts[i % 20])).json["ids"]
            except Exception as error:
                got = error
            if got != expected[i % 20]:
                wrong.append(got)
                return
            i += 1
        wire.close()

    thread = threading.Thread(target=ask)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join(LIMIT_S)
    assert wrong == []


def encode_cpu_s(service: ServiceProcess) -> float:
    """CPU time of encoding."""
    parts = service.metrics().get("sidetok_host_cpu_seconds_total", {})
    return sum(value for key, value in parts.items() if dict(key)["part"] == "encode")


def cancelled(service: ServiceProcess) -> float:
    """Requests counted as cancelled."""
    counts = service.metrics().get("sidetok_request_duration_seconds_count", {})
    return sum(value for key, value in counts.items() if dict(key)["outcome"] == "cancelled")


@BOTH
def test_a_client_killed_while_it_sends(slow: ServiceProcess, reference: Reference, uds: bool) -> None:
    """Half an upload of a killed client holds a slot and its bytes until the client is gone, and not longer."""
    before = cancelled(slow)
    data = encode("x" * 2_000_000)
    with undisturbed(slow, reference):
        with dying_client(slow, uds, data[: len(data) // 2]):
            slow.eventually(lambda: slow.metrics()["sidetok_in_flight_bytes"][()] >= 2_000_000)
        slow.eventually(lambda: slow.metrics()["sidetok_in_flight_bytes"][()] < 2_000_000)
    slow.eventually(lambda: slow.in_flight == 0)
    assert cancelled(slow) == before + 1


@BOTH
def test_a_client_killed_while_it_waits(slow: ServiceProcess, reference: Reference, folder: Path, uds: bool) -> None:
    """A long batch of a killed client stops at its next document."""
    before, go = cancelled(slow), folder / "go"
    cpu_s = time.thread_time()
    reference.encode(SLOW_TEXT)
    one_s = time.thread_time() - cpu_s
    with undisturbed(slow, reference):
        with dying_client(slow, uds, encode([f"until {go}", *[SLOW_TEXT] * 30])):
            slow.eventually(lambda: slow.metrics()["sidetok_in_flight_bytes"][()] >= len(SLOW_TEXT))
        slow.eventually(lambda: cancelled(slow) == before + 1)
        cpu_s = encode_cpu_s(slow)
        go.touch()
        slow.eventually(lambda: slow.metrics()["sidetok_in_flight_bytes"][()] < len(SLOW_TEXT))
    slow.eventually(lambda: slow.in_flight == 0)
    # All thirty would cost as much each.
    assert encode_cpu_s(slow) - cpu_s < 10 * one_s


@BOTH
def test_a_client_that_half_closes(slow: ServiceProcess, uds: bool) -> None:
    """A client that shuts its side down and goes away later leaves nothing behind."""
    sock = slow.connect(uds)
    sock.sendall(encode("a")[:-1])
    sock.shutdown(socket.SHUT_WR)
    slow.eventually(lambda: slow.in_flight == 0)
    sock.close()


def test_many_clients_killed_at_once(slow: ServiceProcess, reference: Reference) -> None:
    """Forty connections that break off in every state at once leave no slot taken."""
    data = encode([SLOW_TEXT[:50_000]] * 3)
    with undisturbed(slow, reference):
        socks = [slow.connect(bool(i % 2)) for i in range(40)]
        for i, sock in enumerate(socks):
            sock.sendall((data * 2)[: i * len(data) // 20])
        for sock in socks:
            sock.close()
    slow.eventually(lambda: slow.in_flight == 0)
    assert slow.metrics()["sidetok_in_flight_bytes"][()] == 0


def test_a_stalled_upload_is_ended(slow: ServiceProcess) -> None:
    """A slow-loris body is answered 504 at its deadline, while its client still holds the connection."""
    wire = Wire(slow.connect())
    wire.sock.sendall(request(b"x" * 1000, x_request_timeout="0.2")[:-500])
    answer = wire.read()
    assert (answer.status, answer.headers["connection"]) == (504, "close")
    assert slow.in_flight == 0
    wire.close()


def test_a_deadline_while_waiting(slow: ServiceProcess, reference: Reference, folder: Path) -> None:
    """A request that takes longer than its client wants to wait is 504 in time, and the connection goes on."""
    wire, go = Wire(slow.connect()), folder / "go"
    # So short that it comes with its head, however late that is: an upload that is late ends its connection.
    body = orjson.dumps({"text": f"until {go}"})
    answer = wire.ask(request(body, x_request_timeout="0.1"))
    assert answer.status == 504
    assert int(answer.headers["retry-after"]) >= 1
    assert wire.ask(encode("next")).json["ids"] == reference.encode("next").ids
    go.touch()
    slow.eventually(lambda: slow.in_flight == 0)


def test_a_client_that_does_not_read(slow: ServiceProcess, reference: Reference) -> None:
    """Answers that nobody reads do not pile up: the service stops reading that client, and serves the others."""
    data = encode("some words " * 20_000)
    for _ in range(3):  # what the same work takes for clients that read
        readers = [Wire(slow.connect()) for _ in range(8)]
        for wire in readers:
            wire.sock.sendall(data)
        assert [wire.read().status for wire in readers] == [200] * 8
    before = slow.metrics()["process_resident_memory_bytes"][()]
    sock = slow.connect()
    sock.settimeout(0.5)
    n_sent = 0
    with undisturbed(slow, reference), contextlib.suppress(TimeoutError):
        while n_sent < 400 * len(data):
            n_sent += sock.send(data[n_sent % len(data) :])
    assert n_sent < 400 * len(data)
    assert slow.metrics()["process_resident_memory_bytes"][()] - before < 60_000_000
    sock.close()
    slow.eventually(lambda: slow.in_flight == 0)


@pytest.fixture(scope="module")
def tight(home: Path, model: str) -> Iterator[ServiceProcess]:
    """A process with narrow limits, which whoever comes first may use up."""
    limits = ("--max-in-flight=2", "--max-body-bytes=1MB", "--max-in-flight-bytes=1MB", "--fair-above=1")
    arguments = ("--cpu-engine=reference", *limits)
    # However long a client takes to send what is refused.
    program = held_program(service__hot_cycle__LINGER_S=LIMIT_S)
    more: dict[str, Any] = {"uds": home / "tight", "cache_dir": home / "cache", "program": program}
    with serving(home, model, *arguments, **more) as process:
        yield process


@BOTH
@pytest.mark.parametrize("chunked", [False, True], ids=["length", "chunked"])
@pytest.mark.parametrize("n_bytes", [1_000_001, 30_000_000])
def test_a_body_over_the_limit(tight: ServiceProcess, uds: bool, chunked: bool, n_bytes: int) -> None:
    """A client that sends all of a body over the limit can read its 413 in the end."""
    wire = Wire(tight.connect(uds))
    if chunked:
        wire.sock.sendall(b"POST /v1/encode HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n")
        piece = b"%x\r\n%b\r\n" % (100_000, b"x" * 100_000)
        for _ in range(n_bytes // 100_000 + 1):
            wire.sock.sendall(piece)
        wire.sock.sendall(b"0\r\n\r\n")
    else:
        wire.sock.sendall(request(b"x" * n_bytes))
    answer = wire.read()
    assert (answer.status, answer.headers["connection"]) == (413, "close")
    assert "1000000 bytes" in answer.json["error"]["message"]
    assert wire.closed()
    assert tight.in_flight == 0


def test_a_body_at_the_limit(tight: ServiceProcess) -> None:
    """A body of exactly the limit is read."""
    body = orjson.dumps({"text": ""}).ljust(1_000_000)
    assert Wire(tight.connect()).ask(request(body)).status == 200


def test_expect_continue(tight: ServiceProcess) -> None:
    """A client that asks first is told to go on, or is refused before it sends anything."""
    wire = Wire(tight.connect())
    head, body = request(orjson.dumps({"text": "a"}), expect="100-continue").split(b"\r\n\r\n")
    wire.sock.sendall(head + b"\r\n\r\n")
    assert wire.read().status == 100
    assert wire.ask(body).status == 200
    wire.sock.sendall(request(b"", expect="100-continue").replace(b"content-length: 0", b"content-length: 9999999"))
    assert wire.read().status == 413
    assert wire.closed()


@BOTH
def test_too_much_at_once_is_shed(tight: ServiceProcess, uds: bool) -> None:
    """While the service is busy further requests are 429 with Retry-After; afterwards it takes requests again."""
    held = [Wire(tight.connect(uds)) for _ in range(2)]
    for wire in held:
        wire.sock.sendall(encode(["words and words " * 100] * 300)[:-1])
    tight.eventually(lambda: tight.in_flight == 2)
    shed = [Wire(tight.connect(uds)).ask(encode("a")) for _ in range(5)]
    assert [answer.status for answer in shed] == [429] * 5
    assert all(int(answer.headers["retry-after"]) >= 1 for answer in shed)
    for wire in held:
        wire.sock.sendall(b"}")
    assert [wire.read().status for wire in held] == [200, 200]
    assert Wire(tight.connect(uds)).ask(encode("a")).status == 200
    assert tight.metrics()["sidetok_shed_total"][(("reason", "requests"),)] >= 5


def test_bytes_in_flight_are_bounded(tight: ServiceProcess) -> None:
    """While large bodies arrive others are 429, whether they announce their size or not."""
    held = Wire(tight.connect())
    held.sock.sendall(request(b" " * 900_000)[:-10])
    tight.eventually(lambda: tight.metrics()["sidetok_in_flight_bytes"][()] == 900_000)
    assert Wire(tight.connect()).ask(encode("x" * 150_000)).status == 429
    chunk = b"%x\r\n%b\r\n" % (150_000, b" " * 150_000)
    head = b"POST /v1/encode HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n"
    assert Wire(tight.connect()).ask(head + chunk + b"0\r\n\r\n").status == 429
    assert Wire(tight.connect()).ask(encode("small")).status == 200
    held.close()
    tight.eventually(lambda: tight.in_flight == 0)
    assert tight.metrics()["sidetok_shed_total"][(("reason", "bytes"),)] == 2


def test_large_bodies_leave_nothing_behind(slow: ServiceProcess) -> None:
    """Hundreds of megabytes of refused, failed and answered bodies on kept connections do not stay in memory."""
    wires = [Wire(slow.connect(bool(i % 2))) for i in range(20)]
    bodies = [
        request(b'{"text": "' + b"x" * 4_000_000 + b'\xff"}'),
        request(b"[" + b" " * 4_000_000),
        request(b" " * 4_000_000, content_type="application/msgpack"),
    ]

    def flood() -> float:
        for i, wire in enumerate(wires):
            assert wire.ask(bodies[i % 3]).status == 400
        return slow.metrics()["process_resident_memory_bytes"][()]

    flood()
    before = flood()
    for _ in range(3):
        after = flood()
    assert after - before < 50_000_000
    for wire in wires:
        with contextlib.suppress(Closed):
            assert wire.ask(encode("still here")).status == 200
        wire.close()
