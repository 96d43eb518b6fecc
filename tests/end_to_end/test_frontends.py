"""Several frontends behind one address: one service to clients, whatever happens to one of its processes."""

from __future__ import annotations

import os
import re
import signal
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
from tokenizers import Tokenizer as Reference

from service import __version__
from tests.end_to_end.gpu_harness import FLAGS, gpu_program, total, wait_served
from tests.end_to_end.harness import (
    Closed,
    Response,
    Samples,
    ServiceProcess,
    Wire,
    encode,
    eventually,
    request,
    serving,
)
from tests.end_to_end.test_drain import Clients
from tests.engine_rig import is_alive

GET_PID = request(b"", "/version", "GET")
GET_READY = request(b"", "/ready", "GET")
ANSWERED = re.compile(r'sidetok_request_duration_seconds_count\{.*outcome="ok"')
TWO = ("--frontends=2", "--gpus=none", "--cpu-workers=4", "--max-in-flight=100")


def pids_of(service: ServiceProcess) -> set[int]:
    """The frontends of a service."""
    children = Path(f"/proc/{service.process.pid}/task/{service.process.pid}/children").read_text()
    return {int(word) for word in children.split()}


def wires_to_all(service: ServiceProcess) -> dict[int, Wire]:
    """A connection to each frontend."""
    wires: dict[int, Wire] = {}
    spare: list[Wire] = []

    def reached() -> bool:
        wire = Wire(service.connect(uds=len(spare) % 2 == 1))
        # Those that are not needed stay open until the end, so that the next one goes elsewhere.
        spare.append(wire)
        wires[wire.ask(GET_PID).json["pid"]] = wire
        return set(wires) >= pids_of(service)

    service.eventually(reached)
    for wire in spare:
        if wire not in wires.values():
            wire.close()
    return {pid: wire for pid, wire in wires.items() if pid in pids_of(service)}


def n_tokens(service: ServiceProcess) -> float:
    """Ids that all frontends produced, as the metrics say."""
    return sum(service.metrics().get("sidetok_tokens_total", {}).values())


def figures(wire: Wire, n_reported: int) -> dict[str, str]:
    """Lines of the exposition that the frontend of a connection gives, once so many have answered it in time."""
    found: list[dict[str, str]] = []

    def reported() -> bool:
        text = wire.ask(request(b"", "/metrics", "GET")).body.decode()
        found.append(dict(line.rsplit(" ", 1) for line in text.splitlines()))
        return found[-1]["sidetok_frontends_reported"] == f"{n_reported}.0"

    eventually(reported)
    return found[-1]


def n_restarts(service: ServiceProcess) -> float:
    """Frontends that ended and were started again."""
    return service.metrics()["sidetok_frontend_restarts_total"][()]


def is_whole(service: ServiceProcess, n: float) -> bool:
    """Whether so many frontends have ended and all are ready; before its end was seen, a dead one is taken for one."""
    samples = service.metrics()
    ready = samples["sidetok_frontends_ready"][()]
    return samples["sidetok_frontend_restarts_total"][()] == n and ready == len(pids_of(service)) == 2


def eventually_all_reported(service: ServiceProcess) -> Samples:
    """Figures that are of this moment for every frontend."""
    found: list[Samples] = []

    def all_reported() -> bool:
        found.append(service.metrics())
        return found[-1]["sidetok_frontends_reported"][()] == 2

    service.eventually(all_reported)
    return found[-1]


@pytest.fixture(scope="module")
def pair(home: Path, model: str) -> Iterator[ServiceProcess]:
    """A service of two frontends; tests leave it as they found it, but for the processes."""
    folder = home / "pair"
    folder.mkdir()
    with serving(folder, model, *TWO, "--admin-key=key", cache_dir=home / "cache") as service:
        yield service


