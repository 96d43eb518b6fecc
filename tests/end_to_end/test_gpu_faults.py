"""The GPU route over HTTP when engines die, hang or are left behind, and when clients or the service end."""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path

import pytest
from tokenizers import Tokenizer as Reference

from tests.end_to_end.gpu_harness import (
    FLAGS,
    Load,
    engine_pids,
    gpu_program,
    on_gpu,
    texts,
    total,
    wait_replaced,
    wait_served,
)
from tests.end_to_end.harness import LIMIT_S, ServiceProcess, Wire, encode, eventually, request, serving
from tests.engine_rig import is_alive

REQUESTS = "sidetok_request_duration_seconds_count"


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
        service.eventually(lambda: total(service.metrics(), "sidetok_gpu_engine_state", state="ready") == 2)
        wait_served(service)
        load = Load(service, reference, route="gpu")
        service.eventually(lambda: all(replays(service, gpu) > 20 for gpu in ("0", "1")))
        load.stop()
        assert load.wrong == []
        (first, _) = sorted(engine_pids(service))
        os.kill(first, signal.SIGKILL)
        service.eventually(lambda: total(service.metrics(), "sidetok_gpu_engine_state", state="down") == 1)
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
        service.eventually(lambda: total(service.metrics(), "sidetok_gpu_engine_restarts_total") >= 1)
        assert total(service.metrics(), "sidetok_gpu_fallbacks_total") >= 1
        service.eventually(lambda: any("is down" in line for line in tuple(service.lines)))


def test_a_client_that_leaves_while_its_document_is_on_the_gpu(folder: Path, model: str) -> None:
    """Its slot comes back, and nobody else notices."""
    program = gpu_program(folder, hang_after=0)
    with serving(folder, model, *FLAGS, "--policy=gpu", program=program) as service:
        wait_served(service)
        (pid,) = engine_pids(service)
        wires = [Wire(service.connect()) for _ in range(5)]
        for wire in wires:
            wire.sock.sendall(encode("somebody's text"))
        service.eventually(lambda: service.in_flight == len(wires))
        service.eventually(lambda: total(service.metrics(), "sidetok_gpu_in_flight") >= 1)
        for wire in wires[:-1]:
            wire.close()
        service.eventually(lambda: total(service.metrics(), REQUESTS, outcome="cancelled") == len(wires) - 1)
        os.kill(pid, signal.SIGKILL)
        assert wires[-1].read().status == 200
        service.eventually(lambda: service.in_flight == 0)


def test_a_drain_with_batches_in_flight(folder: Path, model: str, reference: Reference) -> None:
    """SIGTERM while documents are on a GPU that hangs: they are answered, the exit is clean, and no engine is left."""
    program = gpu_program(folder, hang_after=0)
    with serving(folder, model, *FLAGS, "--policy=gpu", "--gpu-watchdog=6s", program=program) as service:
        wait_served(service)
        (pid,) = engine_pids(service)
        documents = texts(30, 4)
        wires = [Wire(service.connect(bool(i % 2))) for i in range(30)]
        for wire, text in zip(wires, documents, strict=True):
            wire.sock.sendall(encode(text))
        service.eventually(lambda: service.in_flight == 30)
        service.signal()
        for wire, text in zip(wires, documents, strict=True):
            answer = wire.read()
            assert (answer.status, answer.json["ids"]) == (200, reference.encode(text).ids)
        assert service.wait_exit() == 0
        eventually(lambda: not is_alive(pid))


def descendants(pid: int) -> set[int]:
    """Processes that a process started, and what these did."""
    found: set[int] = set()
    for task in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(OSError):
            for child in map(int, (task / "children").read_text().split()):
                found |= {child} | descendants(child)
    return found


def test_nothing_outlives_a_killed_service(home: Path, model: str) -> None:
    """Neither engines nor builders of tables, and so none of their shared memory, also while it starts."""
    # An engine that lived on would do so for longer than its end is waited for.
    program = gpu_program(home, slow_s=10 * LIMIT_S)
    service = ServiceProcess(home, model, *FLAGS, uds=home / "k", cache_dir=home / "none", program=program)
    left: set[int] = set()
    try:
        service.eventually(lambda: any("host_engine" in command_of(pid) for pid in descendants(service.process.pid)))
        service.eventually(lambda: any("table_builder" in command_of(pid) for pid in descendants(service.process.pid)))
        left = descendants(service.process.pid)
        os.kill(service.process.pid, signal.SIGKILL)
        eventually(lambda: not any(map(is_alive, left)))
    finally:
        service.stop()


def command_of(pid: int) -> str:
    """The command line of a process; empty once it ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return ""
