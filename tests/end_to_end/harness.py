"""A service process under test, and plain sockets to talk to it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import orjson
from prometheus_client.parser import text_string_to_metric_families

LIMIT_S = 180.0
"""How long a test waits for what must happen; reaching it fails the test, so nothing depends on its value."""
MAIN = "import sys; from service.cli import main; sys.exit(main(sys.argv[1:]))"
PROGRAM = (sys.executable, "-c", MAIN, "serve")
ROOT = Path(__file__).resolve().parents[2]


def held_program(**constants: float) -> tuple[str, ...]:
    """The program with other constants, named like `service__server__GRACE_S`, and with holds; see `held_service`."""
    values = json.dumps({name.replace("__", "."): value for name, value in constants.items()})
    return sys.executable, "-m", "tests.end_to_end.held_service", values, "serve"


N_LAST_LINES = 30
"""Log lines that a failing test shows."""
Samples = dict[str, dict[tuple[tuple[str, str], ...], float]]


def environment() -> dict[str, str]:
    """The environment of the process: that of the tests without sidetok's own variables, and with this source first."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("SIDETOK_")}
    return {**kept, "PYTHONPATH": str(ROOT)}


class ServiceProcess:
    """`sidetok serve` with these arguments, on a free port and on a Unix socket of its own."""

    def __init__(
        self,
        folder: Path,
        *arguments: str,
        uds: Path | None = None,
        cache_dir: Path | None = None,
        program: Sequence[str] = PROGRAM,
        pass_fds: Sequence[int] = (),
    ) -> None:
        self.uds = uds or folder / "s"
        fixed = ("--port", "0", "--uds", str(self.uds), "--log-format", "json")
        cache = ("--cache-dir", str(cache_dir or folder / "cache"))
        self.process = subprocess.Popen(
            [*program, *fixed, *cache, *arguments],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            env=environment(),
            cwd=folder,
            pass_fds=tuple(pass_fds),
        )
        self.lines: list[str] = []
        """Everything on standard error so far."""
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        self.port = 0

    def wait_listening(self) -> ServiceProcess:
        """Wait until connections are accepted."""
        self.wait_said("listening")
        (self.port,) = {int(port) for port in re.findall(r"http://127\.0\.0\.1:(\d+)", "".join(self.lines))}
        self.eventually(self._accepts)
        return self

    def wait_ready(self) -> ServiceProcess:
        """Wait until the models are loaded."""
        self.wait_listening()
        self.wait_said("ready")
        return self

    def wait_said(self, message: str) -> None:
        """Wait for a log line with this message, in either style."""
        marks = (f'"message":"{message}"', f": {message} ")

        def said() -> bool:
            return any(mark in line for line in tuple(self.lines) for mark in marks)

        self.eventually(said)

    def eventually(self, happened: Callable[[], Any]) -> None:
        """Wait for what this process is about to do, or cause; not beyond its end."""

        def is_over() -> bool:
            # Looked at first: what it did in the end counts.
            has_ended = self.process.poll() is not None
            if has_ended:
                self._reader.join(LIMIT_S)
            if happened():
                return True
            assert not has_ended, "what the test waits for did not happen before the process ended"
            return False

        with self._explaining():
            eventually(is_over)

    def wait_logged(self, message: str) -> dict[str, Any]:
        """The first log line with this message."""
        self.wait_said(message)
        return self.logged(message)[0]

    def logged(self, message: str) -> list[dict[str, Any]]:
        """All log lines with this message so far."""
        records = [json.loads(line) for line in tuple(self.lines) if line.startswith("{")]
        return [record for record in records if record["message"] == message]

    def client(self, uds: bool = False) -> httpx.Client:
        """An HTTP client for this process."""
        transport = httpx.HTTPTransport(uds=str(self.uds)) if uds else None
        return httpx.Client(transport=transport, base_url=f"http://127.0.0.1:{self.port}", timeout=LIMIT_S)

    def connect(self, uds: bool = False) -> socket.socket:
        """A plain connection."""
        sock = socket.socket(socket.AF_UNIX if uds else socket.AF_INET, socket.SOCK_STREAM)
        sock.settimeout(LIMIT_S)
        sock.connect(str(self.uds) if uds else ("127.0.0.1", self.port))
        return sock

    def metrics(self) -> Samples:
        """Every sample of the exposition, by name and labels."""
        answers: list[httpx.Response] = []
        with self.client() as client:

            def answered() -> bool:
                answers.append(client.get("/metrics"))
                return answers[-1].status_code == 200

            # Where the keeper of frontends is held up, the answer is that it is.
            self.eventually(answered)
        samples: Samples = {}
        for family in text_string_to_metric_families(answers[-1].text):
            for sample in family.samples:
                samples.setdefault(sample.name, {})[tuple(sorted(sample.labels.items()))] = sample.value
        return samples

    @property
    def in_flight(self) -> float:
        """Requests in flight, as the metrics say."""
        return self.metrics()["sidetok_in_flight"][()]

    def signal(self, number: int = signal.SIGTERM) -> None:
        """Send a signal."""
        self.process.send_signal(number)

    def wait_exit(self) -> int:
        """The exit code."""
        with self._explaining():
            code = self.process.wait(LIMIT_S)
        self._reader.join(LIMIT_S)
        return code

    def stop(self) -> None:
        """End the process, whatever its state; an exception that is on its way is told what it said."""
        if (error := sys.exception()) is not None:
            self._explain(error)
        if self.process.poll() is None:
            self.process.kill()
        self.wait_exit()

    @contextlib.contextmanager
    def _explaining(self) -> Iterator[None]:
        try:
            yield
        except Exception as error:
            self._explain(error)
            raise

    def _explain(self, error: BaseException) -> None:
        """Add how the process ended, if it did, and what it said last."""
        if not hasattr(error, "__notes__"):
            code = self.process.poll()
            state = "The process under test runs" if code is None else f"The process under test ended with {code}"
            error.add_note(f"{state}; its last lines:\n{''.join(tuple(self.lines)[-N_LAST_LINES:])}")

    def _accepts(self) -> bool:
        with contextlib.suppress(OSError):
            self.connect().close()
            self.connect(uds=True).close()
            return True
        return False

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.lines.append(line.decode(errors="replace"))


