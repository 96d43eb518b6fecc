"""The first seconds: the embedded model without flags, requests that come too early, models that fail."""

from __future__ import annotations

from pathlib import Path

from tokenizers import Tokenizer as Reference

from dispatcher.embedded import EMBEDDED_MODEL, embedded_tokenizer_json
from tests.end_to_end.harness import ServiceProcess, Wire, encode, held_program, request, serving
from tests.end_to_end.held_service import HOLD_LOAD

GET_READY = request(b"", "/ready", "GET")


def test_the_embedded_model(folder: Path) -> None:
    """Without flags the embedded model is served; until it is loaded and proven, requests are 503 with Retry-After."""
    (folder / HOLD_LOAD).touch()
    service = ServiceProcess(folder, program=held_program())
    try:
        service.wait_listening()
        wire = Wire(service.connect(uds=True))
        early = wire.ask(encode("a"))
        assert early.status == 503
        assert int(early.headers["retry-after"]) >= 1
        loading = wire.ask(GET_READY)
        assert (loading.status, loading.json) == (503, {"status": "loading", "models": {EMBEDDED_MODEL: "loading"}})
        assert wire.ask(request(b"", "/health", "GET")).status == 200
        (folder / HOLD_LOAD).unlink()
        service.wait_ready()
        assert wire.ask(GET_READY).status == 200
        reference = Reference.from_str(embedded_tokenizer_json().decode())
        assert wire.ask(encode("It works.")).json["ids"] == reference.encode("It works.").ids
        (model,) = wire.ask(request(b"", "/v1/models", "GET")).json["data"]
        assert "proven" in model["engine"]["reason"]
        service.signal()
        assert service.wait_exit() == 0
    finally:
        service.stop()


def test_a_broken_model_takes_no_other_down(folder: Path, home: Path, model: str) -> None:
    """A model that fails is 500, with its reason in the listing; the others are served and the service is ready."""
    broken = folder / "broken.json"
    broken.write_text('{"model": {"type": "BPE"')
    arguments = (model, f"--model=broken={broken}", f"--model=missing={folder / 'nothing'}")
    with serving(folder, *arguments, cache_dir=home / "cache") as service:
        wire = Wire(service.connect())
        assert wire.ask(GET_READY).json["models"] == {"small": "ready", "broken": "failed", "missing": "failed"}
        assert wire.ask(encode("a")).status == 200
        for name in ("broken", "missing"):
            assert wire.ask(encode("a", model=name)).status == 500
        models = {item["id"]: item for item in wire.ask(request(b"", "/v1/models", "GET")).json["data"]}
        assert models["small"]["error"] is None
        assert models["broken"]["error"]
        assert "nothing" in models["missing"]["error"]


def test_no_model_at_all(folder: Path) -> None:
    """When every model fails the process works on, is not ready, and says so."""
    service = ServiceProcess(folder, f"--model=missing={folder / 'nothing'}")
    try:
        service.wait_listening()
        wire = Wire(service.connect())
        service.wait_logged("model failed")
        answer = wire.ask(GET_READY)
        assert (answer.status, answer.json["status"]) == (503, "failed")
        assert wire.ask(request(b"", "/health", "GET")).status == 200
        service.signal()
        assert service.wait_exit() == 0
    finally:
        service.stop()


def test_a_wrong_command_line(folder: Path) -> None:
    """A flag that makes no sense ends the process with code 2 and one line, before it listens."""
    for arguments in (("--default-model=nobody",), ("--alias=a=nobody",), ("--model==",)):
        process = ServiceProcess(folder, *arguments)
        assert process.wait_exit() == 2
        assert len(process.lines) == 1
