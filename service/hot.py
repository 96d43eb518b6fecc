"""Hot requests through ASGI: past the router and pydantic, but over the server's standard interface.

`service.protocol` serves the same endpoints without ASGI; this path is for other servers, for tests, and for what the
protocol passes on (pipelined requests, absolute URLs).
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from dispatcher.admission import Slot
from dispatcher.job import Job, deadline_exceeded
from gpu_core.errors import SidetokError
from service.endpoint import Answer, Endpoint, Head
from service.gate import Gate
from service.head import read_head

Scope = Any
Receive = Callable[[], Awaitable[Any]]
Send = Callable[[Any], Awaitable[None]]
Done = tuple[Answer | None, SidetokError | None]

LINGER_S = 2.0
LINGER_BYTES = 256 << 20
"""For how long and up to how many bytes a refused body is read and dropped, so that the client can read the answer."""


class HotPath:
    """Serves POST endpoints; all methods run on the event loop."""

    def __init__(self, gate: Gate) -> None:
        self._gate = gate
        self._unwatched: dict[Job[Answer], tuple[Receive, asyncio.Future[Done]]] = {}
        self._watchers: dict[Job[Answer], asyncio.Task[None]] = {}

    async def __call__(self, endpoint: Endpoint, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request, whatever happens, unless the client is gone."""
        start_ns = time.monotonic_ns()
        head = read_head(scope["path"], scope["query_string"], scope["headers"])
        if not head.client and (peer := scope.get("client")):
            head.client = peer[0]
        receive = incoming = _Incoming(receive)
        outcome, model, route = "cancelled", "", "cpu"
        try:
            slot = self._gate.enter(head)
            deadline_ns = self._gate.deadline_of(head)
            body = await self._body(slot, deadline_ns, receive)
            model, route, done = await self._job(endpoint, head, body, slot, deadline_ns, receive)
            answer, outcome = self._gate.answer_of(*done, endpoint, head)
            await self._send(head, answer, send)
        except SidetokError as error:
            answer, outcome = self._gate.refusal(endpoint, head, error)
            await self._refuse(head, answer, incoming, send)
        except _ClientGone:
            pass
        finally:
            self._gate.record(head, model, outcome, start_ns, route)

    def tick(self) -> None:
        """Start watching the clients of requests that have waited since the last tick."""
        for job, (receive, done) in self._unwatched.items():
            self._watchers[job] = asyncio.ensure_future(self._watch(job, receive, done))
        self._unwatched.clear()

    async def _body(self, slot: Slot, deadline_ns: int, receive: Receive) -> bytes:
        """The whole body; the slot is released when there will be none."""
        left_s = max(0, deadline_ns - time.monotonic_ns()) * 1e-9 if deadline_ns else None
        try:
            async with asyncio.timeout(left_s):
                return b"".join([chunk async for chunk in self._chunks(slot, receive)])
        except TimeoutError:
            slot.release()
            raise deadline_exceeded() from None
        except BaseException:
            slot.release()
            raise

    async def _chunks(self, slot: Slot, receive: Receive) -> AsyncIterator[bytes]:
        n_bytes = 0
        more = True
        while more:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise _ClientGone
            body = message.get("body", b"")
            n_bytes += len(body)
            self._gate.grow(slot, n_bytes)
            more = message.get("more_body", False)
            yield body

    async def _job(
        self, endpoint: Endpoint, head: Head, body: bytes, slot: Slot, deadline_ns: int, receive: Receive
    ) -> tuple[str, str, Done]:
        """Run the job of a request; its model, its route, and what it ended with.

        Raises `_ClientGone` when the client left.
        """
        done: asyncio.Future[Done] = asyncio.get_running_loop().create_future()

        def on_done(answer: Answer | None, error: SidetokError | None) -> None:
            if not done.done():
                done.set_result((answer, error))

        job = self._gate.submit(endpoint, head, body, slot, deadline_ns, on_done)
        self._unwatched[job] = receive, done
        try:
            ended = await done
        except asyncio.CancelledError:
            self._gate.dispatcher.cancel(job)
            raise
        finally:
            if self._unwatched.pop(job, None) is None:
                self._watchers.pop(job).cancel()
        return job.model, job.route, ended

    async def _watch(self, job: Job[Answer], receive: Receive, done: asyncio.Future[Done]) -> None:
        """Wait for the client to go away, then drop the job and wake whoever waits for its answer."""
        while (await receive())["type"] != "http.disconnect":
            pass
        self._gate.dispatcher.cancel(job)
        if not done.done():
            done.set_exception(_ClientGone())

    async def _send(self, head: Head, answer: Answer, send: Send, more_body: bool = False) -> None:
        headers = [
            (b"content-type", answer.content_type),
            (b"content-length", b"%d" % answer.n_bytes),
            (b"x-request-id", head.request_id.encode()),
            *answer.headers,
        ]
        if self._gate.closing:
            headers.append((b"connection", b"close"))
        await send({"type": "http.response.start", "status": answer.status, "headers": headers})
        await send({"type": "http.response.body", "body": answer.whole, "more_body": more_body})

    async def _refuse(self, head: Head, answer: Answer, incoming: _Incoming, send: Send) -> None:
        """Answer before the body was read, drop what the client still sends, then close the connection.

        A client that sent `Expect: 100-continue` sends nothing.
        """
        answer.headers.append((b"connection", b"close"))
        will_send = not incoming.complete and not any(name == b"expect" for name, _ in head.headers)
        await self._send(head, answer, send, more_body=will_send)
        if will_send:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LINGER_S):
                    await _discard(incoming)
            await send({"type": "http.response.body", "body": b""})


class _ClientGone(Exception):
    """The client closed the connection before its answer."""


class _Incoming:
    """`receive`, and whether it gave the end of the body."""

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self.complete = False

    async def __call__(self) -> Any:
        message = await self._receive()
        self.complete = not message.get("more_body", False)
        return message


async def _discard(incoming: _Incoming) -> None:
    """Read and drop the rest of a body, up to `LINGER_BYTES`."""
    n_bytes = 0
    while n_bytes < LINGER_BYTES and not incoming.complete:
        n_bytes += len((await incoming()).get("body", b""))
