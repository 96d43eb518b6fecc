"""The hot path: from an ASGI request to a job and back, without the router and without pydantic.

On the event loop happen only: reading the head, collecting the body, admission, and handing the answer to the transport.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from dispatcher.admission import Slot
from dispatcher.dispatcher import Dispatcher
from dispatcher.errors import Cancelled, EngineFault
from dispatcher.job import Job
from dispatcher.options import DispatcherOptions
from gpu_core.errors import OverloadError, SidetokError
from service.endpoint import Answer, Endpoint, Head
from service.errors import BodyTooLarge, status_of
from service.head import check_head, read_head
from service.meter import RequestMeter
from service.options import ServiceOptions

log = logging.getLogger("sidetok.access")

Scope = dict[str, Any]
Receive = Callable[[], Awaitable[Any]]
Send = Callable[[Any], Awaitable[None]]

TICK_S = 0.05
"""Period of deadline checks, and the age from which a request is watched for a client that went away."""
LINGER_S = 2.0
LINGER_BYTES = 256 << 20


class HotPath:
    """Serves POST endpoints. One instance per process; all methods run on the event loop."""

    def __init__(
        self, dispatcher: Dispatcher, meter: RequestMeter, service: ServiceOptions, work: DispatcherOptions
    ) -> None:
        self._dispatcher = dispatcher
        self._admission = dispatcher.admission
        self._meter = meter
        self._max_body_bytes = service.max_body_bytes
        self._timeout_s = work.timeout_s
        self._access_log = service.access_log
        self._unwatched: dict[Job[Answer], Receive] = {}
        self._watchers: dict[Job[Answer], asyncio.Task[None]] = {}
        self._create_future = asyncio.get_running_loop().create_future
        self.closing = False
        """Answers close their connections (the service drains)."""

    async def __call__(self, endpoint: Endpoint, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request, whatever happens, unless the client is gone."""
        start_ns = time.perf_counter_ns()
        head = read_head(scope)
        outcome, model = "cancelled", ""
        try:
            try:
                check_head(head)
                answer, model, outcome = await self._answer(endpoint, head, receive)
            except SidetokError as error:
                answer, outcome = endpoint.fail(head, error), status_of(error).outcome
                _add_retry_after(answer, error)
                await self._refuse(head, answer, receive, send)
            else:
                await self._send(head, answer, send)
        except _ClientGone:
            pass
        finally:
            seconds = (time.perf_counter_ns() - start_ns) * 1e-9
            self._meter.observe(model, "cpu", outcome, seconds)
            if self._access_log:
                self._log(head, model, outcome, seconds)

    def tick(self) -> None:
        """Enforce deadlines and start watching for departed clients; called every `TICK_S`."""
        self._dispatcher.sweep()
        for job, receive in self._unwatched.items():
            self._watchers[job] = asyncio.ensure_future(self._watch(job, receive))
        self._unwatched.clear()

    async def _answer(self, endpoint: Endpoint, head: Head, receive: Receive) -> tuple[Answer, str, str]:
        n_bytes = head.content_length or 0
        if n_bytes > self._max_body_bytes:
            raise self._too_large()
        slot = self._admission.admit(n_bytes)
        try:
            body = await self._body(slot, receive)
        except BaseException:
            slot.release()
            raise
        return await self._run(endpoint, head, body, slot, receive)

    async def _body(self, slot: Slot, receive: Receive) -> bytes:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise _ClientGone
        body: bytes = message["body"]
        if not message["more_body"]:
            return body
        chunks = [body]
        async for chunk in self._rest(slot, len(body), receive):
            chunks.append(chunk)  # noqa: PERF401
        return b"".join(chunks)

    async def _rest(self, slot: Slot, n_bytes: int, receive: Receive) -> AsyncIterator[bytes]:
        """The rest of a body; one without Content-Length takes its bytes from the admission as they come."""
        more = True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise _ClientGone
            n_bytes += len(message["body"])
            if n_bytes > self._max_body_bytes:
                raise self._too_large()
            if n_bytes > slot.n_bytes:
                slot.grow(n_bytes - slot.n_bytes)
            more = message["more_body"]
            yield message["body"]

    async def _run(
        self, endpoint: Endpoint, head: Head, body: bytes, slot: Slot, receive: Receive
    ) -> tuple[Answer, str, str]:
        timeout_s = self._timeout_s if head.timeout_s is None else head.timeout_s
        done = self._create_future()
        job: Job[Answer] = Job(
            lambda: endpoint.read(head, body),
            lambda request, result: endpoint.write(head, request, result),
            lambda error: endpoint.fail(head, error),
            lambda _: None if done.done() else done.set_result(None),
            slot,
            int(timeout_s * 1e9) + time.monotonic_ns() if timeout_s else 0,
        )
        self._unwatched[job] = receive
        self._dispatcher.submit(job)
        try:
            await done
        except asyncio.CancelledError:
            self._dispatcher.cancel(job)
            raise
        finally:
            if self._unwatched.pop(job, None) is None:
                self._watchers.pop(job).cancel()
        error = job.error
        if error is None:
            return job.answer, job.model, "ok"  # type: ignore[return-value]
        if isinstance(error, Cancelled):
            raise _ClientGone
        answer = job.answer or endpoint.fail(head, EngineFault("An internal error occurred. See the server's log."))
        _add_retry_after(answer, error)
        return answer, job.model, status_of(error).outcome

    async def _watch(self, job: Job[Answer], receive: Receive) -> None:
        """Wait for the client to go away, then drop the job and wake whoever waits for its answer."""
        while (await receive())["type"] != "http.disconnect":
            pass
        self._dispatcher.cancel(job)
        job.error = Cancelled("The client went away.")
        job.on_done(job)

    async def _send(self, head: Head, answer: Answer, send: Send, more_body: bool = False) -> None:
        headers = [
            (b"content-type", answer.content_type),
            (b"content-length", b"%d" % len(answer.body)),
            (b"x-request-id", head.request_id.encode()),
            *answer.headers,
        ]
        if self.closing:
            headers.append((b"connection", b"close"))
        await send({"type": "http.response.start", "status": answer.status, "headers": headers})
        await send({"type": "http.response.body", "body": answer.body, "more_body": more_body})

    async def _refuse(self, head: Head, answer: Answer, receive: Receive, send: Send) -> None:
        """Answer before the body was read. What the client still sends is thrown away, up to a bound, so that it gets to read the
        answer; then the connection closes. A client that sent `Expect: 100-continue` sends nothing."""
        answer.headers.append((b"connection", b"close"))
        expects = any(name == b"expect" for name, _ in head.headers)
        await self._send(head, answer, send, more_body=not expects)
        if not expects:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LINGER_S):
                    await _discard(receive)
            await send({"type": "http.response.body", "body": b""})

    def _too_large(self) -> BodyTooLarge:
        return BodyTooLarge(
            f"The body is over the limit of {self._max_body_bytes} bytes; split it or raise --max-body."
        )

    def _log(self, head: Head, model: str, outcome: str, seconds: float) -> None:
        log.info(
            "request",
            extra={
                "request_id": head.request_id,
                "traceparent": head.traceparent.decode(),
                "path": head.path,
                "model": model,
                "outcome": outcome,
                "duration_s": round(seconds, 6),
            },
        )


class _ClientGone(Exception):
    """The client closed the connection before its answer."""


def _add_retry_after(answer: Answer, error: BaseException) -> None:
    if isinstance(error, OverloadError):
        answer.headers.append((b"retry-after", b"%d" % max(1, round(error.retry_after_s))))


async def _discard(receive: Receive) -> None:
    """Read and drop the rest of a body, up to `LINGER_BYTES`."""
    n_bytes = 0
    while n_bytes < LINGER_BYTES:
        message = await receive()
        n_bytes += len(message.get("body", b""))
        if not message.get("more_body", False):
            return
