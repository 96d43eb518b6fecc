"""A service under load of every kind that the dashboard has a panel for, and a Prometheus that watches it."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx

from tests.data import EMBEDDED, corpora, tokenizer_json
from tests.deploy.conftest import DEPLOY
from tests.end_to_end.gpu_harness import FLAGS, engine_pids, gpu_program
from tests.end_to_end.harness import Closed, ServiceProcess, Wire, encode, eventually, request, serving

SCRAPE_S = 1
LIMITS = ("--max-in-flight=24", "--cpu-workers=2", "--shadow-check=0.05")
Work = Callable[[Wire, int], object]


class Prometheus:
    """The real server over a service: scraped each second, with the rules of `deploy/prometheus`."""

    def __init__(self, program: str, folder: Path, port: int) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            own = free.getsockname()[1]
        config = {
            "global": {"scrape_interval": f"{SCRAPE_S}s", "evaluation_interval": f"{SCRAPE_S}s"},
            "rule_files": [str(DEPLOY / "prometheus" / "rules.yaml")],
            "scrape_configs": [{"job_name": "sidetok", "static_configs": [{"targets": [f"127.0.0.1:{port}"]}]}],
        }
        # JSON is YAML.
        (folder / "prometheus.yaml").write_text(json.dumps(config))
        flags = (f"--config.file={folder / 'prometheus.yaml'}", f"--storage.tsdb.path={folder / 'series'}")
        command = (program, *flags, f"--web.listen-address=127.0.0.1:{own}", "--log.level=error")
        self._process = subprocess.Popen(command, cwd=folder)
        self._client = httpx.Client(base_url=f"http://127.0.0.1:{own}", timeout=30)
        eventually(self._is_ready)

    def series(self, expression: str, start_s: float, end_s: float) -> list[dict[str, Any]]:
        """What an expression gives in each second; `metric` has the labels, `values` pairs of time and text."""
        parameters = {"query": expression, "start": str(start_s), "end": str(end_s), "step": str(SCRAPE_S)}
        answer = self._client.get("/api/v1/query_range", params=parameters).raise_for_status().json()
        found: list[dict[str, Any]] = answer["data"]["result"]
        return found

    def close(self) -> None:
        """End the server."""
        self._client.close()
        self._process.terminate()
        self._process.wait(30)

    def _is_ready(self) -> bool:
        with contextlib.suppress(httpx.HTTPError):
            return self._client.get("/-/ready").status_code == 200
        return False


@contextlib.contextmanager
def busy_service(folder: Path, still: threading.Event) -> Iterator[ServiceProcess]:
    """A service with two models and a GPU route on the host, asked by clients of many kinds until `still` is set."""
    models = []
    for name, family in (("small", "byte_bpe"), ("deepseek-v4", EMBEDDED)):
        (folder / f"{name}.json").write_bytes(tokenizer_json(family))
        models.append(f"--model={name}={folder / f'{name}.json'}")
    with serving(folder, *models, *LIMITS, *FLAGS, program=gpu_program(folder)) as service:
        service.eventually(lambda: gpu_serves(service))
        clients = [threading.Thread(target=ask, args=(service, work, still)) for work in works()]
        for client in clients:
            client.start()
        try:
            yield service
        finally:
            still.set()
            for client in clients:
                client.join()


def gpu_serves(service: ServiceProcess) -> bool:
    """Whether the GPU route takes documents of a model."""
    with service.client() as client:
        return any(model["routes"]["gpu"]["serves"] for model in client.get("/v1/models").json()["data"])


def works() -> list[Work]:
    """What each client does again and again, with the number of its turn."""
    text = next(iter(corpora().values()))

    def piece(turn: int, n_chars: int) -> str:
        start = turn * 977 % max(1, len(text) - n_chars)
        return text[start : start + n_chars]

    short = [lambda wire, turn: wire.ask(encode(piece(turn, 400), model="small", route="auto"))] * 3
    on_gpu = [lambda wire, turn: wire.ask(encode(piece(turn, 900 + 40 * turn % 3000), model="small", route="gpu"))] * 4
    return [
        *short,
        *on_gpu,
        lambda wire, turn: wire.ask(
            encode([piece(turn + i, 700) for i in range(turn % 9 + 1)], model="small", route="gpu")
        ),
        lambda wire, turn: wire.ask(encode(piece(turn, 4000), model="deepseek-v4")),
        lambda wire, turn: wire.ask(encode(piece(turn, 60_000), model="deepseek-v4")),
        # Too late, wrong, and more at once than is taken: what an operator wants to see when it happens.
        lambda wire, turn: (pause(0.2), wire.ask(late(piece(turn, 60_000)))),
        lambda wire, turn: (pause(0.1), wire.ask(encode(5))),
    ]


def late(text: str) -> bytes:
    """A request that has less time than it takes."""
    return request(json.dumps({"text": text, "model": "deepseek-v4"}).encode(), x_request_timeout="0.002")


def pause(seconds: float) -> bool:
    """Let others work."""
    return threading.Event().wait(seconds)


def ask(service: ServiceProcess, work: Work, still: threading.Event) -> None:
    """Work on a kept connection until there is stillness; a connection that the service closed is opened again."""
    wire, turn = Wire(service.connect()), 0
    while not still.is_set():
        turn += 1
        try:
            work(wire, turn)
        except Closed:
            wire = Wire(service.connect())
    wire.close()


def burst(service: ServiceProcess, n_connections: int = 60) -> None:
    """More at once than the service takes."""
    wires = [Wire(service.connect()) for _ in range(n_connections)]
    for wire in wires:
        wire.sock.sendall(encode("a burst " * 4000, model="deepseek-v4"))
    for wire in wires:
        with contextlib.suppress(Closed):
            wire.read()
        wire.close()


def end_engine(service: ServiceProcess) -> None:
    """Kill the engine process of the GPU; another one starts."""
    for pid in engine_pids(service):
        os.kill(pid, signal.SIGKILL)
