"""An answer as it goes over the wire, in HTTP/1.1."""

from __future__ import annotations

from uvicorn.protocols.http.httptools_impl import STATUS_LINE

from service.endpoint import JOIN_BYTES, Answer


def head_of(answer: Answer, request_id: str, keep_alive: bool) -> bytes:
    """Everything before the body."""
    return b"%bcontent-type: %b\r\ncontent-length: %d\r\nx-request-id: %b\r\n%b%b\r\n" % (
        STATUS_LINE[answer.status],
        answer.content_type,
        answer.n_bytes,
        request_id.encode(),
        b"".join([b"%b: %b\r\n" % header for header in answer.headers]),
        b"" if keep_alive else b"connection: close\r\n",
    )


def pieces_of(head: bytes, answer: Answer) -> list[bytes]:
    """What is sent of an answer; a short one in one piece."""
    if answer.rest or len(answer.body) > JOIN_BYTES:
        return [head, answer.body, *answer.rest]
    return [head + answer.body]
