"""The end of a process: nothing that was sent completely is lost, and the exit is in time and clean."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tokenizers import Tokenizer as Reference

from service.server import LAST_S
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

SLOW_TEXT = "A document that keeps the reference busy, again and again. " * 40_000
"""About a second of work for the reference."""
SLOW = ("--cpu-engine=reference", "--max-reference-bytes=1GB")
GET_READY = request(b"", "/ready", "GET")


class Connection(Wire):
    """A connection that knows for how long it may have been idle."""

    idle_s = 0.0
    """When it was idle at the earliest, on the monotonic clock."""


class Clients:
    """Threads that ask without pause, on kept connections and on new ones, until they are refused.

    A connection that is idle for `LAST_S` may end. A thread that the machine held up for so long before it sent its
    request has no claim to an answer.
    """

    def __init__(self, service: ServiceProcess, reference: Reference) -> None:
        self._service = service
        self._texts = [f"request {i} " * (i % 7 + 1) for i in range(20)]
        self._expected = [reference.encode(text).ids for text in self._texts]
        self.n_answers = 0
        self._stopped = False
        self.wrong: list[object] = []
        self.lost: list[str] = []
        kinds: list[Callable[[bool], None]] = [self._keep, self._renew]
        self._threads = [threading.Thread(target=kind, args=(uds,)) for kind in kinds for uds in (False, True) * 3]
        for thread in self._threads:
            thread.start()

    def join(self) -> None:
        """Wait until every client was refused."""
        for thread in self._threads:
            thread.join(LIMIT_S)
            assert not thread.is_alive()

    def stop(self) -> None:
        """End every client after its next answer."""
        self._stopped = True
        self.join()

    def _keep(self, uds: bool) -> None:
        """Use a connection until the server says that it ends, then connect again."""
        while (wire := self._connect(uds)) is not None:
            while self._ask(wire, f"kept, uds={uds}"):
                pass
            wire.close()

    def _renew(self, uds: bool) -> None:
        """A connection for each request."""
        while (wire := self._connect(uds)) is not None:
            self._ask(wire, f"new, uds={uds}")
            wire.close()

    def _connect(self, uds: bool) -> Connection | None:
        if self._stopped:
            return None
        before_s = time.monotonic()
        try:
            wire = Connection(self._service.connect(uds))
        except (ConnectionRefusedError, FileNotFoundError):
            return None
        wire.idle_s = before_s
        return wire

    def _ask(self, wire: Connection, what: str) -> bool:
        """One request; whether the connection may be used again."""
        i, before_s = self.n_answers % 20, time.monotonic()
        try:
            wire.sock.sendall(encode(self._texts[i]))
        except OSError:
            return False  # not sent completely
        is_late = time.monotonic() - wire.idle_s >= LAST_S
        try:
            answer = wire.read()
        except Closed:
            if not is_late:
                self.lost.append(what)
            return False
        wire.idle_s = before_s
        if answer.status != 200 or answer.json["ids"] != self._expected[i]:
            self.wrong.append(answer)
        self.n_answers += 1
        return answer.headers.get("connection") != "close" and not self._stopped


@pytest.fixture
def _no_nohup() -> Iterator[None]:
    """Where the tests run with SIGHUP ignored, the service does not inherit that."""
    before = signal.signal(signal.SIGHUP, lambda number, frame: None)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.mark.parametrize(
    ("number", "frontends"),
    [(signal.SIGTERM, 1), (signal.SIGINT, 1), (signal.SIGHUP, 1), (signal.SIGTERM, 2), (signal.SIGHUP, 2)],
)
@pytest.mark.usefixtures("_no_nohup")
def test_nothing_is_lost(
    folder: Path, home: Path, model: str, reference: Reference, number: int, frontends: int
) -> None:
    """Under load from kept and new connections a signal loses no request that was sent completely; exit code 0."""
    with serving(folder, model, f"--frontends={frontends}", cache_dir=home / "cache") as service:
        clients = Clients(service, reference)
        service.eventually(lambda: clients.n_answers > 300)
        n_before = clients.n_answers
        if number == signal.SIGHUP:
            _hang_up(service)
        else:
            service.signal(number)
        assert service.wait_exit() == 0
        clients.join()
        assert clients.lost == []
        assert clients.wrong == []
        assert clients.n_answers > n_before
        assert service.logged("stopped")
        assert not service.uds.exists()


def _hang_up(service: ServiceProcess) -> None:
    """What a terminal that closes sends to all that runs in it, and the shell once more to what it started."""
    pid = service.process.pid
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    for each in [*map(int, children), pid, pid]:
        os.kill(each, signal.SIGHUP)


def test_work_in_flight_is_finished(folder: Path, home: Path, model: str, reference: Reference) -> None:
    """A long document, and one whose body is still arriving, are answered after the signal; readiness ends at once."""
    program, documents = held_program(service__server__GRACE_S=5.0), [f"until {folder / 'go'}", SLOW_TEXT]
    arguments = ("--cpu-engine=reference", "--drain-timeout=60")
    with serving(folder, model, *arguments, cache_dir=home / "cache", program=program) as service:
        slow, arriving, probe = (Wire(service.connect()) for _ in range(3))
        slow.sock.sendall(encode(documents))
        data = encode("still arriving")
        arriving.sock.sendall(data[:-5])
        service.eventually(lambda: service.in_flight == 2)
        assert probe.ask(GET_READY).status == 200
        service.signal()
        service.eventually(lambda: service.logged("draining"))
        ready = probe.ask(GET_READY)
        assert (ready.status, ready.json["status"]) == (503, "draining")
        late = Wire(service.connect())
        answer = late.ask(encode("late"))
        assert (answer.status, answer.headers["connection"]) == (200, "close")
        assert late.closed()
        service.eventually(lambda: _refused(service))
        arriving.sock.sendall(data[-5:])
        assert arriving.read().json["ids"] == reference.encode("still arriving").ids
        (folder / "go").touch()
        answer = slow.read()
        assert answer.json["ids"] == [reference.encode(document).ids for document in documents]
        assert answer.headers["connection"] == "close"
        assert service.wait_exit() == 0


def _refused(service: ServiceProcess) -> bool:
    try:
        service.connect(uds=True).close()
    except OSError:
        return True
    return False


def test_the_timeout_of_a_drain(folder: Path, home: Path, model: str) -> None:
    """What takes longer than the drain timeout is left behind; the exit code is 0, and nothing odd is printed."""
    with serving(folder, model, *SLOW, "--drain-timeout=2", cache_dir=home / "cache") as service:
        wire = Wire(service.connect())
        wire.sock.sendall(encode(SLOW_TEXT * 10))
        stalled = Wire(service.connect())
        stalled.sock.sendall(encode("x" * 1000)[:-10])
        service.eventually(lambda: service.in_flight == 2)
        service.signal()
        assert service.wait_exit() == 0
        for each in (wire, stalled):
            with pytest.raises(Closed):
                each.read()
        assert [line for line in service.lines if not line.startswith("{")] == []


def test_a_second_signal_ends_at_once(folder: Path, home: Path, model: str) -> None:
    """Who asks twice does not wait for what is in flight, which is never answered."""
    with serving(folder, model, *SLOW, "--drain-timeout=600", cache_dir=home / "cache") as service:
        wire = Wire(service.connect())
        wire.sock.sendall(encode(SLOW_TEXT * 10))
        service.eventually(lambda: service.in_flight == 1)
        service.signal()
        service.wait_logged("draining")
        service.signal()
        assert service.wait_exit() == 0
        with pytest.raises(Closed):
            wire.read()


def test_idle_connections_do_not_hold_up_the_exit(folder: Path, home: Path, model: str) -> None:
    """Connections without a request, new, used, or in the middle of a head, are closed."""
    # They would for longer than the exit is waited for.
    with serving(folder, model, f"--drain-timeout={10 * LIMIT_S:.0f}", cache_dir=home / "cache") as service:
        wires = [Wire(service.connect(bool(i % 2))) for i in range(6)]
        for wire in wires[2:]:
            assert wire.ask(encode("a")).status == 200
        for wire in wires[4:]:
            wire.sock.sendall(b"POST /v1/enc")
        service.signal()
        assert service.wait_exit() == 0
        assert all(wire.closed() for wire in wires)


@pytest.mark.parametrize(("delay_s", "frontends"), [(0.0, 1), (0.4, 1), (1.0, 1), (0.0, 2), (0.7, 2), (1.4, 2)])
def test_the_end_while_models_load(folder: Path, delay_s: float, frontends: int) -> None:
    """A signal while a model loads ends the process soon, with code 0; threads in native code do not abort it."""
    service = ServiceProcess(folder, f"--frontends={frontends}")
    try:
        service.wait_listening()
        threading.Event().wait(delay_s)
        service.signal()
        assert service.wait_exit() == 0
        assert [line for line in service.lines if not line.startswith("{")] == []
    finally:
        service.stop()
