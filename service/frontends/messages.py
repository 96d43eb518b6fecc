"""What the keeper and its frontends say to each other: frames over a pair of sockets.

    length, 4 bytes little-endian │ JSON [kind, content]

| kind | from | content |
|---|---|---|
| `setup` | keeper | the first frame: `Setup` |
| `started` | frontend | none: its settings are sound |
| `loaded` | frontend | whether it can serve; digests of the files of its models by id, empty for what failed |
| `peers` | keeper | state of all frontends that accept: `loading`, `ready`, `failed` |
| `admitted` | keeper | none: it may serve |
| `banner` | keeper | none: show it |
| `report` | both | the number of a round; then that and the families, 0 being a report that nobody asked for |
| `change` | frontend | the number of a question and a change that it wants |
| `change` | keeper | the number of a round, who asked, the number of the question, the change |
| `changed` | frontend | the number of the round, the change, whether it was refused |
| `changed` | keeper | the number of the question: all made the change |
| `model` | frontend | id, state, error and digest of a model that it loaded at run time |
| `models` | keeper | state and error of all such models by id, the worst of all frontends |
| `scrape` | both | the number of a question; then that and the exposition |
| `drain`, `shut`, `leave` | keeper | none: want no traffic; nobody new can connect; end now |
"""

from __future__ import annotations

import asyncio
import socket
import struct
from dataclasses import asdict, dataclass, fields
from typing import Any, TypeVar

import orjson

from dispatcher.gpu.options import GpuRouteOptions
from dispatcher.options import DispatcherOptions
from service.options import ServiceOptions

_LENGTH = struct.Struct("<I")

Message = tuple[str, Any]
Options = TypeVar("Options", ServiceOptions, DispatcherOptions, GpuRouteOptions)


@dataclass(frozen=True)
class Setup:
    """What a frontend is told first. Descriptors are numbers that it inherited."""

    number: int
    """Of this frontend, from 1."""
    sockets: list[tuple[int, str]]
    """Descriptor of each listening socket, and its path if it is a Unix socket."""
    board: int
    """Descriptor of the board (`service.frontends.board`)."""
    n_frontends: int
    passed: bool
    """Somebody else opened the sockets, and goes on listening when this service is gone."""
    waits: bool
    """Accept connections only when the models are loaded: others accept them, or they may wait."""
    started_s: float
    """Unix time of the start of the service."""
    service: ServiceOptions
    work: DispatcherOptions
    gpu: GpuRouteOptions
    engine_command: list[str]
    changes: list[dict[str, Any]]
    """Models that were added and removed since the start of the service, as `service.additions.Change`."""

    def to_json(self) -> dict[str, Any]:
        """As the content of a message."""
        return asdict(self)

    @classmethod
    def from_json(cls, content: dict[str, Any]) -> Setup:
        """From the content of a message."""
        options = {
            "service": _options(ServiceOptions, content["service"]),
            "work": _options(DispatcherOptions, content["work"]),
            "gpu": _options(GpuRouteOptions, content["gpu"]),
        }
        sockets = [(fd, path) for fd, path in content["sockets"]]
        return cls(**{**content, **options, "sockets": sockets})


def frame(kind: str, content: Any = None) -> bytes:
    """One message as it goes over the socket."""
    data = orjson.dumps([kind, content])
    return _LENGTH.pack(len(data)) + data


def receive_now(sock: socket.socket) -> Message | None:
    """The next message of a blocking socket; None when the other end is gone."""
    head = _exactly(sock, _LENGTH.size)
    data = _exactly(sock, _LENGTH.unpack(head)[0]) if head else b""
    return _message(data) if data else None


class Channel:
    """One end, on an event loop."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    @classmethod
    async def over(cls, sock: socket.socket) -> Channel:
        """The channel of a connected socket."""
        sock.setblocking(False)
        return cls(*await asyncio.open_unix_connection(sock=sock))

    def send(self, kind: str, content: Any = None) -> None:
        """Send a message; it is dropped when the other end is gone."""
        if not self._writer.is_closing():
            self._writer.write(frame(kind, content))

    async def flush(self) -> None:
        """Wait until what was sent is with the system; nothing when the other end is gone."""
        try:
            await self._writer.drain()
        except ConnectionError:
            return

    async def receive(self) -> Message | None:
        """The next message; None when the other end is gone."""
        try:
            head = await self._reader.readexactly(_LENGTH.size)
            return _message(await self._reader.readexactly(_LENGTH.unpack(head)[0]))
        except (asyncio.IncompleteReadError, ConnectionError):
            return None

    def close(self) -> None:
        """Give up the socket."""
        self._writer.close()


def _message(data: bytes) -> Message:
    kind, content = orjson.loads(data)
    return kind, content


def _exactly(sock: socket.socket, n_bytes: int) -> bytes:
    data = b""
    while len(data) < n_bytes:
        chunk = sock.recv(n_bytes - len(data))
        if not chunk:
            return b""
        data += chunk
    return data


def _options(cls: type[Options], content: dict[str, Any]) -> Options:
    """Options from JSON, which knows no tuples."""
    values: dict[str, Any] = {field.name: content[field.name] for field in fields(cls)}
    values |= {name: tuple(value) for name, value in values.items() if isinstance(value, list)}
    return cls(**values)
