"""The Ray application and the Ray job, run on a real cluster of this machine: two replicas, two actors, equal ids."""

from __future__ import annotations

import contextlib
import json
import random
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pyarrow
import pyarrow.parquet
import pytest
import zstandard
from tokenizers import Tokenizer as Reference

from tests.data import adversarial, tokenizer_json
from tests.engine_rig import LIMIT_S, until
from tests.service.files_rig import Workplace, digests, json_lines

ray: Any = pytest.importorskip("ray")
pytest.importorskip("ray.serve")

TEXTS = [sample.text for sample in adversarial()[:60]]
SHORT = [f"document {i}" for i in range(3000)]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Ray on this machine alone."""
    # Sockets lie below it, and their paths may not be long.
    folder = tmp_path_factory.mktemp("r")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
        # Serve ends a proxy that takes longer to start, also where others have the CPUs.
        for name in ("RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S", "RAY_SERVE_PROXY_HEALTH_CHECK_TIMEOUT_S"):
            patch.setenv(name, str(LIMIT_S))
        start(folder)
        yield
        ray.shutdown()


def start(folder: Path) -> None:
    """Start the cluster."""
    ray.init(
        num_cpus=4,
        include_dashboard=False,
        object_store_memory=100 << 20,
        _node_ip_address="127.0.0.1",
        _temp_dir=str(folder),
        log_to_driver=False,
        configure_logging=False,
    )


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Workplace:
    """A small tokenizer, and documents in several files of each format."""
    it = Workplace(tmp_path_factory.mktemp("files"))
    for i in range(6):
        it.write(f"{i}.jsonl", json_lines([*SHORT[i * 500 : i * 500 + 500], *TEXTS]))
    it.write("7.jsonl", b'{"text": 1}\n')
    it.write("8.txt.zst", zstandard.compress("".join(TEXTS).encode()))
    pyarrow.parquet.write_table(pyarrow.table({"text": [*SHORT[:200], *TEXTS]}), it.input / "9.parquet")
    return it


def test_the_job_writes_what_the_command_writes(cluster: None, place: Workplace) -> None:
    """Every file of the output is the same, byte for byte; what could not be read is counted in both."""
    from deploy.ray.tokenize_job import main

    options = ("--unit-bytes", "15000", "--shard-tokens", "3000")
    assert place.run(*options) == 3
    manifest = place.manifest()
    assert len({shard["name"].split("-")[1] for shard in manifest["shards"]}) > 2
    other = place.folder / "ray"
    assert main(["--workers", "2", *place.arguments(*options, output=other)]) == 3
    assert digests(other) == digests(place.output)
    documents = place.documents(other)
    assert documents[:3] == place.expected(SHORT[:3])
    assert documents[-len(TEXTS) :] == place.expected(TEXTS)


def test_a_job_that_cannot_go_on_says_why(cluster: None, place: Workplace, capsys: pytest.CaptureFixture[str]) -> None:
    """Too many bad records end it with one line and status 1, and wrong numbers with status 2."""
    from deploy.ray.tokenize_job import main

    arguments = place.arguments("--max-errors", "0", output=place.folder / "stopped")
    assert main(arguments) == 1
    assert "--max-errors" in capsys.readouterr().err
    with pytest.raises(SystemExit) as end:
        main(["--workers", "0", *arguments])
    assert end.value.code == 2


def free_port() -> int:
    """A port that stays free: the system gives none below 32,768 to who asks for any, as all other tests do."""
    for port in random.sample(range(20_000, 30_000), 100):
        with contextlib.suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port
    raise AssertionError("no port is free")


def test_two_replicas_answer_as_the_service_does(cluster: None, tmp_path: Path) -> None:
    """Both replicas give the reference's ids, in JSON and as octets, and Serve hands on paths, statuses and headers."""
    from ray import serve

    from deploy.ray.serving import application

    data = tokenizer_json("byte_bpe")
    (tmp_path / "tokenizer.json").write_bytes(data)
    reference = Reference.from_str(data.decode())
    flags = f"--model small={tmp_path / 'tokenizer.json'} --cpu-engine reference --cache-dir {tmp_path / 'cache'}"
    port = free_port()
    serve.start(http_options={"host": "127.0.0.1", "port": port})
    serve.run(application({"flags": flags, "min_replicas": "2", "cpus": "0.5"}), route_prefix="/ids")
    try:
        with httpx.Client(base_url=f"http://127.0.0.1:{port}/ids", timeout=60) as client:
            _check(client, reference)
    finally:
        serve.shutdown()


def _check(client: httpx.Client, reference: Reference) -> None:
    for text in TEXTS:
        answer = client.post("/v1/encode", json={"text": text})
        assert answer.json()["ids"] == reference.encode(text).ids
    # The proxy may hear of the second replica a moment later than of the first.
    pids: set[int] = set()

    def both_answered() -> bool:
        pids.add(client.get("/version").json()["pid"])
        return len(pids) == 2

    until(both_answered)
    answer = client.post("/v1/encode", json={"text": TEXTS})
    assert answer.json()["ids"] == [reference.encode(text).ids for text in TEXTS]
    octets = client.post("/v1/encode", content="abc", headers={"content-type": "application/octet-stream"})
    assert memoryview(octets.content).cast("I").tolist() == reference.encode("abc").ids
    assert client.post("/tokenize", json={"prompt": "abc"}).json()["tokens"] == reference.encode("abc").ids
    missing = client.post(
        "/v1/encode", content=json.dumps({"model": "none", "text": ""}), headers={"x-request-id": "7"}
    )
    assert (missing.status_code, missing.headers["x-request-id"]) == (404, "7")
    assert client.get("/nothing").status_code == 404
    assert client.get("/ready").json()["status"] == "ready"
    assert "sidetok_tokens_total" in client.get("/metrics").text
    assert client.get("/").headers["content-type"].startswith("text/html")


def test_arguments_of_the_application() -> None:
    """Words of a command line become numbers; what is unknown or none is named."""
    from deploy.ray.serving import Arguments

    assert Arguments.read({"gpus": "1", "max_replicas": "4"}) == Arguments(gpus=1.0, max_replicas=4)
    with pytest.raises(ValueError, match="there is no argument gpu; there are flags, gpus"):
        Arguments.read({"gpu": "1"})
    with pytest.raises(ValueError, match="max_replicas: 'x' is not a int"):
        Arguments.read({"max_replicas": "x"})
