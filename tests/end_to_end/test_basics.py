"""A real process on TCP and a Unix socket: httpx, curl and plain sockets get the same exact answers."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest
from tokenizers import Tokenizer as Reference

from tests.data import adversarial
from tests.end_to_end.harness import Closed, ServiceProcess, Wire, encode, request
from tests.native_client import CODECS, read_encoded, write_request

TEXTS = [s.text for s in adversarial()[:150]] + ["", "a\0b", "two\nlines", "x" * 5000]
BOTH = pytest.mark.parametrize("uds", [False, True], ids=["tcp", "uds"])


def curl(service: ServiceProcess, uds: bool, path: str, *options: str, data: bytes | None = None) -> tuple[int, bytes]:
    """Status and body of a curl call."""
    program = shutil.which("curl")
    assert program is not None, "the tests need curl"
    where = ["--unix-socket", str(service.uds), "http://localhost"] if uds else [f"http://127.0.0.1:{service.port}"]
    command = [program, "-sS", "--max-time", "60", "-w", "\n%{http_code}", *where[:-1], where[-1] + path, *options]
    command += ["--data-binary", "@-"] if data is not None else []
    done = subprocess.run(command, input=data, capture_output=True, check=True)
    body, status = done.stdout.rsplit(b"\n", 1)
    return int(status), body


@BOTH
@pytest.mark.parametrize("codec", CODECS)
def test_httpx(service: ServiceProcess, reference: Reference, uds: bool, codec: str) -> None:
    """httpx gets the reference's ids in every codec, one by one over one connection and as a batch."""
    expected = [e.ids for e in reference.encode_batch(TEXTS)]
    with service.client(uds) as client:

        def ask(text: Any) -> Any:
            body, query = write_request(codec, "text", text, {})
            answer = client.post(f"/v1/encode?{query}", content=body, headers={"content-type": codec})
            assert answer.status_code == 200, answer.text
            sections = answer.headers.get("x-sidetok-sections")
            return read_encoded(codec, answer.content, sections, isinstance(text, list))["ids"]

        assert [ask(text) for text in TEXTS] == expected
        assert ask(TEXTS) == expected


@BOTH
def test_curl(service: ServiceProcess, reference: Reference, uds: bool) -> None:
    """So does curl, with JSON, with raw text, and with a body large enough that it asks first."""
    text = "Some text, and more of it. " * 60_000
    ids = reference.encode(text).ids
    fields = orjson.dumps({"text": text})
    status, body = curl(service, uds, "/v1/encode", "-H", "content-type: application/json", data=fields)
    assert (status, json.loads(body)["ids"]) == (200, ids)
    octets = ("-H", "content-type: application/octet-stream", "-H", "expect: 100-continue")
    status, body = curl(service, uds, "/v1/encode", *octets, data=text.encode())
    assert (status, np.frombuffer(body, "<u4").tolist()) == (200, ids)
    chunks = ("-H", "transfer-encoding: chunked", "-H", "content-type: application/json")
    status, body = curl(service, uds, "/v1/count", *chunks, data=fields)
    assert (status, json.loads(body)["count"]) == (200, len(ids))
    assert curl(service, uds, "/ready")[0] == 200
    assert curl(service, uds, "/health", "--http1.0")[0] == 200


@BOTH
def test_decode(service: ServiceProcess, reference: Reference, uds: bool) -> None:
    """Decode gives the reference's text."""
    sequences = [e.ids for e in reference.encode_batch(TEXTS)]
    with service.client(uds) as client:
        for skip in (True, False):
            answer = client.post("/v1/decode", json={"ids": sequences, "skip_special_tokens": skip})
            assert answer.json()["text"] == reference.decode_batch(sequences, skip_special_tokens=skip)


def test_the_dialects(service: ServiceProcess, reference: Reference) -> None:
    """vLLM's and SGLang's endpoints answer over the wire."""
    ids = reference.encode("Hello, world").ids
    with service.client() as client:
        answer = client.post("/tokenize", json={"model": "short", "prompt": "Hello, world"})
        assert (answer.json()["tokens"], answer.json()["count"]) == (ids, len(ids))
        answer = client.post("/v1/tokenize", json={"prompt": "Hello, world"}, headers={"x-sidetok-dialect": "sglang"})
        assert answer.json()["tokens"] == ids
        assert client.post("/detokenize", json={"tokens": ids}).status_code == 200


def test_control_endpoints(service: ServiceProcess) -> None:
    """Health, readiness, models, metrics, version and schema are there."""
    with service.client() as client:
        for path in ("/health", "/healthz", "/live", "/liveness", "/ready", "/readiness", "/version", "/openapi.json"):
            assert client.get(path).status_code == 200, path
        (model,) = client.get("/v1/models").json()["data"]
        assert (model["id"], model["state"], model["aliases"]) == ("small", "ready", ["short"])
        assert client.get("/version").json()["pid"] == service.process.pid
    samples = service.metrics()
    assert samples["sidetok_ready"][()] == 1
    assert samples["process_cpu_seconds_total"][()] > 0


