"""Hot requests through ASGI: limits, deadlines, departed clients, and what each leaves behind."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import Any

import orjson
import pytest

from dispatcher.errors import InvalidText
from dispatcher.options import DispatcherOptions
from dispatcher.worker import PART_CHARS
from service.options import ServiceOptions
from tests.fakes import FakeTokenizer, Panic
from tests.service_fakes import FakeReceive, FakeRegistry, FakeSend, Running, eventually, run, running

MARKER = "the-secret-text"


def models() -> tuple[FakeTokenizer, FakeRegistry]:
    """One model."""
    tokenizer = FakeTokenizer()
    return tokenizer, FakeRegistry(fake=tokenizer)


def body_of(text: Any) -> bytes:
    """An encode request."""
    return orjson.dumps({"text": text})


def message(send: FakeSend) -> str:
    """The message of an error answer."""
    text: str = orjson.loads(send.body)["error"]["message"]
    assert MARKER not in text
    return text


def test_an_answer_with_its_head() -> None:
    """The answer has its length, its type and the client's request id, is counted as ok, and keeps the connection."""

    async def test() -> None:
        async with running(models()[1]) as it:
            send = await it.call("/v1/encode", body_of("ab"), x_request_id="my-id")
            assert send.status == 200
            assert orjson.loads(send.body)["ids"] == [97, 98]
            assert send.headers == {
                b"content-type": b"application/json",
                b"content-length": b"%d" % len(send.body),
                b"x-request-id": b"my-id",
            }
            assert it.requests() == {("fake", "ok"): 1}

    run(test())


def test_a_request_without_an_id_gets_one() -> None:
    """Every answer has an id, a fresh one for each."""

    async def test() -> None:
        async with running(models()[1]) as it:
            ids = {(await it.call("/v1/encode", body_of("a"))).headers[b"x-request-id"] for _ in range(3)}
            assert len(ids) == 3

    run(test())


@pytest.mark.parametrize("chunks", [(b'{"text"', b': "ab"}'), (b"", b'{"text": "ab"}', b""), (b'{"text": "ab"}', b"")])
def test_a_body_may_come_in_pieces(chunks: tuple[bytes, ...]) -> None:
    """Pieces of any size are one body."""

    async def test() -> None:
        async with running(models()[1]) as it:
            send = await it.call("/v1/encode", *chunks)
            assert orjson.loads(send.body)["ids"] == [97, 98]

    run(test())


@pytest.mark.parametrize(("n_bytes", "status"), [(1000, 200), (1001, 413)])
@pytest.mark.parametrize("how", ["length", "one chunk", "chunks"])
def test_the_body_limit(n_bytes: int, status: int, how: str) -> None:
    """A body up to the limit is read, one byte more is 413, whether its length is announced or not."""

    async def test() -> None:
        async with running(models()[1], ServiceOptions(max_body_bytes=1000)) as it:
            body = body_of("").ljust(n_bytes)
            chunks = (body[:600], body[600:]) if how == "chunks" else (body,)
            headers: dict[str, Any] = {"content_length": str(n_bytes)} if how == "length" else {}
            send = await it.call("/v1/encode", *chunks, **headers)
            assert send.status == status
            if status == 413:
                assert "1000 bytes" in message(send)
                assert send.headers[b"connection"] == b"close"
                assert it.requests() == {("", "bad_request"): 1}

    run(test())


def test_a_refused_body_is_read_to_its_end() -> None:
    """What a refused client still sends is read and dropped before the answer ends, so that it can read the answer."""

    async def test() -> None:
        async with running(models()[1], ServiceOptions(max_body_bytes=10)) as it:
            receive = FakeReceive(*[b"x" * 100] * 50)
            send = await it.call("/v1/encode", receive=receive, content_length="5000")
            assert send.status == 413
            assert send.complete
            assert receive.n_calls == 50

    run(test())


