"""HTTP on the wire: what is sent, and answers in whatever pieces they arrive."""

from __future__ import annotations

import pytest

from loadtest.wire import Answer, HttpReader, HttpWire, MalformedAnswer

PLAIN = b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\nX-Sidetok-Sections: counts=8,ids=4\r\n\r\nabcd"
CHUNKED = b"HTTP/1.1 429 Too Many Requests\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nab\r\n2\r\ncd\r\n0\r\n\r\n"


def read(data: bytes, n_bytes: int, keep_body: bool = True) -> tuple[Answer | None, HttpReader]:
    """The answer, from pieces of this size."""
    reader = HttpReader()
    reader.expect(keep_body)
    answer = None
    for start in range(0, len(data), n_bytes):
        assert answer is None
        answer = reader.feed(memoryview(data)[start : start + n_bytes])
    return answer, reader


def test_a_request() -> None:
    """Method, path, host, codec and length, then the body as it was given."""
    wire = HttpWire("localhost:80")
    for _ in range(2):
        head, *body = wire.request("/v1/encode", "application/octet-stream", [b"ab", memoryview(b"c")])
        assert bytes(head) == (
            b"POST /v1/encode HTTP/1.1\r\nHost: localhost:80\r\nContent-Type: application/octet-stream\r\n"
            b"Content-Length: 3\r\n\r\n"
        )
        assert body == [b"ab", b"c"]


def test_headers_of_every_request() -> None:
    """What all requests say stands in each head."""
    head, *_ = HttpWire("h", {"X-Sidetok-Route": "gpu"}).request("/p", "t/t", [])
    assert (
        bytes(head)
        == b"POST /p HTTP/1.1\r\nHost: h\r\nX-Sidetok-Route: gpu\r\nContent-Type: t/t\r\nContent-Length: 0\r\n\r\n"
    )


@pytest.mark.parametrize("n_bytes", [1, 7, 1000])
@pytest.mark.parametrize(("data", "status"), [(PLAIN, 200), (CHUNKED, 429)])
def test_an_answer_in_pieces(data: bytes, status: int, n_bytes: int) -> None:
    """However an answer is cut, it is complete with its last byte and not before."""
    answer, reader = read(data, n_bytes)
    assert answer is not None
    assert (answer.status, answer.n_bytes, b"".join(answer.body)) == (status, 4, b"abcd")
    assert answer.sections == ("counts=8,ids=4" if data is PLAIN else "")
    assert reader.reusable


def test_bodies_nobody_looks_at() -> None:
    """They are counted and not kept."""
    answer, _ = read(PLAIN, 5, keep_body=False)
    assert answer is not None
    assert (answer.n_bytes, answer.body) == (4, [])


def test_a_connection_that_ends() -> None:
    """After `Connection: close` no other request may follow."""
    answer, reader = read(PLAIN.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"), 100)
    assert answer is not None
    assert not reader.reusable


def test_answers_follow_each_other() -> None:
    """A reader serves all answers of its connection."""
    reader = HttpReader()
    for _ in range(3):
        reader.expect(True)
        answer = reader.feed(memoryview(PLAIN))
        assert answer is not None
        assert b"".join(answer.body) == b"abcd"


@pytest.mark.parametrize("data", [b"garbage\r\n\r\n", b"HTTP/1.1 OK\r\n\r\n", b"\x00\x01\x02"])
def test_what_is_no_answer(data: bytes) -> None:
    """Bytes that are not HTTP are malformed."""
    with pytest.raises(MalformedAnswer):
        read(data, 100)


def test_bytes_that_nobody_asked_for() -> None:
    """Whatever follows a complete answer is malformed."""
    _, reader = read(PLAIN, 100)
    with pytest.raises(MalformedAnswer):
        reader.feed(memoryview(PLAIN))
