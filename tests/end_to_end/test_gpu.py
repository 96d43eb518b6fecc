"""Both routes over HTTP, with real engine processes on a host device: exact ids, faults, metrics, the drain."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgpack
import numpy as np
import pytest
from tokenizers import Tokenizer as Reference

from tests.end_to_end.harness import LIMIT_S, ServiceProcess, Wire, encode, eventually, request, serving
from tests.engine_rig import engine_command, is_alive

FLAGS = ("--gpus=0", "--gpu-classes-kib=4,64", "--gpu-contexts=2", "--gpu-restart-min=50ms", "--gpu-restart-max=200ms")
CPU_TOLERANCE = 0.05
"""The parts are read from thread clocks, one after the other; the time that the reading takes is the difference."""
OTHER_WORDS = ("foxes", " caf\u00e9", " \u4f60\u597d", "\n\n", " 12345", "'s", " e\u0301", " <mask>")


def gpu_program(folder: Path, **script: Any) -> tuple[str, ...]:
    """The service with engines that serve the small model and do as scripted."""
    engine = engine_command(folder, "byte_bpe", **script)
    return sys.executable, "-m", "tests.end_to_end.gpu_service", json.dumps(engine)


@pytest.fixture(scope="module")
def gpu_service(home: Path, model: str) -> Iterator[ServiceProcess]:
    """A process with a GPU; tests leave it as they found it."""
    program = gpu_program(home)
    with serving(home, model, *FLAGS, uds=home / "g", cache_dir=home / "cache", program=program) as process:
        wait_served(process)
        yield process


def on_gpu(service: ServiceProcess) -> dict[str, Any]:
    """What /v1/models says of the GPU route of the small model."""
    with service.client() as client:
        (model,) = client.get("/v1/models").json()["data"]
    routes: dict[str, Any] = model["routes"]["gpu"]
    return routes


def wait_served(service: ServiceProcess) -> None:
    """Until the GPU route takes documents."""
    eventually(lambda: on_gpu(service)["serves"])


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
        if parent == service.process.pid and "host_engine" in command:
            pids.append(int(entry.name))
    return pids


def descendants(pid: int) -> set[int]:
    """Processes that a process started, and what these did."""
    found: set[int] = set()
    for task in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(OSError):
            for child in map(int, (task / "children").read_text().split()):
                found |= {child} | descendants(child)
    return found


def wait_replaced(service: ServiceProcess, pid: int) -> None:
    """Until this engine is gone and another one is there."""
    eventually(lambda: not is_alive(pid) and engine_pids(service) not in ([], [pid]))


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


@pytest.mark.parametrize("route", ["cpu", "gpu", "auto"])
def test_ids_are_exact_on_every_route(gpu_service: ServiceProcess, reference: Reference, route: str) -> None:
    """Single and batch requests give the reference's ids, with special tokens and truncation, and count as theirs."""
    before = gpu_service.metrics()
    documents = texts(60, len(route))
    expected = [reference.encode(text).ids for text in documents]
    wire = Wire(gpu_service.connect())
    for text, ids in zip(documents, expected, strict=True):
        answer = wire.ask(encode(text, route=route)).json
        assert (answer["ids"], answer["count"]) == (ids, len(ids))
    assert wire.ask(encode(documents, route=route)).json["ids"] == expected
    bare = [reference.encode(text, add_special_tokens=False).ids[:3] for text in documents]
    cut = wire.ask(encode(documents, route=route, max_tokens=3, add_special_tokens=False)).json
    longer = [len(reference.encode(text, add_special_tokens=False).ids) > 3 for text in documents]
    assert (cut["ids"], cut["truncated"]) == (bare, longer)
    header = request(json.dumps({"prompt": documents[0]}).encode(), "/tokenize", x_sidetok_route=route)
    assert wire.ask(header).json["tokens"] == expected[0]
    after = gpu_service.metrics()
    for name in ("sidetok_documents_total", "sidetok_request_duration_seconds_count"):
        gained = {r: total(after, name, route=r) - total(before, name, route=r) for r in ("cpu", "gpu")}
        if route != "auto":
            assert gained[route] >= 60
        assert sum(gained.values()) == (181 if "documents" in name else 63)


