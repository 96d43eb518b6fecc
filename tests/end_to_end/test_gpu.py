"""Both routes over HTTP, with real engine processes on a host device: exact ids, metrics, CPU time."""

from __future__ import annotations

import json
import random
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgpack
import numpy as np
import pytest
from tokenizers import Tokenizer as Reference

from tests.end_to_end.gpu_harness import (
    FLAGS,
    OTHER_WORDS,
    Load,
    gpu_program,
    on_gpu,
    texts,
    total,
    wait_served,
)
from tests.end_to_end.harness import LIMIT_S, ServiceProcess, Wire, encode, request, serving

ENOUGH_CPU_S = 1.5
"""CPU time of a load: that of a process is told in steps of 0.01 s."""
CPU_TOLERANCE = 0.05
"""The parts are read from thread clocks; what no registered thread does is the difference."""


@pytest.fixture(scope="module")
def gpu_service(home: Path, model: str) -> Iterator[ServiceProcess]:
    """A process with a GPU; tests leave it as they found it."""
    program = gpu_program(home)
    with serving(home, model, *FLAGS, uds=home / "g", cache_dir=home / "cache", program=program) as process:
        wait_served(process)
        yield process


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
    rng = random.Random(3)
    accents = bytearray(" café ".encode() * 30_000)
    del accents[rng.randrange(60_000, 70_000)]
    broken = [b"a\xff", b"a " * 40_000 + b"\xff", rng.randbytes(200_000), bytes(accents[:-2]), b"\xed\xa0\x80" * 60_000]
    for data in broken:
        answers = [
            wire.ask(request(data, f"/v1/encode?route={route}", content_type="application/octet-stream"))
            for route in ("cpu", "gpu")
        ]
        assert [answer.status for answer in answers] == [400, 400]
        assert answers[0].body == answers[1].body
    long = " caf\u00e9 foxes" * 9_000
    octets = wire.ask(request(long.encode(), "/v1/encode?route=gpu", content_type="application/octet-stream"))
    assert octets.body == np.array(reference.encode(long).ids, "<u4").tobytes()


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
    # Large bodies that are not ASCII are read in another way (`service.dialects.utf8_body`).
    longer = json.dumps({field: long * 3}, ensure_ascii=False).encode()
    assert len(longer) > 1 << 16
    for data, text in ((json.dumps(bodies[0]).encode(), long), (longer, long * 3)):
        listed = json.dumps(reference.encode(text).ids, separators=(",", ":")).encode()
        for route in ("cpu", "gpu"):
            assert listed in wire.ask(request(data, path, x_sidetok_route=route)).body
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
    free, memory = (total(samples, "sidetok_gpu_memory_bytes", gpu="0", kind=kind) for kind in ("free", "total"))
    assert 0 < free < memory
    assert "sidetok_gpu_captures" in samples
    assert total(samples, "sidetok_route_decisions_total", route="gpu", reason="policy") >= 20
    assert total(samples, "sidetok_route_cost_seconds", route="gpu", model="small") > 0
    for part in ("submit", "deliver", "engine", "write_answer"):
        assert total(samples, "sidetok_host_cpu_seconds_total", route="gpu", part=part) > 0, part
    assert total(samples, "sidetok_in_flight") == 0


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


def cpu_s(service: ServiceProcess) -> tuple[float, float]:
    """CPU time of the service process: of its parts, and as the system counts it."""
    samples = service.metrics()
    parts = samples["sidetok_host_cpu_seconds_total"]
    own = sum(value for key, value in parts.items() if dict(key)["part"] != "engine")
    return own, samples["process_cpu_seconds_total"][()]


def test_cpu_time_adds_up_on_the_gpu_route(gpu_service: ServiceProcess, reference: Reference) -> None:
    """The sum of host CPU over the parts of this process is its CPU time of a load, within the tolerance."""
    # From rest to rest: clocks are read one after the other, and what is done meanwhile would count on one side only.
    before = cpu_s(gpu_service)
    load = Load(gpu_service, reference, route="gpu")
    gpu_service.eventually(lambda: cpu_s(gpu_service)[1] - before[1] >= ENOUGH_CPU_S)
    load.stop()
    assert load.wrong == []
    after = cpu_s(gpu_service)
    parts, process = (b - a for a, b in zip(before, after, strict=True))
    assert abs(parts - process) / process < CPU_TOLERANCE, (parts, process)
