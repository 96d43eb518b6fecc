"""From the head of an HTTP request to a `Head`: the few headers that matter, checked."""

from __future__ import annotations

import itertools
import os
import re

from dispatcher.request import Route
from service.endpoint import Head
from service.errors import InvalidBody, UnsupportedMediaType
from service.options import DIALECTS

_REQUEST_ID = re.compile(rb"[\x21-\x7e]{1,128}")
_TRACEPARENT = re.compile(
    rb"(?!ff|00.{54})[0-9a-f]{2}-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}(-[\x21-\x7e]{0,200})?"
)
"""Version ff and all-zero ids are invalid, and only later versions than 00 may be longer."""
_ID_PREFIX = os.urandom(8).hex()
_next_id = itertools.count(1).__next__

MAX_TIMEOUT_S = 3600.0
_DIALECTS = {b"", *(name.encode() for name in DIALECTS)}
_ROUTES: dict[bytes, Route] = {b"": "auto", b"auto": "auto", b"cpu": "cpu", b"gpu": "gpu"}


def new_request_id() -> str:
    """An id that is unique across processes: a random prefix and a counter."""
    return f"{_ID_PREFIX}-{_next_id():x}"


def request_id_of(given: bytes | None) -> str:
    """The client's own id if it is one, else a new one."""
    if given is None or not _REQUEST_ID.fullmatch(given):
        return new_request_id()
    return given.decode("ascii")


def read_head(path: str, query: bytes, header_list: list[tuple[bytes, bytes]]) -> Head:
    """Read what the service needs from the head of one request. Header names are lower-case.

    An `X-Request-Id` that is not 1 to 128 printable ASCII characters is replaced, a malformed `traceparent` dropped, as
    the W3C recommends; neither fails the request. `check_head` raises for what does.
    """
    headers = dict(header_list)
    get = headers.get
    head = Head(path, query, header_list, request_id_of(get(b"x-request-id")))
    content_type = get(b"content-type")
    if content_type is not None:
        head.content_type = content_type.partition(b";")[0].strip().lower()
    head.accept = get(b"accept", b"")
    if (length := get(b"content-length")) is not None:
        head.content_length = int(length)
    if (traceparent := get(b"traceparent")) is not None and _TRACEPARENT.fullmatch(traceparent):
        head.traceparent = traceparent
    head.dialect = get(b"x-sidetok-dialect", b"")
    if (timeout := get(b"x-request-timeout")) is not None:
        head.timeout_s = _timeout(timeout)
    head.encoding = get(b"content-encoding", b"")
    head.route = get(b"x-sidetok-route", b"")
    if (key := get(b"x-api-key") or get(b"authorization")) is not None:
        # Keys differ between processes, and cannot be told from what is kept of them.
        head.client = f"key {hash(key):x}"
    return head


def check_head(head: Head) -> None:
    """Raise for a head that cannot be served, before any byte of the body is read."""
    if head.encoding not in (b"", b"identity"):
        raise UnsupportedMediaType("Compressed bodies are not read; send the body without Content-Encoding.")
    if head.timeout_s is not None and not 0 < head.timeout_s <= MAX_TIMEOUT_S:
        raise InvalidBody(f"X-Request-Timeout is a number of seconds above 0 and at most {MAX_TIMEOUT_S:g}.")
    if head.dialect not in _DIALECTS:
        raise InvalidBody(f"X-Sidetok-Dialect is {', '.join(DIALECTS[:-1])} or {DIALECTS[-1]}.")
    if head.route not in _ROUTES:
        raise InvalidBody("X-Sidetok-Route is cpu, gpu or auto.")


def route_of(head: Head) -> Route:
    """The route that the head asks for; `check_head` has seen it."""
    return _ROUTES[head.route]


def _timeout(value: bytes) -> float:
    """Seconds, or a value that `check_head` refuses."""
    try:
        return float(value)
    except ValueError:
        return -1.0