def test_every_codec_on_the_gpu(gpu_service: ServiceProcess, reference: Reference) -> None:
    """Raw documents, raw batches and packed text give packed ids; bytes that are no text are 400."""
    documents = texts(12, 77)
    raw = [text.encode() for text in documents]
    expected = [np.array(reference.encode(text).ids, "<u4").tobytes() for text in documents]
    wire = Wire(gpu_service.connect())
    before = total(gpu_service.metrics(), "sidetok_documents_total", route="gpu")
    for body, ids in zip(raw, expected, strict=True):
        octets = wire.ask(request(body, "/v1/encode?route=gpu", content_type="application/octet-stream"))
        assert octets.body == ids
        packed = msgpack.packb({"text": body, "route": "gpu"})
        answer = msgpack.unpackb(wire.ask(request(packed, content_type="application/msgpack")).body)
        assert answer["ids"] == ids
    lengths = np.array([len(raw), *map(len, raw)], "<u4").tobytes()
    batch = wire.ask(
        request(lengths + b"".join(raw), "/v1/encode?route=gpu&batch=true", content_type="application/octet-stream")
    )
    assert batch.body.endswith(b"".join(expected))
    count = wire.ask(request(raw[0], "/v1/count?route=gpu", content_type="application/octet-stream"))
    assert int.from_bytes(count.body, "little") == len(expected[0]) // 4
    assert total(gpu_service.metrics(), "sidetok_documents_total", route="gpu") - before >= 25
    invalid = wire.ask(request(b"a\xff", "/v1/encode?route=gpu", content_type="application/octet-stream"))
    assert invalid.status == 400


@pytest.mark.parametrize("path", ["/v1/encode", "/tokenize"])
def test_answers_are_the_same_on_both_routes(gpu_service: ServiceProcess, reference: Reference, path: str) -> None:
    """Byte for byte, also where the device writes ids as decimal numbers: long documents, alone and among others.

    The last one has more of them than there is room for.
    """
    long = "".join(random.Random(7).choices(OTHER_WORDS, k=9_000))
    field = {"/v1/encode": "text", "/tokenize": "prompt"}[path]
    bodies: list[dict[str, Any]] = [{field: long}, {field: long, "add_special_tokens": False}, {field: "~" * 60_000}]
    if path == "/v1/encode":
        bodies += [{field: [long, "", "short", long[:30_000]]}, {field: [long, long], "max_tokens": 5_000}]
        bodies += [{field: long, "max_tokens": 100}, {field: long, "max_tokens": 100, "truncation_side": "left"}]
    wire = Wire(gpu_service.connect())
    before = total(gpu_service.metrics(), "sidetok_documents_total", route="gpu")
    for body in bodies:
        data = json.dumps(body).encode()
        answers = [wire.ask(request(data, path, x_sidetok_route=route)) for route in ("cpu", "gpu", "gpu")]
        assert {answer.status for answer in answers} == {200}, answers[0].body[:200]
        assert len({answer.body for answer in answers}) == 1
    ids = reference.encode(long).ids
    listed = json.dumps(ids, separators=(",", ":")).encode()
    assert listed in wire.ask(request(json.dumps(bodies[0]).encode(), path, x_sidetok_route="gpu")).body
    assert total(gpu_service.metrics(), "sidetok_documents_total", route="gpu") - before >= 2 * len(bodies)


def test_bad_routes_are_refused(gpu_service: ServiceProcess) -> None:
    """A route that is none is 400, and so is what the GPU never answers; the connection lives on."""
    wire = Wire(gpu_service.connect())
    assert wire.ask(encode("a", route="tpu")).json["error"]["param"] == "route"
    assert wire.ask(encode("a", route="gpu", return_char_offsets=True)).status == 400
    assert wire.ask(encode("a", return_char_offsets=True)).status == 200


def test_without_a_gpu(service: ServiceProcess) -> None:
    """/v1/models says that there is none, and a request that insists is refused with 503."""
    assert not on_gpu(service)["serves"]
    answer = Wire(service.connect()).ask(encode("a", route="gpu"))
    assert (answer.status, "retry-after" in answer.headers) == (503, True)


