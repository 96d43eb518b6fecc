"""The three codecs: what they read, what they refuse, and that their errors say where but never what."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from typing import Any

import msgpack
import pytest

from dispatcher.errors import InvalidText
from gpu_core.errors import CallerError
from service.codecs import (
    JSON,
    MSGPACK,
    OCTETS,
    answer_codec,
    read_json,
    read_msgpack,
    request_codec,
    text_of,
)
from service.endpoint import Head
from service.errors import BodyTooLarge, InvalidBody, UnsupportedMediaType

MARKER = "the-secret-text"


def head_of(content_type: bytes = b"", accept: bytes = b"", query: bytes = b"") -> Head:
    """A head with these media types."""
    return Head("/v1/encode", query, [], "id", content_type, accept)


def refusal(read: Callable[..., Any], *arguments: Any) -> CallerError:
    """The error that `read` raises; it must not repeat the input."""
    with pytest.raises(CallerError) as error:
        read(*arguments)
    assert MARKER not in str(error.value)
    assert error.value.__suppress_context__ or error.value.__context__ is None
    return error.value


# Media types


@pytest.mark.parametrize(
    ("content_type", "codec"),
    [
        (b"", JSON),
        (b"application/json", JSON),
        (b"application/msgpack", MSGPACK),
        (b"application/x-msgpack", MSGPACK),
        (b"application/octet-stream", OCTETS),
    ],
)
def test_the_content_type_picks_the_codec(content_type: bytes, codec: bytes) -> None:
    """No content type means JSON; the answer comes in the codec of the request."""
    assert request_codec(head_of(content_type)) == codec
    assert answer_codec(head_of(content_type)) == codec


@pytest.mark.parametrize("content_type", [b"text/plain", b"application/x-www-form-urlencoded", b"application/jsonx"])
def test_other_content_types_are_refused(content_type: bytes) -> None:
    """The refusal names what is read; it is written as JSON."""
    error = refusal(request_codec, head_of(content_type))
    assert isinstance(error, UnsupportedMediaType)
    assert "application/msgpack" in str(error)
    assert answer_codec(head_of(content_type)) == JSON


@pytest.mark.parametrize(
    ("accept", "codec"),
    [
        (b"application/json", JSON),
        (b"application/msgpack", MSGPACK),
        (b"application/octet-stream", OCTETS),
        (b"application/json, text/plain, */*", JSON),
        (b"text/html,application/msgpack;q=0.9", MSGPACK),
        (b"Application/JSON; charset=utf-8", JSON),
        (b"*/*", OCTETS),
        (b"text/html", OCTETS),
        (b",;,", OCTETS),
        (b"x," * 100_000 + b"application/json", OCTETS),
    ],
)
def test_accept_overrides(accept: bytes, codec: bytes) -> None:
    """`Accept` picks the codec of the answer if it names one of ours, the first one if several."""
    assert answer_codec(head_of(OCTETS, accept)) == codec


# JSON


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"   ",
        b"{",
        b'{"text": "a"',
        b'{"text": "a"}}',
        b'{"text": NaN}',
        b'{"n": Infinity}',
        b'{"n": -Infinity}',
        b'{"n": 1e999}',
        b'{"n": 01}',
        b"{'text': 'a'}",
        b'{"text": "a\x00"}',
        b'{"text": "a\n"}',
        b'\xef\xbb\xbf{"text": "a"}',
        b'{"text": "\\x"}',
        b'{"text": "\\u12"}',
        b"[" * 100_000,
        b'{"a":' * 100_000,
        f'{{"text": "{MARKER}"'.encode(),
        f'{{"text": {MARKER}}}'.encode(),
        f'"{MARKER}"x'.encode(),
    ],
    ids=range(21),
)
def test_what_is_no_json_is_refused(body: bytes) -> None:
    """Broken, too deep, or what JSON does not have: the error names the place."""
    error = refusal(read_json, body)
    assert isinstance(error, InvalidBody)
    assert "at character" in str(error)


def test_positions_are_in_characters() -> None:
    """The place is counted in characters of the body."""
    assert "at character 10" in str(refusal(read_json, '["ééééé", x]'.encode()))


@pytest.mark.parametrize("escape", [r"\ud800", r"\udc00", r"\ud800\u0041", r"\udc00\ud800", r"x\udfff", r"\uD800x"])
def test_lone_surrogates_in_json_are_no_text(escape: str) -> None:
    """A lone surrogate is refused as text, in values and in names; a pair is one character."""
    for body in (f'{{"text": "{MARKER}{escape}"}}', f'{{"{MARKER}{escape}": 1}}'):
        assert isinstance(refusal(read_json, body.encode()), InvalidText)
    assert read_json(rb'"\ud83d\ude00"') == "\U0001f600"


@pytest.mark.parametrize("bad", [b"\xff", b"\xc3", b"\xc0\x80", b"\xed\xa0\x80", b"\xf5\x80\x80\x80", b"\xe2\x82"])
def test_invalid_utf8_is_no_text_in_any_codec(bad: bytes) -> None:
    """Overlong forms, surrogates, truncated and impossible bytes are refused alike."""
    raw = MARKER.encode() + bad
    assert isinstance(refusal(read_json, b'{"text": "' + raw + b'"}'), InvalidText)
    assert isinstance(refusal(read_msgpack, b"\x81\xa4text\xd9" + bytes([len(raw)]) + raw), InvalidText)
    assert isinstance(refusal(text_of, raw, "text"), InvalidText)
    assert isinstance(refusal(text_of, memoryview(raw), "text[3]"), InvalidText)


@pytest.mark.parametrize(
    ("body", "value"),
    [
        (b'{"a": 1, "a": 2}', {"a": 2}),
        (b'{"n": 18446744073709551615}', {"n": 2**64 - 1}),
        (b'{"n": 18446744073709551616}', {"n": 1.8446744073709552e19}),
        (b'{"text": "a\\u0000b"}', {"text": "a\0b"}),
        (b' \n{"text": ""}\t ', {"text": ""}),
        (b"[" * 1000 + b"]" * 1000, None),
    ],
)
def test_what_json_has(body: bytes, value: Any) -> None:
    """The last of equal names counts; integers over 64 bits come as floats, which no field takes."""
    read = read_json(body)
    assert value is None or read == value


# msgpack


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\xc1",
        b"\x81",
        b"\x81\xa4text",
        b"\x81\xa4text\xa5abc",
        b"\x81\xa4text\xdb\xff\xff\xff\xffabc",
        b"\x81\xa4text\xc6\xff\xff\xff\xffabc",
        b"\x81\xa4text\xdd\xff\xff\xff\xff",
        b"\xdf\xff\xff\xff\xff",
        b"\x91" * 100_000,
        b"\x81\xa1a" * 100_000,
        b"\x81\x01\x02",
        b"\x81\xc0\x02",
        b"\x81\x90\x02",
        b"\x81\x80\x02",
        b"\x81\xa1a\xd4\xff\x01",
        b"\x81\xa1a\xd7\xff" + b"\xff" * 8,
        b"\x80\x80",
        b"\x81\xa4text\xb0" + MARKER.encode() + b"x" + b"\xc1",
    ],
    ids=range(19),
)
def test_what_is_no_msgpack_is_refused(body: bytes) -> None:
    """Truncated, trailing, too deep, with sizes beyond the body, or with names that are no strings."""
    assert isinstance(refusal(read_msgpack, body), InvalidBody)


def test_claimed_counts_cost_no_memory() -> None:
    """Nested arrays that each claim as many items as the body has bytes are refused without memory for all of them."""
    n = 3_000_000
    body = b"\x81\xa1a" + (b"\xdd" + n.to_bytes(4, "big")) * 500 + b"\xc0" * n
    tracemalloc.start()
    assert isinstance(refusal(read_msgpack, body), BodyTooLarge)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 100_000_000 < 8 * 500 * n


@pytest.mark.parametrize("value", [msgpack.ExtType(5, b"x"), msgpack.Timestamp(1, 2), 1.5, None, True, -1, 2**63])
def test_odd_values_are_read_and_judged_later(value: Any) -> None:
    """Extension types, timestamps and numbers are msgpack; whether a field takes them is not the codec's business."""
    assert read_msgpack(msgpack.packb({"a": value})) == {"a": value}


def test_msgpack_tells_text_from_bytes() -> None:
    """str comes as text, bin as bytes, and names may be either."""
    assert read_msgpack(b"\x82\xa1a\xa1b\xc4\x01c\xc4\x01d") == {"a": "b", b"c": b"d"}


# Query strings
