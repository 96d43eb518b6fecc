"""No text of a document in any line of the log, whatever goes wrong, at the most talkative level."""

from __future__ import annotations

from pathlib import Path

import orjson
import pytest

from tests.end_to_end.harness import LIMIT_S, Wire, encode, held_program, request, serving

MARKER = "the-secret-text"
TRACE = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


def bad_requests() -> list[bytes]:
    """Requests that fail in every stage, each with the marker in it."""
    secret = MARKER.encode()
    octets = {"content_type": "application/octet-stream"}
    msgpack = {"content_type": "application/msgpack"}
    return [
        encode(MARKER),
        encode([MARKER] * 3, max_tokens=1, return_token_strings=True),
        request(secret),
        request(b'{"text": "' + secret),
        request(b'{"text": "' + secret + rb'\ud800"}'),
        request(b'{"text": "' + secret + b'\xff"}'),
        encode(1, **{MARKER: MARKER}),
        encode(MARKER, truncation_side=MARKER),
        encode(MARKER, max_tokens=MARKER),
        encode({MARKER: MARKER}),
        request(secret + b"\xff", **octets),
        request(secret, f"/v1/encode?{MARKER}=1", **octets),
        request(secret, f"/v1/encode?truncation_side={MARKER}", **octets),
        request(secret, "/v1/encode?batch=true", **octets),
        request(secret, **msgpack),
        request(b"\x81\xa4text\xb0" + secret + b"\xff", **msgpack),
        request(secret, content_type=MARKER),
        request(b'{"ids": ["' + secret + b'"]}', "/v1/decode"),
        request(secret, "/tokenize"),
        request(orjson.dumps({"prompt": [MARKER]}), "/tokenize"),
        request(orjson.dumps({"prompt": {MARKER: 1}}), "/tokenize", x_sidetok_dialect="sglang"),
        request(orjson.dumps({"messages": [{"role": "user", "content": MARKER}]}), "/tokenize"),
        request(orjson.dumps({"messages": [{MARKER: MARKER}]}), "/tokenize"),
        request(orjson.dumps({"tokens": [MARKER]}), "/detokenize"),
        request(orjson.dumps({"tokens": MARKER}), "/detokenize", x_sidetok_dialect="sglang"),
        request(secret, f"/v1/encode?{MARKER}"),
        request(secret, "/health"),
    ]


@pytest.mark.parametrize("style", ["text", "json"])
def test_no_text_in_the_log(folder: Path, home: Path, model: str, style: str) -> None:
    """Debug level, access log and shadow check: ids and traces are in the log, text is nowhere."""
    arguments = (
        "--log-level=debug",
        "--access-log",
        f"--log-format={style}",
        "--shadow-check=1",
        "--max-body-bytes=1MB",
    )
    program = held_program(service__hot_cycle__LINGER_S=LIMIT_S)
    with serving(folder, model, *arguments, cache_dir=home / "cache", program=program) as service:
        for i, data in enumerate(bad_requests()):
            wire = Wire(service.connect(bool(i % 2)))
            answer = wire.ask(data)
            if answer.status != 200:
                assert MARKER.encode() not in answer.body, data
            wire.close()
        broken = Wire(service.connect())
        broken.sock.sendall(b"GET /" + MARKER.encode() + b" NOT HTTP\r\n\r\n")
        assert broken.read().status == 400
        Wire(service.connect()).ask(request(MARKER.encode() * 100_000))
        traced = request(orjson.dumps({"text": MARKER}), x_request_id="my-request", traceparent=TRACE)
        assert Wire(service.connect()).ask(traced).status == 200
        with service.client() as client:
            assert MARKER not in client.get("/metrics").text
        service.signal()
        assert service.wait_exit() == 0
        log = "".join(service.lines)
    assert MARKER not in log
    assert "my-request" in log
    assert TRACE in log
    assert "Traceback" not in log
    assert len(service.lines) > len(bad_requests())