def test_metrics_of_the_gpu_route(gpu_service: ServiceProcess) -> None:
    """Batches, replays by size class, engine, memory, captures, decisions and costs are all there."""
    wire = Wire(gpu_service.connect(uds=True))
    for text in texts(20, 5):
        wire.ask(encode(text, route="gpu"))
        wire.ask(encode(text))
    samples = gpu_service.metrics()
    n_replays = total(samples, "sidetok_gpu_replay_duration_seconds_count", gpu="0", model="small", size_class="4096")
    assert n_replays >= 20
    assert total(samples, "sidetok_gpu_batch_documents_count") >= n_replays
    assert total(samples, "sidetok_gpu_replayed_documents_total") >= 20
    assert total(samples, "sidetok_gpu_engine_state", gpu="0", state="ready") == 1
    assert total(samples, "sidetok_gpu_memory_bytes", gpu="0", kind="total") > 0
    assert "sidetok_gpu_captures" in samples
    assert total(samples, "sidetok_route_decisions_total", route="gpu", reason="policy") >= 20
    assert total(samples, "sidetok_route_cost_seconds", route="gpu", model="small") > 0
    for part in ("submit", "deliver", "engine", "write_answer"):
        assert total(samples, "sidetok_host_cpu_seconds_total", route="gpu", part=part) > 0, part
    assert total(samples, "sidetok_in_flight") == 0


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
        eventually(lambda: self.n_answers > before + n)

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


@pytest.mark.parametrize(("policy", "n_kills"), [("gpu", 2), ("adaptive", 1)])
def test_a_killed_engine_under_load(folder: Path, model: str, reference: Reference, policy: str, n_kills: int) -> None:
    """kill -9, more than once: every request is answered once and exactly, /ready stays, the GPU route comes back."""
    program = gpu_program(folder)
    with serving(folder, model, *FLAGS, f"--policy={policy}", program=program) as service:
        wait_served(service)
        load = Load(service, reference)
        for n_restarts in range(1, n_kills + 1):
            (pid,) = engine_pids(service)
            load.wait(50)
            os.kill(pid, signal.SIGKILL)
            assert Wire(service.connect()).ask(request(b"", "/ready", "GET")).status == 200
            wait_replaced(service, pid)
            wait_served(service)
            assert total(service.metrics(), "sidetok_gpu_engine_restarts_total", gpu="0") == n_restarts
        n_gpu = total(service.metrics(), "sidetok_documents_total", route="gpu")
        with service.client() as client:
            assert client.post("/v1/encode", json={"text": "back", "route": "gpu"}).status_code == 200
        assert total(service.metrics(), "sidetok_documents_total", route="gpu") > n_gpu
        load.stop()
        assert load.wrong == []
        assert service.in_flight == 0
        answered = total(service.metrics(), "sidetok_request_duration_seconds_count", outcome="ok")
        assert answered == load.n_answers + 1


def test_one_gpu_of_two_is_lost(folder: Path, model: str, reference: Reference) -> None:
    """Both share the load; while one is down the other serves what insists on a GPU, and nothing is lost."""
    program = gpu_program(folder, n_gpus=2)
    slow_return = ("--gpu-restart-min=60s", "--gpu-restart-max=60s")
    with serving(folder, model, *FLAGS, "--gpus=0,1", *slow_return, "--policy=gpu", program=program) as service:
        eventually(lambda: total(service.metrics(), "sidetok_gpu_engine_state", state="ready") == 2)
        wait_served(service)
        load = Load(service, reference, route="gpu")
        eventually(lambda: all(replays(service, gpu) > 20 for gpu in ("0", "1")))
        load.stop()
        assert load.wrong == []
        (first, _) = sorted(engine_pids(service))
        os.kill(first, signal.SIGKILL)
        eventually(lambda: total(service.metrics(), "sidetok_gpu_engine_state", state="down") == 1)
        load = Load(service, reference, route="gpu")
        load.wait(100)
        load.stop()
        assert load.wrong == []
        assert on_gpu(service)["serves"]


def replays(service: ServiceProcess, gpu: str) -> float:
    """How many batches a GPU had."""
    return total(service.metrics(), "sidetok_gpu_batch_documents_count", gpu=gpu)


def test_a_hung_replay(folder: Path, model: str, reference: Reference) -> None:
    """A replay that never ends: the watchdog ends its engine, its requests are answered by the CPU route."""
    program = gpu_program(folder, hang_after=3)
    with serving(folder, model, *FLAGS, "--policy=gpu", "--gpu-watchdog=300ms", program=program) as service:
        wait_served(service)
        wire = Wire(service.connect())
        for text in texts(20, 9):
            assert wire.ask(encode(text)).json["ids"] == reference.encode(text).ids
        eventually(lambda: total(service.metrics(), "sidetok_gpu_engine_restarts_total") >= 1)
        assert total(service.metrics(), "sidetok_gpu_fallbacks_total") >= 1
        assert service.logged("GPU 0 is down") or any("is down" in line for line in service.lines)


