"""What every hot request passes on the event loop, whichever transport it came by: limits, admission, job, record."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Protocol

from dispatcher.admission import Slot
from dispatcher.dispatcher import Dispatcher
from dispatcher.errors import EngineFault, TooBusy
from dispatcher.job import Job
from dispatcher.options import DispatcherOptions
from dispatcher.request import EncodeRequest, Request, Result
from gpu_core.errors import OverloadError, SidetokError
from service.endpoint import Answer, Endpoint, Head
from service.errors import BodyTooLarge, status_of
from service.head import check_head
from service.meter import RequestMeter
from service.model_hint import named_model
from service.options import ServiceOptions
from service.registry import Registry
from service.turn import Turn

log = logging.getLogger("sidetok.access")

TURN_BYTES = 65_536
"""Larger bodies are read and answered in turn. Above `dispatcher.router.WRITE_BYTES`, so only workers wait for it.

Answers whose ids a GPU listed are not, whoever writes them.
"""

OnDone = Callable[[Answer | None, SidetokError | None], None]
Write = Callable[[Head, Request, Result], Answer]


class Upload(Protocol):
    """A request whose body is on its way."""

    def overdue(self) -> None:
        """Its deadline passed: answer it and give its slot back."""


class Gate:
    """One per process; all methods run on the event loop."""

    def __init__(
        self,
        dispatcher: Dispatcher,
        meter: RequestMeter,
        service: ServiceOptions,
        work: DispatcherOptions,
        registry: Registry,
    ) -> None:
        self.dispatcher = dispatcher
        self.endpoints: dict[str, Endpoint] = {}
        """Hot endpoints by path."""
        self.constants: dict[str, Answer] = {}
        """Answers to `GET` that never change, by path."""
        self.uploads: dict[Upload, int] = {}
        """Requests whose bodies are on their way, and their deadlines; see `sweep`."""
        self.closing = False
        """Answers close their connections (the service drains)."""
        self._admission = dispatcher.admission
        self._registry = registry
        self._meter = meter
        self._max_body_bytes = service.max_body_bytes
        self._timeout_s = work.timeout_s
        self._access_log = service.access_log
        self._turn = Turn()

    def enter(self, head: Head) -> Slot:
        """Check the head and admit the request; raises what it is refused for."""
        check_head(head)
        n_bytes = head.content_length or 0
        self.check_size(n_bytes)
        timeout_s = self._timeout_s if head.timeout_s is None else head.timeout_s
        return self._admission.admit(n_bytes, head.client, timeout_s)

    def deadline_of(self, head: Head) -> int:
        """The deadline of a request whose head arrived now, on the clock of `time.monotonic_ns`; 0 = never."""
        timeout_s = self._timeout_s if head.timeout_s is None else head.timeout_s
        return int(timeout_s * 1e9) + time.monotonic_ns() if timeout_s else 0

    def sweep(self) -> None:
        """End the uploads whose deadline passed: a client that stalls must not keep its slot. Called periodically."""
        now_ns = time.monotonic_ns()
        for upload in [upload for upload, deadline_ns in self.uploads.items() if 0 < deadline_ns < now_ns]:
            upload.overdue()

    def check_size(self, n_bytes: int) -> None:
        """Raise `BodyTooLarge` for a body that has, or will have, `n_bytes`."""
        if n_bytes > self._max_body_bytes:
            raise BodyTooLarge(
                f"The body is over the limit of {self._max_body_bytes} bytes; split it or raise --max-body-bytes."
            )

    def grow(self, slot: Slot, n_bytes: int) -> None:
        """Account for a body that has `n_bytes` by now; one without Content-Length takes its bytes as they come."""
        self.check_size(n_bytes)
        if n_bytes > slot.n_bytes:
            slot.grow(n_bytes - slot.n_bytes)

    def submit(
        self,
        endpoint: Endpoint,
        head: Head,
        body: bytes,
        slot: Slot,
        deadline_ns: int,
        on_done: OnDone,
        send: Callable[[Job[Answer]], None] | None = None,
    ) -> Job[Answer]:
        """Queue the job of a request whose body is complete. `on_done` runs once, unless the job is cancelled.

        `send`: see `Job`.

        Raises `TooBusy`, and then gives the slot back, when its model already holds its share.
        """
        flow = head.client
        if self._registry.n_models > 1:
            model = self._registry.canonical(named_model(head, body))
            flow = f"{flow} {model}"
            try:
                slot.assign(model)
            except TooBusy:
                slot.release()
                raise
        read = endpoint.read
        write: Write = endpoint.write
        if len(body) > TURN_BYTES:
            read, write = self._turn.bound(read), _unless_listed(write, self._turn.bound(write))
        job: Job[Answer] = Job(
            lambda: read(head, body),
            lambda request, result: write(head, request, result),
            lambda error: endpoint.fail(head, error),
            on_done,
            slot,
            deadline_ns,
            flow,
            send,
        )
        self.dispatcher.submit(job)
        return job

    @staticmethod
    def answer_of(
        answer: Answer | None, error: SidetokError | None, endpoint: Endpoint, head: Head
    ) -> tuple[Answer, str]:
        """The answer to a request whose job ended with `answer` and `error`, and its outcome for the metrics."""
        if error is None and answer is not None:
            return answer, "ok"
        error = error or EngineFault("A job ended without an answer.")
        answer = answer or endpoint.fail(head, EngineFault("An internal error occurred; see the server's log."))
        return _with_retry_after(answer, error), status_of(error).outcome

    @staticmethod
    def refusal(endpoint: Endpoint, head: Head, error: SidetokError) -> tuple[Answer, str]:
        """The answer to a request that never became a job, and its outcome."""
        return _with_retry_after(endpoint.fail(head, error), error), status_of(error).outcome

    def record(self, head: Head, model: str, outcome: str, start_ns: int, route: str = "cpu", end_ns: int = 0) -> None:
        """Count a request from `start_ns` to `end_ns` (`time.monotonic_ns`; 0 = now), and log it if asked to."""
        seconds = ((end_ns or time.monotonic_ns()) - start_ns) * 1e-9
        self._meter.observe(model, route, outcome, seconds)
        if self._access_log:
            log.info(
                "request",
                extra={
                    "request_id": head.request_id,
                    "traceparent": head.traceparent.decode("ascii"),
                    "path": head.path,
                    "model": model,
                    "route": route,
                    "outcome": outcome,
                    "duration_s": round(seconds, 6),
                },
            )


def _with_retry_after(answer: Answer, error: BaseException) -> Answer:
    # A dialect may have said so itself.
    if isinstance(error, OverloadError) and not any(name == b"retry-after" for name, _ in answer.headers):
        answer.headers.append((b"retry-after", b"%d" % max(1, round(error.retry_after_s))))
    return answer


def _unless_listed(write: Write, in_turn: Write) -> Write:
    """`in_turn` for answers that take long to write."""

    def written(head: Head, request: Request, result: Result) -> Answer:
        is_listed = isinstance(request, EncodeRequest) and request.is_listed(result)
        return (write if is_listed else in_turn)(head, request, result)

    return written
