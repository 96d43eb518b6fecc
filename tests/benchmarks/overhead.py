"""What the service adds to an HTTP exchange: `/v1/encode` with 1 KiB against an empty endpoint and a bare ASGI echo.

    python -m tests.benchmarks.overhead [--seconds 2] [--rounds 5] [--json FILE]

All three run in one go, in turn, on the same machine, each in a server process of its own (uvicorn, uvloop, httptools),
with one client process that keeps N connections busy. The figures are medians over the rounds; the ratios are to the
bare echo at the same N.
"""

from __future__ import annotations

import argparse
import json
import os
import select
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

TEXT = (
    "The cache was warm, yet the first token came late: 119,204 tokens of context had to be cut again. "
    "She read the trace, found the tokenizer at the top, and laughed — nobody had ever looked there.\n"
)
BODY = (TEXT * 6).encode()[:1024]
CONNECTIONS = (1, 8, 64)
TARGET = 1.6


@dataclass(frozen=True)
class Case:
    """One thing to request."""

    name: str
    request: bytes


@dataclass(frozen=True)
class Figure:
    """One measurement: median and p99 latency in us, requests per second, server CPU in us per request."""

    p50_us: float
    p99_us: float
    per_second: float
    cpu_us: float


async def echo(
    scope: dict[str, Any], receive: Callable[[], Awaitable[Any]], send: Callable[[Any], Awaitable[None]]
) -> None:
    """The bare ASGI echo: the least that an HTTP service in Python can do."""
    message = await receive()
    body = message["body"]
    while message.get("more_body"):
        message = await receive()
        body += message["body"]
    headers = [(b"content-type", b"application/octet-stream"), (b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def serve_echo(port: int) -> None:
    """Run the echo under the same server settings as the service."""
    import uvicorn

    uvicorn.run(
        echo,
        port=port,
        loop="uvloop",
        http="httptools",
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        date_header=False,
        backlog=2048,
    )


def http_request(method: str, path: str, body: bytes = b"", content_type: str = "application/octet-stream") -> bytes:
    """The bytes of one HTTP/1.1 request. It has an id, so that no answer grows by the digits of one that is made."""
    head = f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nX-Request-Id: bench\r\n"
    if body:
        head += f"Content-Type: {content_type}\r\nContent-Length: {len(body)}\r\n"
    return head.encode() + b"\r\n" + body


def measure(port: int, pid: int, request: bytes, n_connections: int, seconds: float) -> Figure:
    """Keep `n_connections` busy for `seconds`; every answer must be a 200 of the length of the first one."""
    sockets = [socket.create_connection(("127.0.0.1", port)) for _ in range(n_connections)]
    length = _first_answer(sockets[0], request)
    poll = select.epoll()
    by_fd = {}
    for sock in sockets:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        by_fd[sock.fileno()] = sock
        poll.register(sock, select.EPOLLIN)
    latencies: list[int] = []
    sent_ns, missing = {}, {}
    cpu_s, start_ns = cpu_time_s(pid), time.perf_counter_ns()
    end_ns = start_ns + int(seconds * 1e9)
    for fd, sock in by_fd.items():
        sent_ns[fd], missing[fd] = time.perf_counter_ns(), length
        sock.send(request)
    while (now_ns := time.perf_counter_ns()) < end_ns:
        for fd, _ in poll.poll():
            sock = by_fd[fd]
            data = sock.recv(1 << 20)
            if missing[fd] == length and not data.startswith(b"HTTP/1.1 200"):
                raise RuntimeError(f"unexpected answer: {data[:200]!r}")
            missing[fd] -= len(data)
            if missing[fd] == 0:
                now_ns = time.perf_counter_ns()
                latencies.append(now_ns - sent_ns[fd])
                sent_ns[fd], missing[fd] = now_ns, length
                sock.send(request)
    elapsed_s = (now_ns - start_ns) * 1e-9
    cpu_s = cpu_time_s(pid) - cpu_s
    for sock in sockets:
        sock.close()
    latencies.sort()
    n = len(latencies)
    return Figure(latencies[n // 2] / 1e3, latencies[n * 99 // 100] / 1e3, n / elapsed_s, cpu_s / n * 1e6)


def _first_answer(sock: socket.socket, request: bytes) -> int:
    """Bytes of the answer, head included; answers to equal requests have equal lengths."""
    sizes = []
    for _ in range(20):
        sock.sendall(request)
        data = b""
        while b"\r\n\r\n" not in data:
            data += sock.recv(1 << 20)
        head, _, body = data.partition(b"\r\n\r\n")
        size = next(
            int(line.split(b":")[1]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length")
        )
        while len(body) < size:
            body += sock.recv(1 << 20)
        sizes.append(len(head) + 4 + size)
    return sizes[-1]


def cpu_time_s(pid: int) -> float:
    """User and system CPU time of a process so far."""
    with open(f"/proc/{pid}/stat") as stat:
        fields = stat.read().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@contextmanager
def server(*command: str, port: int) -> Iterator[int]:
    """A server process that answers on `port`; yields its pid."""
    process = subprocess.Popen([sys.executable, *command])
    try:
        _wait_until_ready(port, process)
        yield process.pid
    finally:
        process.terminate()
        process.wait(30)


def _wait_until_ready(port: int, process: subprocess.Popen[bytes]) -> None:
    until_s = time.monotonic() + 120
    while time.monotonic() < until_s:
        if process.poll() is not None:
            raise RuntimeError(f"the server on port {port} ended with {process.returncode}")
        try:
            with socket.create_connection(("127.0.0.1", port), 1) as sock:
                sock.sendall(http_request("GET", "/ready"))
                if sock.recv(4096).startswith(b"HTTP/1.1 200"):
                    return
        except OSError:
            pass
        time.sleep(0.1)
    raise RuntimeError(f"the server on port {port} is not ready")


def free_port() -> int:
    """A TCP port that nobody uses now."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def run(rounds: int, seconds: float) -> dict[str, dict[str, float]]:
    """Measure every case at every number of connections; prints the table and returns it."""
    echo_port, port = free_port(), free_port()
    encode = Case("encode, octet-stream", http_request("POST", "/v1/encode", BODY))
    body = json.dumps({"text": BODY.decode()}).encode()
    as_json = Case("encode, JSON", http_request("POST", "/v1/encode", body, "application/json"))
    bare = Case("bare echo", http_request("POST", "/", BODY))
    empty = Case("empty endpoint (/health)", http_request("GET", "/health"))
    table: dict[str, dict[str, float]] = {}
    with (
        server("-m", "tests.benchmarks.overhead", "--serve-echo", str(echo_port), port=echo_port) as echo_pid,
        server("-m", "service.cli", "serve", "--port", str(port), "--log-level", "warning", port=port) as pid,
    ):
        for n in CONNECTIONS:
            figures: dict[str, list[Figure]] = {}
            for _ in range(rounds):
                for case in (bare, encode, as_json, empty):
                    where = (echo_port, echo_pid) if case is bare else (port, pid)
                    figures.setdefault(case.name, []).append(measure(*where, case.request, n, seconds))
            _print_rows(n, figures, table)
    return table


def _print_rows(n: int, figures: dict[str, list[Figure]], table: dict[str, dict[str, float]]) -> None:
    columns = f"{'p50 us':>34} {'p99 us':>8} {'requests/s':>11} {'CPU us':>8} {'p50 ratio':>10} {'rate ratio':>11}"
    print(f"\n{n} connection{'s' * (n > 1)}: {columns}")
    base: dict[str, float] = {}
    for name, rounds in figures.items():
        row = {field: statistics.median(getattr(f, field) for f in rounds) for field in Figure.__dataclass_fields__}
        base = base or row
        row["p50_ratio"], row["rate_ratio"] = row["p50_us"] / base["p50_us"], base["per_second"] / row["per_second"]
        table[f"{name} x{n}"] = row
        print(
            f"  {name:<32} {row['p50_us']:>14.0f} {row['p99_us']:>8.0f} {row['per_second']:>11.0f} "
            f"{row['cpu_us']:>8.1f} {row['p50_ratio']:>9.2f}x {row['rate_ratio']:>10.2f}x"
        )


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", help="write the table to this file")
    parser.add_argument("--serve-echo", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve_echo:
        serve_echo(options.serve_echo)
        return
    table = run(options.rounds, options.seconds)
    if options.json:
        with open(options.json, "w") as file:
            json.dump(table, file, indent=1)
    worst = max(max(row["p50_ratio"], row["rate_ratio"]) for name, row in table.items() if "octet" in name)
    print(f"\nworst ratio of the octet-stream codec to the bare echo: {worst:.2f} (target: {TARGET})")


if __name__ == "__main__":
    main()
