"""The shape of a hot endpoint: a pure translation between one wire format and the dispatcher's request type.

`read`, `write` and `fail` run on a worker thread, never on the event loop (`fail` also runs there for refusals before
the body was read, so it must be cheap). They do no I/O, keep no state between calls, and never put text of a document
into an error.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from dispatcher.request import Request, Result
from gpu_core.errors import SidetokError


@dataclass(slots=True)
class Head:
    """The head of one HTTP request. Header names are lower-case bytes, as in ASGI."""

    path: str
    query: bytes
    headers: list[tuple[bytes, bytes]]
    request_id: str
    content_type: bytes = b""
    """The media type without parameters, lower-case; empty when the header is missing."""
    accept: bytes = b""
    content_length: int | None = None
    timeout_s: float | None = None
    """From the `X-Request-Timeout` header: seconds until this request is answered with 504."""
    traceparent: bytes = b""
    dialect: bytes = b""
    """From the `X-Sidetok-Dialect` header: one of `service.options.DIALECTS`; empty for the server's default."""
    encoding: bytes = b""
    """From `Content-Encoding`."""
    route: bytes = b""
    """From the `X-Sidetok-Route` header: `cpu`, `gpu` or `auto`; empty = auto."""
    client: str = ""
    """Whose request it is, for fair shares: by its API key, else by the peer of its connection."""


JOIN_BYTES = 65_536
"""Answers up to this size are one piece, and leave in one packet with their head."""
MAX_PIECES = 64
"""Answers of more pieces are joined, too: each takes some memory, and a system call takes a thousand at most."""


@dataclass(slots=True)
class Answer:
    """One HTTP answer. `Content-Length`, `X-Request-Id` are added by the sender."""

    body: bytes
    content_type: bytes = b"application/json"
    status: int = 200
    headers: list[tuple[bytes, bytes]] = field(default_factory=list)
    rest: Sequence[bytes] = ()
    """What follows `body` in a large answer: pieces that are sent as they are, each as often as it stands there."""

    @property
    def n_bytes(self) -> int:
        """Bytes of the whole body."""
        return len(self.body) + sum(map(len, self.rest)) if self.rest else len(self.body)

    @property
    def whole(self) -> bytes:
        """The whole body as one."""
        return b"".join((self.body, *self.rest)) if self.rest else self.body


def answer_of(pieces: Sequence[bytes]) -> Answer:
    """A JSON answer made of pieces; they are joined where it is short, or they are many."""
    if len(pieces) > MAX_PIECES or sum(map(len, pieces)) <= JOIN_BYTES:
        return Answer(b"".join(pieces))
    return Answer(pieces[0], rest=pieces[1:])


class Endpoint(Protocol):
    """One POST endpoint."""

    def read(self, head: Head, body: bytes) -> Request:
        """Parse the body. Raises `CallerError` (unknown model, wrong field, invalid text)."""

    def write(self, head: Head, request: Request, result: Result) -> Answer:
        """Format the result in the codec and dialect of `head`."""

    def fail(self, head: Head, error: SidetokError) -> Answer:
        """Format an error in the dialect of `head`; see `service.errors` for status and type."""