def test_mixed_sizes_share_the_gpu(gpu_service: ServiceProcess, reference: Reference) -> None:
    """Small documents, large ones and such that fit no size class at the same time: each gets its own ids."""
    sizes = [1, 10, 2_000, 9_000, 30_000]
    documents = [" ".join(texts(n, i, 3)) for i, n in enumerate(sizes)]
    expected = [reference.encode(text).ids for text in documents]
    wrong: list[int] = []

    def ask(i: int) -> None:
        wire = Wire(gpu_service.connect())
        for _ in range(20 if i < 2 else 2):
            answer = wire.ask(encode(documents[i], route="gpu"))
            if answer.status != 200 or answer.json["ids"] != expected[i]:
                wrong.append(i)

    threads = [threading.Thread(target=ask, args=(i,)) for i in range(len(sizes)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LIMIT_S)
        assert not thread.is_alive()
    assert wrong == []


def test_a_client_that_leaves_while_its_document_is_on_the_gpu(folder: Path, model: str) -> None:
    """Its slot comes back, and nobody else notices."""
    program = gpu_program(folder, hang_after=0)
    with serving(folder, model, *FLAGS, "--policy=gpu", "--gpu-watchdog=500ms", program=program) as service:
        wait_served(service)
        wires = [Wire(service.connect()) for _ in range(5)]
        for wire in wires:
            wire.sock.sendall(encode("somebody's text"))
        eventually(lambda: service.in_flight >= 1)
        for wire in wires[:-1]:
            wire.close()
        assert wires[-1].read().status == 200
        eventually(lambda: service.in_flight == 0)


def test_a_drain_with_batches_in_flight(folder: Path, model: str, reference: Reference) -> None:
    """SIGTERM while documents are on a GPU that hangs: they are answered, the exit is clean, and no engine is left."""
    program = gpu_program(folder, hang_after=0)
    with serving(folder, model, *FLAGS, "--policy=gpu", "--gpu-watchdog=1500ms", program=program) as service:
        wait_served(service)
        (pid,) = engine_pids(service)
        documents = texts(30, 4)
        wires = [Wire(service.connect(bool(i % 2))) for i in range(30)]
        for wire, text in zip(wires, documents, strict=True):
            wire.sock.sendall(encode(text))
        eventually(lambda: service.in_flight == 30)
        service.signal()
        for wire, text in zip(wires, documents, strict=True):
            answer = wire.read()
            assert (answer.status, answer.json["ids"]) == (200, reference.encode(text).ids)
        assert service.wait_exit() == 0
        eventually(lambda: not is_alive(pid))


def cpu_s(service: ServiceProcess) -> tuple[float, float]:
    """CPU time of the service process: of its parts, and as the system counts it."""
    samples = service.metrics()
    parts = samples["sidetok_host_cpu_seconds_total"]
    own = sum(value for key, value in parts.items() if dict(key)["part"] != "engine")
    return own, samples["process_cpu_seconds_total"][()]


def test_cpu_time_adds_up_on_the_gpu_route(gpu_service: ServiceProcess, reference: Reference) -> None:
    """Under load the sum of host CPU over the parts of this process is its CPU time, within the tolerance."""
    load = Load(gpu_service, reference, route="gpu")
    load.wait(20)
    before = cpu_s(gpu_service)
    threading.Event().wait(2.0)
    after = cpu_s(gpu_service)
    load.stop()
    parts, process = (b - a for a, b in zip(before, after, strict=True))
    assert process > 0.1
    assert abs(parts - process) / process < CPU_TOLERANCE, (parts, process)


def test_nothing_outlives_a_killed_service(home: Path, model: str) -> None:
    """Neither engines nor builders of tables, and so none of their shared memory, also while it starts."""
    program = gpu_program(home, slow_s=60.0)
    service = ServiceProcess(home, model, *FLAGS, uds=home / "k", cache_dir=home / "none", program=program)
    left: set[int] = set()
    try:
        eventually(lambda: any("host_engine" in command_of(pid) for pid in descendants(service.process.pid)))
        eventually(lambda: any("table_builder" in command_of(pid) for pid in descendants(service.process.pid)))
        left = descendants(service.process.pid)
        os.kill(service.process.pid, signal.SIGKILL)
        killed_s = time.monotonic()
        eventually(lambda: not any(map(is_alive, left)))
        assert time.monotonic() - killed_s < 2.0
    finally:
        service.stop()


def command_of(pid: int) -> str:
    """The command line of a process; empty once it ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return ""
