"""What goes over a connection: requests as buffers, answers as they arrive. Here HTTP/1.1."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import httptools

from loadtest.target import SECTIONS_HEADER

SECTIONS = SECTIONS_HEADER.lower().encode()
Buffer = bytes | memoryview


@dataclass(slots=True)
class Answer:
    """One answer. `body` is kept only when it was asked for; `n_bytes` always counts it."""

    status: int = 0
    n_bytes: int = 0
    sections: str = ""
    """The header that names the parts of an octet-stream answer, else empty."""
    body: list[bytes] = field(default_factory=list)


class MalformedAnswer(Exception):
    """What came back is no answer of this wire."""


class Reader(Protocol):
    """Reads the answers of one connection."""

    def expect(self, keep_body: bool) -> None:
        """Begin the next answer."""
        ...

    def feed(self, data: memoryview) -> Answer | None:
        """Take bytes; the answer, once it is complete. Raises `MalformedAnswer`."""
        ...

    @property
    def reusable(self) -> bool:
        """Whether the connection may carry another request after this answer."""
        ...


class Wire(Protocol):
    """A way to put requests on a connection."""

    def request(self, path: str, content_type: str, body: Sequence[Buffer]) -> list[Buffer]:
        """The buffers to send."""
        ...

    def question(self, path: str) -> list[Buffer]:
        """The buffers of a request without a body."""
        ...

    def reader(self) -> Reader:
        """A reader for a new connection."""
        ...


class HttpWire:
    """HTTP/1.1 with kept connections."""

    def __init__(self, authority: str, headers: dict[str, str] | None = None) -> None:
        """`headers` go with every request."""
        fields = {"Host": authority, **(headers or {})}
        self._fields = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
        self._heads: dict[tuple[str, str], bytes] = {}

    def request(self, path: str, content_type: str, body: Sequence[Buffer]) -> list[Buffer]:
        """Head and body; the head's fixed part is made once."""
        fixed = self._heads.get((path, content_type))
        if fixed is None:
            fixed = self._heads[path, content_type] = (
                f"POST {path} HTTP/1.1\r\n{self._fields}Content-Type: {content_type}\r\nContent-Length: "
            ).encode()
        return [b"%b%d\r\n\r\n" % (fixed, sum(map(len, body))), *body]

    def question(self, path: str) -> list[Buffer]:
        """A GET."""
        return [f"GET {path} HTTP/1.1\r\n{self._fields}\r\n".encode()]

    def reader(self) -> HttpReader:
        """A reader for a new connection."""
        return HttpReader()


class HttpReader:
    """Answers of one HTTP connection; also takes the callbacks of the parser."""

    def __init__(self) -> None:
        self._parser = httptools.HttpResponseParser(self)
        self._answer = Answer()
        self._keep_body = False
        self._complete = True
        self.reusable = False

    def expect(self, keep_body: bool) -> None:
        """Begin the next answer; `keep_body` is whether its body will be looked at."""
        self._answer, self._keep_body, self._complete = Answer(), keep_body, False

    def feed(self, data: memoryview) -> Answer | None:
        """Take bytes; the answer, once it is complete. Bytes that no request asked for are malformed."""
        if self._complete:
            raise MalformedAnswer("bytes after the end of an answer")
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            raise MalformedAnswer(type(error).__name__) from error
        return self._answer if self._complete else None

    def on_header(self, name: bytes, value: bytes) -> None:
        """Of the parser."""
        if name.lower() == SECTIONS:
            self._answer.sections = value.decode("latin-1")

    def on_body(self, data: bytes) -> None:
        """Of the parser."""
        self._answer.n_bytes += len(data)
        if self._keep_body:
            self._answer.body.append(data)

    def on_message_complete(self) -> None:
        """Of the parser."""
        self._answer.status = self._parser.get_status_code()
        self.reusable = self._parser.should_keep_alive()
        self._complete = True
