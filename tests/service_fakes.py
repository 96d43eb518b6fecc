"""Stand-ins around the service: models, the two ends of a request, a connection, and a service without sockets."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import AbstractContextManager
from typing import Any

from dispatcher.options import DispatcherOptions
from dispatcher.request import DecodeRequest, Result
from dispatcher.tokenizer import Tokenizer
from gpu_core.errors import SidetokError
from service.app import App, make_app
from service.endpoint import Answer, Endpoint
from service.head import check_head, read_head
from service.options import ServiceOptions
from service.registry import Registry
from service.state import Service
from tests.fakes import LIMIT_S, Gate


class FakeRegistry(Registry):
    """Models with the tokenizers of the test, the first one being the default. Nothing is loaded."""

    def __init__(self, aliases: tuple[str, ...] = (), **tokenizers: Tokenizer) -> None:
        names = tuple(f"{name}=no file" for name in tokenizers)
        super().__init__(ServiceOptions(model=names, alias=aliases), DispatcherOptions())
        self.loading: Gate | None = None
        """Where `load_all` waits, if anywhere."""
        for model in self.models():
            model.tokenizer = tokenizers[model.name]
            model.max_model_len = 1000
            model.state = "ready"

    def load_all(self, around: Callable[[], AbstractContextManager[object]] = contextlib.nullcontext) -> None:
        """See `Registry`."""
        with around():
            if self.loading is not None:
                self.loading.go_through()


class FakeReceive:
    """The client's side of a request: its messages in order, then silence until it hangs up."""

    def __init__(self, *chunks: bytes, hangs_up: bool = False) -> None:
        self._messages: deque[dict[str, Any]] = deque(
            {"type": "http.request", "body": chunk, "more_body": i + 1 < len(chunks)} for i, chunk in enumerate(chunks)
        )
        self.n_calls = 0
        self._hung_up: asyncio.Event | None = None
        self._hangs_up = hangs_up

    async def __call__(self) -> dict[str, Any]:
        """The next message."""
        self.n_calls += 1
        if self._messages:
            return self._messages.popleft()
        if not self._hangs_up:
            self._hung_up = asyncio.Event()
            await self._hung_up.wait()
        return {"type": "http.disconnect"}

    def hang_up(self) -> None:
        """The client goes away, now or when its messages are read."""
        self._hangs_up = True
        if self._hung_up is not None:
            self._hung_up.set()


class FakeSend:
    """The server's side: keeps what is sent."""

    def __init__(self) -> None:
        self.messages: list[dict[str, Any]] = []

    async def __call__(self, message: dict[str, Any]) -> None:
        """Take one message."""
        self.messages.append(message)

    @property
    def status(self) -> int:
        """The status of the one answer."""
        (start,) = [m for m in self.messages if m["type"] == "http.response.start"]
        return int(start["status"])

    @property
    def headers(self) -> dict[bytes, bytes]:
        """The headers of the one answer; a name that occurs twice fails."""
        (start,) = [m for m in self.messages if m["type"] == "http.response.start"]
        headers = dict(start["headers"])
        assert len(headers) == len(start["headers"])
        return headers

    @property
    def body(self) -> bytes:
        """The body of the answer."""
        return b"".join(m.get("body", b"") for m in self.messages if m["type"] == "http.response.body")

    @property
    def complete(self) -> bool:
        """Whether the answer was sent to its end."""
        last = self.messages[-1] if self.messages else {"type": ""}
        return last["type"] == "http.response.body" and not last.get("more_body", False)


def ask(endpoint: Endpoint, body: bytes, query: bytes = b"", **headers: str) -> Answer:
    """The answer of an endpoint without a server. Underscores in header names stand for dashes."""
    named = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    head = read_head("/v1/encode", query, named)
    try:
        check_head(head)
        request = endpoint.read(head, body)
        result: Result
        if isinstance(request, DecodeRequest):
            result = request.tokenizer.decode(request.sequences, request.skip_special_tokens)
        else:
            result = request.tokenizer.encode(request.documents, request.options)
        return endpoint.write(head, request, result)
    except SidetokError as error:
        return endpoint.fail(head, error)


class FakeTransport(asyncio.Transport):
    """A connection whose other end is the test."""

    def __init__(self) -> None:
        super().__init__()
        self.written = bytearray()
        self.closed = False
        self.reading = True
        self.aborted = False
        self.n_unread = 0
        """Bytes that the peer did not read yet."""
        self.sock: socket.socket | None = None
        """What is below the connection; none: nobody gets past `write`."""

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Keep what is written, unless the connection is closed, as asyncio does."""
        if not self.closed:
            self.written += data

    def close(self) -> None:
        """Close once."""
        self.closed = True

    def abort(self) -> None:
        """Close without sending what is left."""
        self.closed = self.aborted = True

    def is_closing(self) -> bool:
        """Whether `close` was called."""
        return self.closed

    def get_write_buffer_size(self) -> int:
        """Bytes on their way."""
        return self.n_unread

    def pause_reading(self) -> None:
        """The protocol wants no more data."""
        self.reading = False

    def resume_reading(self) -> None:
        """The protocol wants data again."""
        self.reading = True

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """Nothing is known about the peer."""
        return self.sock if name == "socket" else default


class Running:
    """A service with its app inside the running event loop, without sockets."""

    def __init__(self, service: Service, app: App) -> None:
        self.service = service
        self.app = app
        self.admission = service.dispatcher.admission

    async def call(
        self,
        path: str,
        *chunks: bytes,
        query: bytes = b"",
        method: str = "POST",
        receive: FakeReceive | None = None,
        **headers: str,
    ) -> FakeSend:
        """One request through ASGI. Underscores in header names stand for dashes."""
        named = [(name.replace("_", "-").encode(), value.encode("latin-1")) for name, value in headers.items()]
        scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": method,
            "path": path,
            "raw_path": path.encode(),
            "root_path": "",
            "scheme": "http",
            "query_string": query,
            "headers": named,
            "client": ("127.0.0.1", 1),
            "server": ("127.0.0.1", 80),
        }
        send = FakeSend()
        await self.app(scope, receive or FakeReceive(*(chunks or (b"",))), send)
        return send

    def requests(self) -> dict[tuple[str, str], int]:
        """Requests counted by now, by model and outcome."""
        return {(model, outcome): h.n for (model, _, outcome), h in self.service.meter.durations.items()}


@contextlib.asynccontextmanager
async def running(
    registry: Registry, service: ServiceOptions | None = None, work: DispatcherOptions | None = None
) -> AsyncIterator[Running]:
    """A service with these models; nothing is in flight when it is left."""
    made = Service(service or ServiceOptions(), work or DispatcherOptions(cpu_workers=2), registry)
    app = make_app(made)
    loaded = made.start()
    try:
        if getattr(registry, "loading", None) is None:
            await loaded
        yield Running(made, app)
        await eventually(lambda: made.dispatcher.n_in_flight == 0)
        assert (made.dispatcher.admission.n_requests, made.dispatcher.admission.n_bytes) == (0, 0)
        assert made.gate.uploads == {}
    finally:
        made.close()


async def eventually(happened: Callable[[], bool]) -> None:
    """Let the loop turn until something happened."""
    limit_s = time.monotonic() + LIMIT_S
    while not happened():
        assert time.monotonic() < limit_s, "what the test waits for did not happen"
        await asyncio.sleep(0.001)


def run(coroutine: Coroutine[Any, Any, None]) -> None:
    """Run an asynchronous test."""

    async def limited() -> None:
        async with asyncio.timeout(2 * LIMIT_S):
            await coroutine

    asyncio.run(limited())