def test_all_answer_and_figures_are_of_all(pair: ServiceProcess, reference: Reference) -> None:
    """Connections are spread, ids are the reference's on each, and every frontend shows the sums."""
    samples = eventually_all_reported(pair)
    before = sum(samples.get("sidetok_tokens_total", {}).values())
    answered = total(samples, "sidetok_request_duration_seconds_count", outcome="ok")
    expected = reference.encode("one of two").ids
    wires = wires_to_all(pair)
    assert len(wires) == 2
    for wire in wires.values():
        assert wire.ask(GET_READY).status == 200
        assert wire.ask(encode("one of two")).json["ids"] == expected
    for wire in wires.values():
        lines = figures(wire, n_reported=2)
        assert float(lines['sidetok_tokens_total{model="small",route="cpu"}']) == before + 2 * len(expected)
        assert sum(float(lines[name]) for name in lines if ANSWERED.match(name)) == answered + 2
        assert lines["sidetok_cpu_workers"] == "4.0"
        assert lines["sidetok_ready"] == lines[f'sidetok_build_info{{version="{__version__}"}}'] == "1.0"
        assert lines["sidetok_frontends"] == "2.0"
        wire.close()


def test_logs(pair: ServiceProcess) -> None:
    """The service is ready once, and lines of a frontend say whose they are."""
    assert len(pair.logged("listening")) == len(pair.logged("ready")) == 1
    assert {record["frontend"] for record in pair.logged("model ready")} >= {1, 2}


def test_models_come_and_go_everywhere(pair: ServiceProcess, home: Path, reference: Reference) -> None:
    """A model that is added is there in all frontends, also in one that starts later, until it is removed."""
    headers = {"authorization": "Bearer key"}
    wires = wires_to_all(pair)
    ids = [_asked(wire, "/v1/tokenizers").json["tokenizers"][0]["id"] for wire in wires.values()]
    assert len(set(ids)) == 1
    with pair.client() as client:
        wanted = {"name": "later", "source": str(home / "tokenizer.json")}
        added = client.post("/v1/tokenizers", headers=headers, json=wanted)
        assert added.status_code == 202
        again = client.post("/v1/tokenizers", headers=headers, json=wanted)
        assert again.status_code == 409
    path = f"/v1/tokenizers/{added.json()['id']}/status"
    for wire in wires.values():
        assert _asked(wire, path).json["status"] in ("processing", "completed")
    pair.eventually(lambda: _asked(next(iter(wires.values())), path).json["status"] == "completed")
    expected = reference.encode("later").ids
    for wire in wires.values():
        assert wire.ask(encode("later", model="later")).json["ids"] == expected
    restarts = n_restarts(pair)
    os.kill(next(iter(wires)), signal.SIGKILL)
    pair.eventually(lambda: is_whole(pair, restarts + 1))
    wires = wires_to_all(pair)
    for wire in wires.values():
        assert wire.ask(encode("later", model="later")).json["ids"] == expected
    with pair.client() as client:
        assert client.delete("/v1/tokenizers/later", headers=headers).status_code == 200
        assert client.delete("/v1/tokenizers/later", headers=headers).status_code == 404
    for wire in wires.values():
        assert wire.ask(encode("later", model="later")).status == 404
        assert wire.ask(encode("later")).json["ids"] == expected


def _asked(wire: Wire, path: str) -> Response:
    return wire.ask(request(b"", path, "GET", authorization="Bearer key"))


def test_one_that_is_killed(pair: ServiceProcess, reference: Reference) -> None:
    """Its connections are lost and no others; the service stays ready, no sum goes down, and a new one comes."""
    wires = wires_to_all(pair)
    victim, other = wires
    for wire in wires.values():
        assert wire.ask(encode("counted")).status == 200
    before, restarts = n_tokens(pair), n_restarts(pair)
    wires[victim].sock.sendall(encode("never answered")[:-3])
    wires[other].sock.sendall(encode("answered")[:-3])
    os.kill(victim, signal.SIGKILL)
    with pytest.raises(Closed):
        wires[victim].read()
    wires[other].sock.sendall(encode("answered")[-3:])
    assert wires[other].read().json["ids"] == reference.encode("answered").ids
    while not is_whole(pair, restarts + 1):
        ready = Wire(pair.connect())
        assert ready.ask(GET_READY).status == 200
        assert n_tokens(pair) >= before
    assert victim not in pids_of(pair)
    for wire in wires_to_all(pair).values():
        assert wire.ask(encode("again")).json["ids"] == reference.encode("again").ids
    assert n_tokens(pair) > before


