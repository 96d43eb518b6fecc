"""One request on the short cut of `service.protocol`: admission, body, job, answer."""

from __future__ import annotations

import asyncio
import time
from typing import Protocol

from dispatcher.admission import Slot
from dispatcher.job import Job, deadline_exceeded
from gpu_core.errors import SidetokError
from service.endpoint import JOIN_BYTES, Answer, Endpoint, Head
from service.gate import Gate
from service.hot import LINGER_BYTES, LINGER_S
from service.http_answer import head_of, pieces_of
from service.outlet import Outlet

JOIN_CHUNKS = 1024
"""Pieces of a body that are joined at a time: each takes some 40 bytes of memory, however short it is."""


class Connection(Protocol):
    """What a request needs of its connection."""

    gate: Gate
    outlet: Outlet
    transport: asyncio.Transport
    loop: asyncio.AbstractEventLoop

    def on_response_complete(self) -> None:
        """An answer was handed to the transport."""


class HotCycle:
    """One hot request, from its head to the end of its answer. All methods run on the event loop."""

    __slots__ = (
        "_chunks",
        "_connection",
        "_deadline_ns",
        "_endpoint",
        "_head",
        "_job",
        "_n_bytes",
        "_n_joined",
        "_slot",
        "_start_ns",
        "disconnected",
        "keep_alive",
        "more_body",
        "response_complete",
    )

    def __init__(self, connection: Connection, endpoint: Endpoint, head: Head, keep_alive: bool) -> None:
        self._connection = connection
        self._endpoint = endpoint
        self._head = head
        self._start_ns = time.monotonic_ns()
        self._chunks: list[bytes] = []
        self._n_joined = 0
        self._n_bytes = 0
        self._deadline_ns = 0
        self._slot: Slot | None = None
        self._job: Job[Answer] | None = None
        self.keep_alive = keep_alive
        self.disconnected = False
        self.more_body = True
        self.response_complete = False

    def begin(self, expects_continue: bool) -> None:
        """Admit the request, or refuse it before its body was read."""
        gate = self._connection.gate
        try:
            self._slot = gate.enter(self._head)
        except SidetokError as error:
            self._refuse(error, will_send=not expects_continue)
            return
        gate.uploads[self] = self._deadline_ns = gate.deadline_of(self._head)
        if expects_continue:
            self._connection.outlet.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def feed(self, chunk: bytes) -> None:
        """A piece of the body arrived; the rest of a refused one is dropped."""
        self._n_bytes += len(chunk)
        if self.response_complete:
            if self._n_bytes > LINGER_BYTES:
                self._connection.transport.close()
            return
        assert self._slot is not None
        try:
            self._connection.gate.grow(self._slot, self._n_bytes)
        except SidetokError as error:
            self._stop(error)
            return
        self._chunks.append(chunk)
        if len(self._chunks) - self._n_joined == JOIN_CHUNKS:
            self._chunks[self._n_joined :] = [b"".join(self._chunks[self._n_joined :])]
            self._n_joined += 1

    def overdue(self) -> None:
        """The deadline passed before the body was complete."""
        self._stop(deadline_exceeded())

    def end(self) -> None:
        """The body is complete."""
        self.more_body = False
        if self.response_complete:
            self._connection.transport.close()
            return
        chunks, self._chunks = self._chunks, []
        body = chunks[0] if len(chunks) == 1 else b"".join(chunks)
        assert self._slot is not None
        gate = self._connection.gate
        del gate.uploads[self]
        slot, self._slot = self._slot, None
        # Where others wait, the loop is up anyway, and sends many answers at once.
        is_only_one = gate.dispatcher.is_idle and self.keep_alive
        send = self._send if is_only_one and self._connection.outlet.permit() else None
        try:
            self._job = gate.submit(self._endpoint, self._head, body, slot, self._deadline_ns, self._done, send)
        except SidetokError as error:
            answer, outcome = gate.refusal(self._endpoint, self._head, error)
            self._write(answer)
            self._finish("", outcome)

    def lost(self) -> None:
        """The client is gone: the work is dropped."""
        if self.response_complete:
            return
        self.disconnected = self.response_complete = True
        gate = self._connection.gate
        if self._job is not None:
            gate.dispatcher.cancel(self._job)
            self._job = None
        elif self._slot is not None:
            del gate.uploads[self]
            self._slot.release()
        gate.record(self._head, "", "cancelled", self._start_ns)

    def _send(self, job: Job[Answer]) -> None:
        """On the worker that wrote the answer: hand it to the client, unless the connection is to be closed.

        Beside a large one a wake-up is little, and the loop goes on where the socket takes no more.
        """
        connection, answer = self._connection, job.answer
        if answer is None or answer.n_bytes > JOIN_BYTES or connection.gate.closing or not self.keep_alive:
            return
        pieces = pieces_of(head_of(answer, self._head.request_id, True), answer)
        connection.outlet.send(pieces, lambda: connection.gate.dispatcher.begin_answer(job))

    def _done(self, answer: Answer | None, error: SidetokError | None) -> None:
        gate = self._connection.gate
        answer, outcome = gate.answer_of(answer, error, self._endpoint, self._head)
        assert self._job is not None
        # The connection keeps its last cycle; the job would keep the body.
        job, self._job = self._job, None
        if not job.answered_ns:
            self._write(answer)
        self._finish(job.model, outcome, job.route, job.answered_ns)

    def _finish(self, model: str, outcome: str, route: str = "cpu", end_ns: int = 0) -> None:
        self.response_complete = True
        if not self.keep_alive:
            self._connection.outlet.flush()
            self._connection.transport.close()
        self._connection.gate.record(self._head, model, outcome, self._start_ns, route, end_ns)
        self._connection.on_response_complete()

    def _stop(self, error: SidetokError) -> None:
        """Give up an upload."""
        assert self._slot is not None
        del self._connection.gate.uploads[self]
        self._slot.release()
        self._refuse(error, will_send=True)

    def _refuse(self, error: SidetokError, will_send: bool) -> None:
        """Answer at once; drop what the client still sends, so that it can read the answer; close the connection."""
        gate = self._connection.gate
        answer, outcome = gate.refusal(self._endpoint, self._head, error)
        self.keep_alive = False
        self._chunks.clear()
        self._write(answer)
        gate.record(self._head, "", outcome, self._start_ns)
        if will_send:
            self._connection.loop.call_later(LINGER_S, self._connection.transport.close)
        else:
            self._connection.transport.close()

    def _write(self, answer: Answer) -> None:
        self.response_complete = True
        if self._connection.gate.closing:
            self.keep_alive = False
        head = head_of(answer, self._head.request_id, self.keep_alive)
        self._connection.outlet.write(*pieces_of(head, answer))
