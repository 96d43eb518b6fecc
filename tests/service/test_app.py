"""The app: control endpoints, the hot ones beside them, and the schema of all."""

from __future__ import annotations

import asyncio
import re
import threading
import time
from typing import Any

import orjson
import pytest

from service import __version__
from service.dialects import OPERATIONS
from service.options import ServiceOptions
from tests.fakes import FakeTokenizer, Gate
from tests.service_fakes import FakeRegistry, eventually, run, running

HOT = ("/v1/encode", "/v1/decode", "/v1/count", *OPERATIONS)
CONTROL = ("/health", "/healthz", "/live", "/liveness", "/ready", "/readiness", "/v1/models", "/metrics", "/version")


def registry() -> FakeRegistry:
    """Two models."""
    return FakeRegistry(aliases=("short=first",), first=FakeTokenizer(), second=FakeTokenizer())


@pytest.mark.parametrize("path", ["/health", "/healthz", "/live", "/liveness"])
def test_health_says_that_the_process_works(path: str) -> None:
    """Health is 200 also while models load and while the service drains."""

    async def test() -> None:
        models = registry()
        models.models()[0].state = "loading"
        async with running(models) as it:
            assert (await it.call(path, method="GET")).status == 200
            it.service.drain()
            send = await it.call(path, method="GET")
            assert (send.status, orjson.loads(send.body)) == (200, {"status": "ok"})

    run(test())


@pytest.mark.parametrize(
    ("states", "drain", "status", "said"),
    [
        (("ready", "ready"), False, 200, "ready"),
        (("ready", "failed"), False, 200, "ready"),
        (("ready", "loading"), False, 503, "loading"),
        (("loading", "failed"), False, 503, "loading"),
        (("failed", "failed"), False, 503, "failed"),
        (("ready", "ready"), True, 503, "draining"),
        (("loading", "ready"), True, 503, "draining"),
    ],
)
@pytest.mark.parametrize("path", ["/ready", "/readiness"])
def test_ready_says_whether_traffic_is_wanted(
    path: str, states: tuple[Any, Any], drain: bool, status: int, said: str
) -> None:
    """Ready when every load ended and one model serves at least, and never while draining; it names each state."""

    async def test() -> None:
        models = registry()
        for model, state in zip(models.models(), states, strict=True):
            model.state = state
        async with running(models) as it:
            if drain:
                it.service.drain()
            send = await it.call(path, method="GET")
            assert send.status == status
            names = ("first", "second")
            assert orjson.loads(send.body) == {"status": said, "models": dict(zip(names, states, strict=True))}

    run(test())


def test_requests_while_models_load() -> None:
    """While a model loads its requests are 503 with Retry-After, and others are served."""

    async def test() -> None:
        models = registry()
        models.loading = Gate()
        models.models()[0].state = "loading"
        async with running(models) as it:
            send = await it.call("/v1/encode", b'{"text": "a"}')
            assert send.status == 503
            assert int(send.headers[b"retry-after"]) >= 1
            assert (await it.call("/v1/encode", b'{"text": "a", "model": "second"}')).status == 200
            models.models()[0].state = "ready"
            models.loading.open()
            assert (await it.call("/v1/encode", b'{"text": "a"}')).status == 200

    run(test())


def test_models_are_listed() -> None:
    """The list has OpenAI's shape, and says which engine serves each model and why."""

    async def test() -> None:
        async with running(registry()) as it:
            listed = orjson.loads((await it.call("/v1/models", method="GET")).body)
            assert listed["object"] == "list"
            assert [item["id"] for item in listed["data"]] == ["first", "second"]
            first = listed["data"][0]
            assert (first["aliases"], first["default"], first["state"]) == (["short"], True, "ready")
            assert first["engine"] == {"name": "fake", "reason": "scripted"}

    run(test())


def test_version() -> None:
    """The version is that of the package."""

    async def test() -> None:
        async with running(registry()) as it:
            assert orjson.loads((await it.call("/version", method="GET")).body)["version"] == __version__

    run(test())


@pytest.mark.parametrize("path", HOT)
@pytest.mark.parametrize("method", ["GET", "HEAD", "PUT", "DELETE", "OPTIONS", "PATCH"])
def test_hot_endpoints_take_post_only(path: str, method: str) -> None:
    """Other methods are 405, and the answer names the right one."""

    async def test() -> None:
        async with running(registry()) as it:
            send = await it.call(path, method=method)
            assert (send.status, send.headers[b"allow"]) == (405, b"POST")
            assert len(send.body) == (0 if method == "HEAD" else int(send.headers[b"content-length"]))

    run(test())