@BOTH
@pytest.mark.parametrize(
    ("data", "status"),
    [
        (request(b"no json"), 400),
        (request(b"{}"), 400),
        (encode("a", model="nobody"), 404),
        (request(b"x", content_type="text/plain"), 415),
        (request(b"x", path="/nothing"), 404),
        (request(b"", method="GET"), 405),
        (request(b"", method="OPTIONS"), 405),
        (request(b"", method="DELETE", path="/health"), 405),
    ],
)
def test_an_error_leaves_the_connection_usable(service: ServiceProcess, uds: bool, data: bytes, status: int) -> None:
    """After an error answer the same connection serves the next request."""
    wire = Wire(service.connect(uds))
    for _ in range(3):
        assert wire.ask(data).status == status
        assert wire.ask(encode("ok")).status == 200
    wire.close()


def test_head_requests(service: ServiceProcess) -> None:
    """HEAD on a hot path is refused without a body, and the connection goes on."""
    with service.client() as client:
        for _ in range(2):
            answer = client.head("/v1/encode")
            assert (answer.status_code, answer.content) == (405, b"")
            assert client.post("/v1/encode", json={"text": "a"}).status_code == 200


@BOTH
def test_request_ids(service: ServiceProcess, uds: bool) -> None:
    """The client's request id comes back, or a fresh one."""
    with service.client(uds) as client:
        answer = client.post("/v1/encode", json={"text": "a"}, headers={"x-request-id": "mine-1"})
        assert answer.headers["x-request-id"] == "mine-1"
        ids = {client.post("/v1/encode", json={"text": "a"}).headers["x-request-id"] for _ in range(3)}
        assert len(ids) == 3


@BOTH
def test_pipelining(service: ServiceProcess, reference: Reference, uds: bool) -> None:
    """Requests sent without waiting are answered in order."""
    texts = [f"pipelined request {i} " * (i % 9) for i in range(60)]
    wire = Wire(service.connect(uds))
    wire.sock.sendall(b"".join(encode(text) for text in texts))
    assert [wire.read().json["ids"] for _ in texts] == [reference.encode(text).ids for text in texts]
    wire.close()


@pytest.mark.parametrize(
    "data",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"GARBAGE\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"POST /v1/encode HTTP/1.1\r\ncontent-length: nonsense\r\n\r\n",
        b"POST /v1/encode HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\nnonsense\r\n",
        b"GET /" + b"x" * 900_000,
        b"GET / HTTP/1.1\r\n" + b"x: y\r\n" * 150_000,
    ],
    ids=range(7),
)
@BOTH
def test_garbage(service: ServiceProcess, uds: bool, data: bytes) -> None:
    """What is no HTTP, or a head without end, costs its connection and nothing else."""
    wire = Wire(service.connect(uds))
    try:
        wire.sock.sendall(data)
        assert wire.read().status in (400, 431)
        assert wire.closed()
    except (Closed, BrokenPipeError, ConnectionResetError):
        pass  # the answer was lost with data that nobody read
    wire.close()
    assert Wire(service.connect(uds)).ask(encode("ok")).status == 200
    assert service.in_flight == 0


def test_python_m_is_the_same_command(service: ServiceProcess) -> None:
    """The console script and `python -m service.cli` are one."""
    done = subprocess.run(
        [sys.executable, "-m", "service.cli", "version"],
        cwd=Path(__file__).resolve().parents[2],
        capture_output=True,
        text=True,
        check=True,
    )
    with service.client() as client:
        assert done.stdout.split()[-1] == client.get("/version").json()["version"]


@BOTH
def test_slow_pieces(service: ServiceProcess, reference: Reference, uds: bool) -> None:
    """A request that comes byte by byte is one request."""
    wire = Wire(service.connect(uds))
    for i in encode("piece by piece"):
        wire.sock.sendall(bytes([i]))
    assert wire.read().json["ids"] == reference.encode("piece by piece").ids
    wire.close()


def test_many_names_leave_no_trace(service: ServiceProcess) -> None:
    """Unknown models, ids and queries by the thousand add nothing to the exposition, and little to the memory."""

    def resident() -> float:
        return service.metrics()["process_resident_memory_bytes"][()]

    wire = Wire(service.connect())

    def flood(start: int, n: int) -> None:
        for i in range(start, start + n):
            name = f"name-{i}-" + "x" * 200
            wire.ask(encode("a", model=name))
            octets = {"content_type": "application/octet-stream", "x_request_id": name}
            wire.ask(request(b"a", f"/v1/encode?max_tokens={i}", **octets))
            wire.ask(request(b"a", f"/v1/encode?model={name}", **octets))

    flood(0, 1000)
    before, n_samples = resident(), sum(map(len, service.metrics().values()))
    flood(1000, 3000)
    assert resident() - before < 12_000_000
    assert sum(map(len, service.metrics().values())) == n_samples
    wire.close()