def test_reading_a_refused_body_has_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client that never stops sending, or stalls, is not waited for."""
    monkeypatch.setattr("service.hot.LINGER_BYTES", 1000)
    monkeypatch.setattr("service.hot.LINGER_S", 0.01)

    async def test() -> None:
        async with running(models()[1], ServiceOptions(max_body_bytes=10)) as it:
            endless = FakeReceive(*[b"x" * 100] * 50)
            assert (await it.call("/v1/encode", receive=endless, content_length="5000")).complete
            assert endless.n_calls == 10
            stalled = FakeReceive(b"x", b"x")
            stalled._messages.pop()
            assert (await it.call("/v1/encode", receive=stalled, content_length="5000")).complete

    run(test())


def test_a_client_that_asks_first_sends_nothing() -> None:
    """After `Expect: 100-continue` a refusal is not followed by reading."""

    async def test() -> None:
        async with running(models()[1], ServiceOptions(max_body_bytes=10)) as it:
            receive = FakeReceive()
            send = await it.call("/v1/encode", receive=receive, content_length="5000", expect="100-continue")
            assert (send.status, send.complete, receive.n_calls) == (413, True, 0)

    run(test())


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"content_encoding": "gzip"}, 415),
        ({"x_request_timeout": "never"}, 400),
        ({"x_sidetok_dialect": "tgi"}, 400),
    ],
)
def test_a_bad_head_is_refused(headers: dict[str, Any], status: int) -> None:
    """What the head alone decides is refused before the body is parsed."""

    async def test() -> None:
        tokenizer, registry = models()
        async with running(registry) as it:
            send = await it.call("/v1/encode", body_of(MARKER), **headers)
            assert send.status == status
            message(send)
            assert tokenizer.seen == []

    run(test())


def test_too_many_requests_are_shed() -> None:
    """A request over the limit is answered 429 at once with Retry-After; when the others are done it is welcome."""

    async def test() -> None:
        tokenizer, registry = models()
        gate = tokenizer.gate("hold")
        async with running(registry, work=DispatcherOptions(cpu_workers=2, max_in_flight=1)) as it:
            held = asyncio.ensure_future(it.call("/v1/encode", body_of("hold")))
            await eventually(gate.entered.is_set)
            send = await it.call("/v1/encode", body_of(MARKER))
            assert send.status == 429
            assert int(send.headers[b"retry-after"]) >= 1
            message(send)
            assert it.admission.shed["requests"] == 1
            gate.open()
            assert (await held).status == 200
            assert (await it.call("/v1/encode", body_of("a"))).status == 200
            assert it.requests() == {("", "shed"): 1, ("fake", "ok"): 2}

    run(test())


@pytest.mark.parametrize("announced", [True, False])
def test_too_many_bytes_are_shed(announced: bool) -> None:
    """Bytes in flight are bounded, also for bodies that do not say how long they are."""

    async def test() -> None:
        tokenizer, registry = models()
        gate = tokenizer.gate("hold")
        async with running(registry, work=DispatcherOptions(cpu_workers=2, max_in_flight_bytes=100)) as it:
            body = body_of("hold")
            held = asyncio.ensure_future(it.call("/v1/encode", body, content_length=str(len(body))))
            await eventually(gate.entered.is_set)
            large = body_of("x" * 200)
            headers: dict[str, Any] = {"content_length": str(len(large))} if announced else {}
            send = await it.call("/v1/encode", large[:50], large[50:], **headers)
            assert send.status == 429
            assert it.admission.shed["bytes"] == 1
            gate.open()
            assert (await held).status == 200

    run(test())


def pass_deadline(it: Running) -> None:
    """Let the deadline of the only request pass, which is a thousand seconds away; the next sweep finds out."""
    (job,) = it.service.dispatcher._in_flight
    assert 0 < job.deadline_ns - time.monotonic_ns() <= 1000 * 10**9
    job.deadline_ns = 1


def test_a_deadline_while_the_work_runs() -> None:
    """A request with a timeout of its own is answered 504 when it passes, long before the work ends."""

    async def test() -> None:
        tokenizer, registry = models()
        gate = tokenizer.gate(MARKER)
        async with running(registry) as it:
            asking = asyncio.ensure_future(it.call("/v1/encode", body_of(MARKER), x_request_timeout="1000"))
            await eventually(gate.entered.is_set)
            pass_deadline(it)
            send = await asking
            assert send.status == 504
            assert b"retry-after" in send.headers
            message(send)
            assert b"connection" not in send.headers
            assert it.admission.n_requests == 1
            gate.open()
            assert it.requests() == {("fake", "deadline"): 1}

    run(test())


def test_the_server_has_a_timeout_too() -> None:
    """Without a timeout of its own a request has the server's; 0 means none."""

    async def test(timeout_s: float, status: int) -> None:
        tokenizer, registry = models()
        gate = tokenizer.gate("hold")
        async with running(registry, work=DispatcherOptions(cpu_workers=2, timeout_s=timeout_s)) as it:
            asking = asyncio.ensure_future(it.call("/v1/encode", body_of("hold")))
            await eventually(gate.entered.is_set)
            if status == 504:
                pass_deadline(it)
                assert (await asking).status == status
            else:
                assert [job.deadline_ns for job in it.service.dispatcher._in_flight] == [0]
                it.service.dispatcher.sweep()
            gate.open()
            assert (await asking).status == status

    run(test(1000.0, 504))
    run(test(0.0, 200))


def test_a_deadline_while_the_body_comes() -> None:
    """A client that stalls in the middle of its body is answered 504, and its slot is free."""

    async def test() -> None:
        async with running(models()[1]) as it:
            receive = FakeReceive(b'{"te', b"")
            receive._messages.pop()
            asking = asyncio.ensure_future(
                it.call("/v1/encode", receive=receive, content_length="100", x_request_timeout="0.02")
            )
            await eventually(lambda: it.admission.n_requests == 0 and receive.n_calls > 1)
            receive.hang_up()
            assert (await asking).status == 504
            assert it.requests() == {("", "deadline"): 1}

    run(test())