@pytest.mark.parametrize("path", CONTROL)
def test_control_endpoints_take_get_only(path: str) -> None:
    """POST is 405 there."""

    async def test() -> None:
        async with running(registry()) as it:
            assert (await it.call(path, method="GET")).status == 200
            assert (await it.call(path)).status == 405

    run(test())


@pytest.mark.parametrize("path", [*CONTROL, "/v2/encode"])
def test_head_is_get_without_its_body(path: str) -> None:
    """The same status and headers; only what differs between any two answers does."""

    async def test() -> None:
        async with running(registry()) as it:
            full, head = [await it.call(path, method=method, x_request_id="a") for method in ("GET", "HEAD")]
            assert (head.status, head.body) == (full.status, b"")
            if path != "/metrics":
                assert head.headers == full.headers
            assert int(head.headers[b"content-length"]) > 0

    run(test())


@pytest.mark.parametrize("path", ["/v1", "/v1/encode/", "/v2/encode", "/v1/encode/x", "//v1/encode", "/V1/ENCODE"])
def test_unknown_paths_are_404(path: str) -> None:
    """There is nothing else."""

    async def test() -> None:
        async with running(registry()) as it:
            assert (await it.call(path, b'{"text": "a"}')).status == 404

    run(test())


@pytest.mark.parametrize(("dialect", "key"), [("vllm", "prompt"), ("sglang", "text")])
@pytest.mark.parametrize("prefix", ["", "/v1"])
def test_the_dialect_is_an_option_and_a_header(dialect: str, key: str, prefix: str) -> None:
    """Detokenizing answers in the dialect of the server, or in that of the request's header."""

    async def test() -> None:
        async with running(registry(), ServiceOptions(dialect=dialect)) as it:
            body = b'{"tokens": [97, 98]}'
            own = await it.call(f"{prefix}/detokenize", body, content_type="application/json")
            assert orjson.loads(own.body)[key] == "ab"
            for name, other_key in (("vllm", "prompt"), ("sglang", "text")):
                send = await it.call(
                    f"{prefix}/detokenize", body, content_type="application/json", x_sidetok_dialect=name
                )
                assert orjson.loads(send.body)[other_key] == "ab"
            tokens = await it.call(f"{prefix}/tokenize", b'{"prompt": "ab"}', content_type="application/json")
            assert orjson.loads(tokens.body)["tokens"] == [97, 98]

    run(test())


def test_a_scrape_does_not_hold_up_the_loop() -> None:
    """Metrics are rendered off the event loop."""

    async def test() -> None:
        async with running(registry()) as it:
            threads: list[str] = []
            render = it.service.metrics.render

            def watched() -> bytes:
                threads.append(threading.current_thread().name)
                return render()

            it.service.metrics.render = watched  # type: ignore[method-assign]
            sends = await asyncio.gather(*(it.call("/metrics", method="GET") for _ in range(3)))
            assert all(send.status == 200 for send in sends)
            assert sends[0].headers[b"content-type"].startswith(b"text/plain; version=0.0.4")
            assert all(name.startswith("sidetok-background") for name in threads)

    run(test())


def test_the_loop_keeps_time() -> None:
    """The ticker measures how late the loop is: a callback that blocks shows in the gauge."""

    async def test() -> None:
        async with running(registry()) as it:
            await eventually(lambda: len(it.service.lag._recent) > 0)
            end_s = time.monotonic() + 0.2
            while time.monotonic() < end_s:
                pass
            await eventually(lambda: it.service.lag.worst_s >= 0.1)

    run(test())


def test_every_answer_names_its_request() -> None:
    """Control endpoints, unknown paths and refused methods send back the request's id, or one of their own."""

    async def test() -> None:
        async with running(registry()) as it:
            for path, method in [(path, "GET") for path in (*CONTROL, "/nothing", "/v1/encode")] + [("/ready", "POST")]:
                send = await it.call(path, method=method, x_request_id="my-id")
                assert send.headers[b"x-request-id"] == b"my-id", path
                assert re.fullmatch(
                    rb"[0-9a-f]+-[0-9a-f]+", (await it.call(path, method=method)).headers[b"x-request-id"]
                )

    run(test())
