"""The open-loop client against servers that behave and servers that do not: it reports, and it never hangs."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest

from loadtest import client as client_module
from loadtest.api import NativeOctets
from loadtest.client import (
    CANNOT_CONNECT,
    CLOSED,
    MALFORMED,
    NOT_SENT,
    REQUEST_BYTES,
    TIMED_OUT,
    Client,
    Record,
)
from loadtest.plan import Plan, PlanBuilder
from loadtest.pool import Pool, write_pool
from loadtest.target import Target, parse_target
from loadtest.wire import Buffer, HttpWire
from tests.engine_rig import until
from tests.loadtest.fake_server import FakeServer, Reply, faking, http, ids_of_bytes

MS = 1_000_000
N = 20


@pytest.fixture
def pool(tmp_path: Path) -> Pool:
    """A pool of one text."""
    return write_pool(tmp_path, {"a": b"some text " * 1000}, 3_000_000)


def planned(pool: Pool, n: int = N, gap_ms: float = 2.0, n_bytes: int = 50) -> Plan:
    """Requests at constant gaps, every answer checked."""
    start, length = pool.windows("a", np.arange(n), np.full(n, n_bytes), 1)
    builder = PlanBuilder()
    builder.add("a", (np.arange(n) * gap_ms * MS).astype(np.int64), start, length)
    plan = builder.build()
    plan.checked[:] = True
    return plan


TIMEOUT_S = 30.0


class Clock:
    """The time as it is, and as if everything had timed out once something has happened."""

    def __init__(self, is_late: Callable[[], bool]) -> None:
        self._is_late = is_late

    def monotonic_ns(self) -> int:
        """See `time`."""
        return time.monotonic_ns() + (int(2 * TIMEOUT_S * 1e9) if self._is_late() else 0)


def run(
    plan: Plan, pool: Pool, target: Target, connections: int = 8, is_late: Callable[[Client], bool] = lambda _: False
) -> Record:
    """Send the plan now. All that is not answered when `is_late` is true has timed out then."""
    client = Client(
        plan, pool, target, HttpWire(target.authority), NativeOctets(""), connections=connections, timeout_s=TIMEOUT_S
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(client_module, "time", Clock(lambda: is_late(client)))
        return client.run(time.monotonic_ns())


def target_of(server: FakeServer) -> Target:
    """Its address."""
    return parse_target(f"http://127.0.0.1:{server.port}")


def right(number: int, body: bytes) -> Reply:
    """A server that works."""
    return http(200, ids_of_bytes(body))


def test_right_answers(pool: Pool) -> None:
    """Every request is answered, in order of time, over kept connections; the answers are those of its text."""
    plan = planned(pool)
    with faking(right) as server:
        record = run(plan, pool, target_of(server))
    assert record.outcome.tolist() == [200] * N
    assert (record.sent_ns >= plan.at_ns).all()
    assert (record.done_ns > record.sent_ns).all()
    assert record.n_bytes.tolist() == (plan.length * 4).tolist()
    assert record.n_connections <= 8
    for row, answer in record.answers.items():
        text = pool.text(*plan.documents(row)[0])
        assert NativeOctets("").ids(0, answer)[0].tolist() == list(text)
    assert len(record.answers) == N


def test_large_bodies_both_ways(pool: Pool) -> None:
    """What does not fit into the sockets' buffers is sent and read piece by piece."""
    plan = planned(pool, n=3, n_bytes=2_000_000)
    with faking(right) as server:
        record = run(plan, pool, target_of(server))
    assert record.outcome.tolist() == [200] * 3
    assert record.n_bytes.tolist() == (plan.length * 4).tolist()


def test_a_slow_answer_delays_no_other_start(pool: Pool) -> None:
    """The schedule is kept while an answer is missing: that is what open loop means."""

    others = threading.Event()

    def script(number: int, body: bytes) -> Reply:
        if number == N - 1:
            others.set()
        return right(number, body) if number > 0 or others.wait(10) else b""

    with faking(script) as server:
        record = run(planned(pool), pool, target_of(server))
    assert record.outcome.tolist() == [200] * N


def test_latency_of_requests_that_wait_for_a_connection(pool: Pool) -> None:
    """With one connection a request may be sent late; its time counts from when it was meant to start."""
    plan = planned(pool, n=5, gap_ms=0.0)
    with faking(right) as server:
        record = run(plan, pool, target_of(server), connections=1)
    assert record.outcome.tolist() == [200] * 5
    assert record.n_connections == 1
    assert (np.diff(record.sent_ns) > 0).all()
    assert ((record.done_ns - plan.at_ns) >= record.done_ns[0]).all()