@pytest.mark.parametrize("chunks", [(), (b'{"te',)])
def test_a_client_that_leaves_while_it_sends(chunks: tuple[bytes, ...]) -> None:
    """The slot is released, nothing is sent, nothing is encoded."""

    async def test() -> None:
        tokenizer, registry = models()
        async with running(registry) as it:
            receive = FakeReceive(*chunks, b"", hangs_up=True)
            receive._messages.pop()
            send = await it.call("/v1/encode", receive=receive, content_length="100")
            assert send.messages == []
            assert tokenizer.seen == []
            assert it.requests() == {("", "cancelled"): 1}

    run(test())


def test_a_client_that_leaves_while_it_waits() -> None:
    """Queued work of a departed client is dropped, running work stops at its next native call, and nothing is sent."""

    async def test() -> None:
        tokenizer, registry = models()
        gate = tokenizer.gate("hold")
        async with running(registry, work=DispatcherOptions(cpu_workers=1)) as it:
            long = body_of(["hold", "never" * PART_CHARS])
            receives = [FakeReceive(long), FakeReceive(body_of("queued"))]
            asking = [
                asyncio.ensure_future(it.call("/v1/encode", receive=r, content_length=str(n)))
                for r, n in zip(receives, (len(long), 1), strict=True)
            ]
            await eventually(gate.entered.is_set)
            for receive in receives:
                receive.hang_up()
            for send in await asyncio.gather(*asking):
                assert send.messages == []
            await eventually(lambda: it.admission.n_requests == 1)
            gate.open()
            await eventually(lambda: it.admission.n_requests == 0)
            assert tokenizer.seen == ["hold"]
            assert it.requests() == {("", "cancelled"): 2}

    run(test())


def test_a_cancelled_task_drops_its_work() -> None:
    """When the server cancels the request (the end of a drain), its job leaves, too."""

    async def test() -> None:
        tokenizer, registry = models()
        gate = tokenizer.gate("hold")
        async with running(registry) as it:
            asking = asyncio.ensure_future(it.call("/v1/encode", body_of("hold")))
            await eventually(gate.entered.is_set)
            asking.cancel()
            with pytest.raises(asyncio.CancelledError):
                await asking
            gate.open()

    run(test())


@pytest.mark.parametrize(
    ("error", "status", "outcome"),
    [
        (InvalidText("no text"), 400, "bad_request"),
        (ValueError(MARKER), 500, "error"),
        (Panic(MARKER), 500, "error"),
    ],
    ids=["ours", "foreign", "panic"],
)
def test_errors_of_the_work(error: BaseException, status: int, outcome: str, caplog: pytest.LogCaptureFixture) -> None:
    """An error of the work is answered, counted by its outcome, and does not cost the connection."""

    async def test() -> None:
        tokenizer, registry = models()
        tokenizer.errors[MARKER] = error
        async with running(registry) as it:
            send = await it.call("/v1/encode", body_of(MARKER))
            assert send.status == status
            message(send)
            assert b"connection" not in send.headers
            assert it.requests() == {("fake", outcome): 1}
            assert (await it.call("/v1/encode", body_of("a"))).status == 200

    run(test())
    assert MARKER not in caplog.text
    assert all(MARKER not in str(vars(record)) for record in caplog.records)


def test_draining_closes_connections() -> None:
    """While the service drains it answers, and says that the connection ends."""

    async def test() -> None:
        async with running(models()[1]) as it:
            it.service.drain()
            send = await it.call("/v1/encode", body_of("a"))
            assert (send.status, send.headers[b"connection"]) == (200, b"close")

    run(test())


def test_the_access_log_tells_no_text(caplog: pytest.LogCaptureFixture) -> None:
    """One line per request with its id, trace, path, model, outcome and duration; no text, no query."""
    trace = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"

    async def test() -> None:
        async with running(models()[1], ServiceOptions(access_log=True)) as it:
            await it.call("/v1/encode", body_of(MARKER), x_request_id="my-id", traceparent=trace)
            await it.call("/v1/encode", MARKER.encode(), traceparent="cc" + trace[2:] + "-\xff")
            await it.call("/v1/encode", b"x", query=MARKER.encode() + b"=1", content_type="application/octet-stream")

    caplog.set_level(logging.DEBUG)
    run(test())
    lines = [vars(record) for record in caplog.records if record.name == "sidetok.access"]
    assert [(line["path"], line["model"], line["outcome"]) for line in lines] == [
        ("/v1/encode", "fake", "ok"),
        ("/v1/encode", "", "bad_request"),
        ("/v1/encode", "", "bad_request"),
    ]
    assert (lines[0]["request_id"], lines[0]["traceparent"], lines[1]["traceparent"]) == ("my-id", trace, "")
    assert all(line["duration_s"] >= 0 for line in lines)
    assert all(MARKER not in str(vars(record)) for record in caplog.records)


def test_many_requests_at_once() -> None:
    """Hundreds of requests in flight each get their own answer."""

    async def test() -> None:
        async with running(models()[1]) as it:
            texts = [f"text {i}" * (i % 7) for i in range(500)]
            sends = await asyncio.gather(*(it.call("/v1/encode", body_of(text)) for text in texts))
            assert [orjson.loads(send.body)["ids"] for send in sends] == [[ord(c) for c in text] for text in texts]

    run(test())
