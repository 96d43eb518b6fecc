"""The HTTP protocol over connections whose other end is the test."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import orjson
import uvicorn
from uvicorn.server import ServerState

from dispatcher.options import DispatcherOptions
from service.options import ServiceOptions
from service.protocol import Protocol
from tests.fakes import FakeTokenizer
from tests.service_fakes import FakeRegistry, FakeTransport, Running, eventually, run, running


@dataclass
class Response:
    """One answer on the wire."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def ids(self) -> Any:
        """The ids of an encode answer."""
        assert self.status == 200, self.body
        return orjson.loads(self.body)["ids"]


class Line:
    """One connection of a client."""

    def __init__(
        self, it: Running, config: uvicorn.Config, state: ServerState, sock: socket.socket | None = None
    ) -> None:
        self.transport = FakeTransport()
        self.transport.sock = sock
        self.protocol: Any = config.http_protocol_class(  # type: ignore[call-arg]
            config=config, server_state=state, app_state={}, _loop=asyncio.get_running_loop()
        )
        self.protocol.connection_made(self.transport)
        self.it = it
        self._answers: list[Response] = []
        self._at = 0
        """Where the next answer begins in what was written."""

    def send(self, *pieces: bytes) -> None:
        """The client sends, piece by piece."""
        for piece in pieces:
            self.protocol.data_received(piece)

    def lose(self) -> None:
        """The client is gone."""
        self.transport.closed = True
        self.protocol.connection_lost(None)

    def responses(self) -> list[Response]:
        """Every complete answer so far; informational ones are left out."""
        written = self.transport.written
        while (end := written.find(b"\r\n\r\n", self._at)) >= 0:
            first, *lines = written[self._at : end].decode("latin-1").split("\r\n")
            status = int(first.split(" ")[1])
            headers = dict(line.lower().split(": ", 1) for line in lines)
            body = end + 4
            after = body + int(headers.get("content-length", 0))
            if len(written) < after:
                break
            self._at = after
            if status >= 200:
                self._answers.append(Response(status, headers, bytes(written[body:after])))
        return [*self._answers]

    async def wait(self, n: int = 1) -> list[Response]:
        """The first n answers."""
        await eventually(lambda: len(self.responses()) >= n)
        return self.responses()


@dataclass
class Wire:
    """A running service and a way to connect to it."""

    it: Running
    config: uvicorn.Config
    state: ServerState

    def connect(self, sock: socket.socket | None = None) -> Line:
        """A new connection; `sock` is what workers may write to."""
        return Line(self.it, self.config, self.state, sock)


@asynccontextmanager
async def wired(
    tokenizer: FakeTokenizer | None = None, service: ServiceOptions | None = None, **work: Any
) -> AsyncIterator[Wire]:
    """A service behind the protocol."""
    registry = FakeRegistry(fake=tokenizer or FakeTokenizer())
    async with running(registry, service, DispatcherOptions(**{"cpu_workers": 2, **work})) as it:
        config = uvicorn.Config(
            it.app,
            http=type("BoundProtocol", (Protocol,), {"gate": it.service.gate}),
            ws="none",
            lifespan="off",
            interface="asgi3",
            log_config=None,
            access_log=False,
        )
        config.load()
        yield Wire(it, config, ServerState())


def request(text: Any = "ab", path: str = "/v1/encode", version: str = "1.1", **headers: str) -> bytes:
    """An encode request."""
    return raw(orjson.dumps({"text": text}), path, "POST", version, **headers)


def raw(body: bytes, path: str = "/v1/encode", method: str = "POST", version: str = "1.1", **headers: str) -> bytes:
    """A request with this body and a Content-Length."""
    fields = {"host": "x", "content_length": str(len(body)), **headers}
    lines = [f"{name.replace('_', '-')}: {value}" for name, value in fields.items()]
    return "\r\n".join([f"{method} {path} HTTP/{version}", *lines, "", ""]).encode() + body


def chunked(*chunks: bytes, **headers: str) -> bytes:
    """A request whose body comes in chunks."""
    fields = "".join(f"{name.replace('_', '-')}: {value}\r\n" for name, value in headers.items())
    head = f"POST /v1/encode HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n{fields}\r\n".encode()
    return head + b"".join(b"%x\r\n%b\r\n" % (len(chunk), chunk) for chunk in chunks if chunk) + b"0\r\n\r\n"


def ids(text: str) -> list[int]:
    """What the fake tokenizer makes of a text."""
    return [ord(c) for c in text]


def on_wire(test: Callable[[Wire], Any], **options: Any) -> None:
    """Run a test against a service with these options."""

    async def main() -> None:
        async with wired(**options) as wire:
            await test(wire)

    run(main())