class WatchedOctets(NativeOctets):
    """Says when the body of another request than the first has been made."""

    def __init__(self) -> None:
        super().__init__("")
        self.n_made = 0
        self.made_another = threading.Event()

    def body(self, kind: int, documents: Sequence[memoryview]) -> list[Buffer]:
        """See `NativeOctets`."""
        self.n_made += 1
        if self.n_made > 1:
            self.made_another.set()
        return super().body(kind, documents)


def test_the_next_request_is_made_while_its_connection_is_busy(pool: Pool) -> None:
    """A server that answers only when the next request has been made is asked all the same; each is made once."""
    plan, api = planned(pool, n=2, gap_ms=0), WatchedOctets()

    def script(number: int, body: bytes) -> Reply:
        return right(number, body) if api.made_another.wait(10) else b""

    with faking(script) as server:
        target = target_of(server)
        client = Client(plan, pool, target, HttpWire(target.authority), api, connections=1, timeout_s=30)
        record = client.run(time.monotonic_ns())
    assert record.outcome.tolist() == [200, 200]
    assert api.n_made == 2
    assert [bytes(record.answers[row].body[0][:4]) for row in (0, 1)] == [
        ids_of_bytes(bytes(pool.text(*plan.documents(row)[0])))[:4] for row in (0, 1)
    ]


@pytest.mark.parametrize(("n_bytes", "n_made"), [(0, 0), (1, 1), (2 * REQUEST_BYTES + 500, 3), (1 << 30, N)])
def test_requests_that_are_made_before_the_start(n_bytes: int, n_made: int, pool: Pool) -> None:
    """The first ones, for some bytes of memory; each request is made once, and its answer is that of its text."""
    plan, api = planned(pool, gap_ms=0.0, n_bytes=100), WatchedOctets()
    with faking(right) as server:
        target = target_of(server)
        client = Client(plan, pool, target, HttpWire(target.authority), api, connections=2, timeout_s=30.0)
        client.prepare(n_bytes)
        assert api.n_made == n_made
        record = client.run(time.monotonic_ns())
    assert api.n_made == N
    assert record.outcome.tolist() == [200] * N
    assert client._made == {}
    for row, answer in record.answers.items():
        assert api.ids(0, answer)[0].tolist() == list(pool.text(*plan.documents(row)[0]))


SHORT_REQUESTS = """
import resource, sys
from pathlib import Path
from loadtest.api import NativeJson
from loadtest.client import Client
from loadtest.pool import write_pool
from loadtest.target import parse_target
from loadtest.wire import HttpWire
from tests.loadtest.test_client import planned

def resident_bytes():
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()

pool, target = write_pool(Path(sys.argv[1]), {"a": b"some text " * 1000}, 1000), parse_target("unix:/none")
plan = planned(pool, n=40_000, n_bytes=20)
client = Client(plan, pool, target, HttpWire(""), NativeJson(""), connections=1, timeout_s=1.0)
before = resident_bytes()
client.prepare(16 << 20)
print(resident_bytes() - before)
"""