@contextlib.contextmanager
def serving(folder: Path, *arguments: str, **more: Any) -> Iterator[ServiceProcess]:
    """A process that is ready, and is killed in the end if it still runs."""
    process = ServiceProcess(folder, *arguments, **more)
    try:
        yield process.wait_ready()
    finally:
        process.stop()


def eventually(happened: Callable[[], Any]) -> None:
    """Wait for what is about to happen; where a service does it, see `ServiceProcess.eventually`."""
    limit_s = time.monotonic() + LIMIT_S
    while not happened():
        assert time.monotonic() < limit_s, "what the test waits for did not happen"
        threading.Event().wait(0.005)


def request(body: bytes, path: str = "/v1/encode", method: str = "POST", **headers: str) -> bytes:
    """A request as it goes over the wire. Underscores in header names stand for dashes."""
    fields = {"host": "x", "content_length": str(len(body)), "content_type": "application/json", **headers}
    lines = [f"{name.replace('_', '-')}: {value}" for name, value in fields.items()]
    return "\r\n".join([f"{method} {path} HTTP/1.1", *lines, "", ""]).encode() + body


def encode(text: Any, **options: Any) -> bytes:
    """An encode request as it goes over the wire."""
    return request(orjson.dumps({"text": text, **options}))


@dataclass
class Response:
    """One answer as it came over the wire."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        """The body as JSON."""
        return orjson.loads(self.body)


class Closed(Exception):
    """The server closed the connection before, or inside, an answer."""


class Wire:
    """A blocking connection that reads whole answers."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self._buffer = b""

    def ask(self, data: bytes) -> Response:
        """Send a request and read its answer."""
        self.sock.sendall(data)
        return self.read()

    def read(self) -> Response:
        """The next answer; raises `Closed` when there is none."""
        while b"\r\n\r\n" not in self._buffer:
            self._more()
        head, self._buffer = self._buffer.split(b"\r\n\r\n", 1)
        response = parse_head(head)
        n_bytes = int(response.headers.get("content-length", 0))
        while len(self._buffer) < n_bytes:
            self._more()
        response.body, self._buffer = self._buffer[:n_bytes], self._buffer[n_bytes:]
        return response

    def closed(self) -> bool:
        """Whether the server ends the connection without a further byte; waits for it."""
        try:
            return self._buffer == b"" and self.sock.recv(1) == b""
        except ConnectionError:
            return True

    def close(self) -> None:
        """Close the connection."""
        self.sock.close()

    def _more(self) -> None:
        try:
            data = self.sock.recv(1 << 20)
        except ConnectionError as error:
            raise Closed from error
        if not data:
            raise Closed
        self._buffer += data


def parse_head(head: bytes) -> Response:
    """The head of an answer."""
    first, *lines = head.decode("latin-1").split("\r\n")
    return Response(int(first.split(" ")[1]), dict(line.lower().split(": ", 1) for line in lines), b"")


async def ask(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, data: bytes) -> Response:
    """Send a request over a kept connection and read its answer; raises `Closed` when there is none."""
    try:
        writer.write(data)
        await writer.drain()
        response = parse_head((await reader.readuntil(b"\r\n\r\n"))[:-4])
        response.body = await reader.readexactly(int(response.headers.get("content-length", 0)))
    except (ConnectionError, asyncio.IncompleteReadError) as error:
        raise Closed from error
    return response
