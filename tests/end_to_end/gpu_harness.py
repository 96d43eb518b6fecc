"""A service with engine processes on a host device, and load on its GPU route."""

from __future__ import annotations

import json
import random
import sys
import threading
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer as Reference

from tests.end_to_end.harness import LIMIT_S, ServiceProcess, Wire, encode
from tests.engine_rig import engine_command, is_alive

FLAGS = (
    *("--gpus=0", "--gpu-classes-kib=4,64", "--gpu-contexts=2", "--gpu-restart-min=50ms", "--gpu-restart-max=200ms"),
    # An engine that a busy machine holds up does not hang.
    f"--gpu-watchdog={LIMIT_S:.0f}s",
)
OTHER_WORDS = ("foxes", " caf\u00e9", " \u4f60\u597d", "\n\n", " 12345", "'s", " e\u0301", " <mask>")


def gpu_program(folder: Path, **script: Any) -> tuple[str, ...]:
    """The service with engines that serve the small model and do as scripted."""
    engine = engine_command(folder, "byte_bpe", **script)
    return sys.executable, "-m", "tests.end_to_end.gpu_service", json.dumps(engine)


def on_gpu(service: ServiceProcess) -> dict[str, Any]:
    """What /v1/models says of the GPU route of the small model."""
    with service.client() as client:
        (model,) = client.get("/v1/models").json()["data"]
    routes: dict[str, Any] = model["routes"]["gpu"]
    return routes


def wait_served(service: ServiceProcess) -> None:
    """Until the GPU route takes documents."""
    service.eventually(lambda: on_gpu(service)["serves"])


def engine_pids(service: ServiceProcess) -> list[int]:
    """The engine processes of a service."""
    pids = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdecimal():
            continue
        try:
            parent = int((entry / "stat").read_text().rsplit(")", 1)[1].split()[1])
            command = (entry / "cmdline").read_text()
        except OSError:
            continue
        # What is started has the command of the service for a moment, in which there is that of the engine.
        if parent == service.process.pid and "host_engine" in command and "gpu_service" not in command:
            pids.append(int(entry.name))
    return pids


def wait_replaced(service: ServiceProcess, pid: int) -> None:
    """Until this engine is gone and another one is there."""
    service.eventually(lambda: not is_alive(pid) and engine_pids(service) not in ([], [pid]))


def total(samples: Any, name: str, **labels: str) -> float:
    """The sum of the samples with these labels."""
    found: dict[Any, float] = samples.get(name, {})
    return sum(value for key, value in found.items() if labels.items() <= dict(key).items())


def texts(n: int, seed: int, longest: int = 40) -> list[str]:
    """Documents of different lengths."""
    rng = random.Random(seed)
    return [
        f"{seed} {i}" + "".join(rng.choice(OTHER_WORDS) for _ in range(rng.choice([0, 3, longest]))) for i in range(n)
    ]


class Load:
    """Clients that ask without pause and check every answer."""

    def __init__(self, service: ServiceProcess, reference: Reference, n: int = 6, **options: Any) -> None:
        self._service, self._reference, self._options = service, reference, options
        self._stop = threading.Event()
        self.n_answers = 0
        self.wrong: list[Any] = []
        self._threads = [threading.Thread(target=self._ask, args=(i,)) for i in range(n)]
        for thread in self._threads:
            thread.start()

    def wait(self, n: int) -> None:
        """Until so many more answers came."""
        before = self.n_answers
        self._service.eventually(lambda: self.n_answers > before + n)

    def stop(self) -> None:
        """Let every client end after its answer."""
        self._stop.set()
        for thread in self._threads:
            thread.join(LIMIT_S)
            assert not thread.is_alive()

    def _ask(self, number: int) -> None:
        wire = Wire(self._service.connect(bool(number % 2)))
        documents = texts(30, number, longest=400 if number == 0 else 40)
        expected = [self._reference.encode(text).ids for text in documents]
        i = 0
        while not self._stop.is_set():
            batch = i % 3 == 0
            first = i % (len(documents) - 3)
            text: Any = documents[first : first + 3] if batch else documents[first]
            answer = wire.ask(encode(text, **self._options))
            right = expected[first : first + 3] if batch else expected[first]
            if answer.status != 200 or answer.json["ids"] != right:
                self.wrong.append((answer.status, text))
            self.n_answers += 1
            i += 1
        wire.close()