def test_memory_of_short_requests(tmp_path: Path) -> None:
    """However short they are, those that are made before the start take no more memory than they may."""
    # In a process of its own, where nobody left memory that could be taken first.
    command = [sys.executable, "-c", SHORT_REQUESTS, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert 4 << 20 < int(done.stdout) < 20 << 20


def test_no_request_waits_inside_the_client(pool: Pool, tmp_path: Path) -> None:
    """The next one is not made while a part of one is still to be sent: that would count as the server's time."""
    plan, target = planned(pool, n=3, gap_ms=0, n_bytes=2_000_000), parse_target(f"unix:{tmp_path / 's'}")
    was_sending: list[bool] = []

    class Octets(NativeOctets):
        def body(self, kind: int, documents: Sequence[memoryview]) -> list[Buffer]:
            was_sending.append(client.is_sending)
            return super().body(kind, documents)

    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(str(tmp_path / "s"))
        listener.listen()
        with faking(right, listener):
            client = Client(plan, pool, target, HttpWire("x"), Octets(""), connections=1, timeout_s=30)
            record = client.run(time.monotonic_ns())
    assert record.outcome.tolist() == [200] * 3
    assert was_sending == [False] * 3
    assert not client.is_sending


@pytest.mark.parametrize("status", [400, 429, 500, 503])
def test_refusals(status: int, pool: Pool) -> None:
    """A refusal is an outcome, and the connection goes on."""
    with faking(lambda number, body: http(status, b'{"error": {}}')) as server:
        record = run(planned(pool), pool, target_of(server))
    assert record.outcome.tolist() == [status] * N
    assert record.answers == {}


@pytest.mark.parametrize(
    ("reply", "outcome"),
    [
        (b"", CLOSED),
        (b"HTTP/1.1 200 OK\r\nContent-Le", TIMED_OUT),
        (http(200, b"abcd")[:-1], TIMED_OUT),
        (b"what is this?\r\n\r\n", MALFORMED),
        (b"\xff" * 100, MALFORMED),
        (None, TIMED_OUT),
    ],
)
def test_broken_answers(reply: Reply, outcome: int, pool: Pool) -> None:
    """Half answers, no answers and nonsense are told apart, and none is waited for beyond the timeout."""
    with faking(lambda number, body: reply) as server:
        target = target_of(server)
        record = run(planned(pool), pool, target, N, lambda _: outcome == TIMED_OUT and server.n_requests == N)
    assert record.outcome.tolist() == [outcome] * N


def test_an_answer_that_is_too_long(pool: Pool) -> None:
    """Bytes behind an answer end the connection; the requests after it use others and are answered."""
    with faking(lambda number, body: http(200, ids_of_bytes(body)) + (b"more" if number == 3 else b"")) as server:
        record = run(planned(pool), pool, target_of(server))
    assert (record.outcome == 200).sum() >= N - 1
    assert set(record.outcome.tolist()) <= {200, MALFORMED, CLOSED}


def test_connections_that_the_server_ends(pool: Pool) -> None:
    """`Connection: close` costs a connection for each request and nothing else."""
    with faking(lambda number, body: http(200, ids_of_bytes(body), "Connection: close")) as server:
        record = run(planned(pool), pool, target_of(server))
    assert record.outcome.tolist() == [200] * N
    assert record.n_connections == N


def test_a_server_that_dies(pool: Pool) -> None:
    """Requests on the way are lost, later ones cannot connect; all are accounted for, and the run ends."""

    dead = threading.Event()

    def script(number: int, body: bytes) -> Reply:
        if number == N // 2:
            until(lambda: server.n_answers == N // 2)
            server.stop()
            dead.set()
        return right(number, body) if number < N // 2 or dead.wait(10) else b""

    with faking(script) as server:
        record = run(planned(pool), pool, target_of(server))
    outcomes = record.outcome.tolist()
    assert outcomes.count(200) == N // 2
    assert outcomes.count(CANNOT_CONNECT) >= 1
    assert set(outcomes) <= {200, CLOSED, CANNOT_CONNECT}
    assert (record.done_ns > 0).all()


def test_nobody_listens(pool: Pool, tmp_path: Path) -> None:
    """Without a server each request fails at once, over TCP and over a Unix socket."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    for target in (parse_target(f"http://127.0.0.1:{port}"), parse_target(f"unix:{tmp_path / 'none'}")):
        client = Client(planned(pool), pool, target, HttpWire(""), NativeOctets(""), connections=8, timeout_s=TIMEOUT_S)
        client.prepare(1 << 30)
        assert client.run(time.monotonic_ns()).outcome.tolist() == [CANNOT_CONNECT] * N
        assert client._made == {}


def test_no_connection_becomes_free(pool: Pool) -> None:
    """Requests that never got a connection are said not to have been sent."""
    with faking(lambda number, body: None) as server:
        plan, target = planned(pool, gap_ms=0.0), target_of(server)
        record = run(plan, pool, target, connections=1, is_late=lambda _: server.n_requests == 1)
    assert sorted(record.outcome.tolist()) == [NOT_SENT] * (N - 1) + [TIMED_OUT]
    assert (record.sent_ns[record.outcome == NOT_SENT] == 0).all()


def test_a_full_queue_of_connections(pool: Pool, tmp_path: Path) -> None:
    """A Unix socket that accepts nobody keeps requests waiting; they are given up in time."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        listener.bind(str(tmp_path / "s"))
        listener.listen(1)
        target = parse_target(f"unix:{tmp_path / 's'}")
        record = run(planned(pool), pool, target, N, lambda client: client.record.n_connections > 1)
    outcomes = record.outcome.tolist()
    assert set(outcomes) == {TIMED_OUT, NOT_SENT}
    assert record.n_connections < N


def test_an_empty_plan(pool: Pool) -> None:
    """Nothing to send is done at once."""
    plan = PlanBuilder().build()
    with faking(right) as server:
        record = run(plan, pool, target_of(server))
    assert len(record.outcome) == 0
    assert server.n_requests == 0