def test_one_that_is_told_to_end(pair: ServiceProcess, reference: Reference) -> None:
    """SIGTERM to one frontend drains it: nothing that was sent is lost, its figures stay, and a new one comes."""
    before = eventually_all_reported(pair)["sidetok_request_duration_seconds_count"]
    n_answered_before = sum(n for labels, n in before.items() if ("outcome", "ok") in labels)
    restarts = n_restarts(pair)
    clients = Clients(pair, reference)
    pair.eventually(lambda: clients.n_answers > 200)
    (victim, _) = pids_of(pair)
    os.kill(victim, signal.SIGTERM)
    pair.eventually(lambda: is_whole(pair, restarts + 1))
    assert victim not in pids_of(pair)
    n_before = clients.n_answers
    pair.eventually(lambda: clients.n_answers > n_before + 200)
    clients.stop()
    assert clients.lost == []
    assert clients.wrong == []
    now = eventually_all_reported(pair)["sidetok_request_duration_seconds_count"]
    answered = sum(n for labels, n in now.items() if ("outcome", "ok") in labels)
    assert answered - n_answered_before == clients.n_answers


def test_a_slow_scrape_does_not_hold_up_others(pair: ServiceProcess) -> None:
    """A frontend that does not move is left out of the figures of the moment, and the rest is answered."""
    (stopped, _) = pids_of(pair)
    wires = wires_to_all(pair)
    other = next(wire for pid, wire in wires.items() if pid != stopped)
    os.kill(stopped, signal.SIGSTOP)
    try:
        figures(other, n_reported=1)
        assert other.ask(encode("served")).status == 200
        # New connections come to those that move.
        for _ in range(3):
            assert Wire(pair.connect()).ask(encode("served")).status == 200
    finally:
        os.kill(stopped, signal.SIGCONT)


def test_nothing_is_left_behind(folder: Path, home: Path, model: str) -> None:
    """Frontends end with the process that keeps them, however that ends."""
    with serving(folder, model, *TWO, cache_dir=home / "cache") as service:
        frontends = pids_of(service)
        assert len(frontends) == 2
        service.signal(signal.SIGKILL)
        service.wait_exit()
        eventually(lambda: not any(map(is_alive, frontends)))


def test_wrong_settings(folder: Path, model: str) -> None:
    """What only a frontend finds out is said once, and ends the service as it ends a single process."""
    process = ServiceProcess(folder, model, "--frontends=3", "--alias=a=nothing")
    assert process.wait_exit() == 2
    assert [line for line in process.lines if not line.startswith("{")] == [
        "sidetok: --alias a=nothing: there is no model named 'nothing'; there are small\n"
    ]


def test_gpus(folder: Path, home: Path, model: str, reference: Reference) -> None:
    """Each frontend has an engine of its own on a GPU; the figures are of both."""
    program = gpu_program(folder)
    with serving(folder, model, "--frontends=2", *FLAGS, cache_dir=home / "cache", program=program) as service:
        wait_served(service)
        service.eventually(lambda: service.metrics()["sidetok_gpu_engine_state"][("gpu", "0"), ("state", "ready")] == 2)
        wires = wires_to_all(service)
        for wire in wires.values():
            service.eventually(partial(_is_answered_by_a_gpu, wire))
            assert wire.ask(encode("on a GPU", route="gpu")).json["ids"] == reference.encode("on a GPU").ids
        # A frontend that is late is counted as it was before.
        service.eventually(lambda: total(service.metrics(), "sidetok_documents_total", model="small", route="gpu") >= 4)
        service.signal()
        assert service.wait_exit() == 0


def _is_answered_by_a_gpu(wire: Wire) -> bool:
    return wire.ask(encode("a", route="gpu")).status == 200
