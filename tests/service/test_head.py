"""Heads: what is read from headers, what is replaced or dropped, and what is refused."""

from __future__ import annotations

import re

import pytest

from service.endpoint import Head
from service.errors import InvalidBody, UnsupportedMediaType
from service.head import check_head, new_request_id, read_head, route_of

TRACE = b"00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"


def head_of(**headers: bytes) -> Head:
    """A head with these headers; underscores stand for dashes."""
    return read_head("/v1/encode", b"", [(name.replace("_", "-").encode(), value) for name, value in headers.items()])


def test_a_bare_head() -> None:
    """Without headers everything has its default, and there is an id."""
    head = head_of()
    check_head(head)
    assert (head.content_type, head.accept, head.content_length, head.timeout_s) == (b"", b"", None, None)
    assert (head.traceparent, head.dialect, head.encoding) == (b"", b"", b"")
    assert head.request_id


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (b"application/json", b"application/json"),
        (b"Application/JSON; charset=utf-8", b"application/json"),
        (b" application/json ;x", b"application/json"),
        (b"", b""),
    ],
)
def test_the_content_type_is_normalized(value: bytes, expected: bytes) -> None:
    """Parameters and case do not count."""
    assert head_of(content_type=value).content_type == expected


def test_request_ids_differ() -> None:
    """Two requests never share an id that the service gave."""
    ids = {new_request_id() for _ in range(1000)}
    assert len(ids) == 1000
    assert all(re.fullmatch(r"[0-9a-f]{16}-[0-9a-f]+", name) for name in ids)


@pytest.mark.parametrize("value", [b"x", b"a" * 128, b"!~", b"7f3c-1"])
def test_a_good_request_id_is_kept(value: bytes) -> None:
    """1 to 128 printable ASCII characters come back as they are."""
    assert head_of(x_request_id=value).request_id == value.decode()


@pytest.mark.parametrize(
    "value", [b"", b"a" * 129, b"a b", b"a\tb", b"\xff", b"a\x00", b"a\r\nSet-Cookie: x", b"\xc3\xa9"]
)
def test_a_bad_request_id_is_replaced(value: bytes) -> None:
    """Anything else gets a fresh one, and the request goes on."""
    head = head_of(x_request_id=value)
    check_head(head)
    assert head.request_id.isascii()
    assert head.request_id.encode() != value
    assert head.request_id.isprintable()


@pytest.mark.parametrize("value", [TRACE, b"01" + TRACE[2:], b"cc" + TRACE[2:] + b"-what-comes-later"])
def test_a_good_traceparent_is_kept(value: bytes) -> None:
    """Version 00, and later ones that are longer."""
    assert head_of(traceparent=value).traceparent == value


@pytest.mark.parametrize(
    "value",
    [
        b"",
        TRACE.upper(),
        TRACE[:-1],
        TRACE + b"-x",
        TRACE + b"0",
        b"ff" + TRACE[2:],
        b"00-" + b"0" * 32 + TRACE[35:],
        TRACE[:36] + b"0" * 16 + b"-01",
        b"cc" + TRACE[2:] + b"-\xff",
        b"cc" + TRACE[2:] + b"-a\nb",
        b"cc" + TRACE[2:] + b"-" + b"x" * 1000,
        b"00-\xd9\xa1bf92f3577b34da6a3ce929d0e0e473-00f067aa0ba902b7-01",
    ],
)
def test_a_malformed_traceparent_is_dropped(value: bytes) -> None:
    """Wrong length, case, version ff, zero ids, or what no log line should hold: dropped, and the request goes on."""
    head = head_of(traceparent=value)
    check_head(head)
    assert head.traceparent == b""


@pytest.mark.parametrize(("value", "seconds"), [(b"1", 1.0), (b"0.25", 0.25), (b"3600", 3600.0), (b"1e-3", 0.001)])
def test_a_timeout_is_read(value: bytes, seconds: float) -> None:
    """Seconds, with fractions."""
    head = head_of(x_request_timeout=value)
    check_head(head)
    assert head.timeout_s == seconds


@pytest.mark.parametrize(
    "value", [b"", b"0", b"-1", b"nan", b"inf", b"-inf", b"3601", b"1s", b"\xff", b"1e999", b"0x10"]
)
def test_a_bad_timeout_is_refused(value: bytes) -> None:
    """Zero, negative, endless, too long, or no number: the answer says what is allowed."""
    with pytest.raises(InvalidBody, match="X-Request-Timeout"):
        check_head(head_of(x_request_timeout=value))


@pytest.mark.parametrize("value", [b"gzip", b"br", b"identity, gzip"])
def test_compressed_bodies_are_refused(value: bytes) -> None:
    """A body that would have to be unpacked is refused before it is read."""
    with pytest.raises(UnsupportedMediaType, match="Content-Encoding"):
        check_head(head_of(content_encoding=value))
    check_head(head_of(content_encoding=b"identity"))


def test_dialects() -> None:
    """There are two dialects."""
    for name in (b"vllm", b"sglang", b""):
        check_head(head_of(x_sidetok_dialect=name))
    with pytest.raises(InvalidBody, match="X-Sidetok-Dialect"):
        check_head(head_of(x_sidetok_dialect=b"tgi"))


def test_a_length_is_a_number() -> None:
    """Content-Length becomes a number."""
    assert head_of(content_length=b"123").content_length == 123


@pytest.mark.parametrize(("value", "route"), [(b"", "auto"), (b"auto", "auto"), (b"cpu", "cpu"), (b"gpu", "gpu")])
def test_a_route_is_asked_for(value: bytes, route: str) -> None:
    """Three names; anything else is refused."""
    head = head_of(x_sidetok_route=value)
    check_head(head)
    assert route_of(head) == route
    with pytest.raises(InvalidBody, match="X-Sidetok-Route"):
        check_head(head_of(x_sidetok_route=value + b"x"))


def test_clients_are_told_apart_by_their_key() -> None:
    """Equal keys are one client; the key itself is not kept; without one the client is not known here."""
    first, again, other = (head_of(authorization=b"Bearer " + key).client for key in (b"secret", b"secret", b"x"))
    assert first == again != other
    assert "secret" not in first
    assert head_of(x_api_key=b"k", authorization=b"a").client == head_of(x_api_key=b"k").client != ""
    assert head_of().client == ""
