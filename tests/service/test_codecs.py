"""The three codecs: what they read, what they refuse, and that their errors say where but never what."""

from __future__ import annotations

import json
import struct
import tracemalloc
from collections.abc import Callable
from typing import Any

import msgpack
import numpy as np
import orjson
import pytest

from dispatcher.errors import InvalidText
from gpu_core.errors import CallerError
from service.codecs import (
    IDS_PER_PIECE,
    JSON,
    MAX_DOCUMENTS,
    MAX_QUERY_BYTES,
    MSGPACK,
    OCTETS,
    answer_codec,
    array_json,
    frames,
    ids_json,
    ids_of,
    query_fields,
    read_fields,
    read_json,
    read_msgpack,
    request_codec,
    text_of,
)
from service.endpoint import Head
from service.errors import BodyTooLarge, InvalidBody, UnsupportedMediaType
from service.native import batch_body

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


@pytest.mark.parametrize(
    ("query", "fields"),
    [
        (b"", {}),
        (b"a=true&b=false&c=12&d=x", {"a": True, "b": False, "c": 12, "d": "x"}),
        (b"model=12", {"model": "12"}),
        (b"model=true", {"model": "true"}),
        (b"model=a%2Fb+c%C3%A9", {"model": "a/b cé"}),
        (b"a=1&a=2", {"a": 2}),
        (b"a=", {"a": ""}),
        (b"a", {"a": ""}),
        (b"a=-1", {"a": "-1"}),
        (b"a=1.5", {"a": "1.5"}),
        (b"a=18446744073709551615", {"a": 2**64 - 1}),
        (b"a=18446744073709551616", {"a": "18446744073709551616"}),
        (b"a=" + b"9" * 400, {"a": "9" * 400}),
        (b"a=%D9%A1%D9%A2", {"a": "\u0661\u0662"}),
        (b"a=%C2%B2", {"a": "\u00b2"}),
        (b"a=True", {"a": "True"}),
        (b"a=%zz", {"a": "%zz"}),
        (b"a=%", {"a": "%"}),
        (b"&&a=1&", {"a": 1}),
    ],
)
def test_query_fields_have_types(query: bytes, fields: dict[str, Any]) -> None:
    """true, false and plain numbers up to 64 bits have their types; all else, and a model's name, is text."""
    assert dict(query_fields(query)) == fields
    assert [type(value) for _, value in query_fields(query)] or not fields


@pytest.mark.parametrize(
    "query",
    [
        b"model=%ff",
        b"model=%c3",
        b"model=%ed%a0%80",
        b"model=\xff",
        "model=é".encode(),
        b"&".join(b"a=%d" % i for i in range(33)),
        b"a=" + MARKER.encode() + b"%ff",
    ],
)
def test_broken_queries_are_refused(query: bytes) -> None:
    """Not UTF-8 behind the escapes, not ASCII before them, or too many fields."""
    assert isinstance(refusal(query_fields, query), InvalidBody)


def test_long_queries_are_refused_and_not_kept() -> None:
    """A query over the limit, of whatever kind, leaves nothing in a cache."""
    before = query_fields.cache_info().currsize
    for query in (
        b"model=" + b"x" * MAX_QUERY_BYTES,
        b"&".join(b"a%d=1" % i for i in range(10_000)),
        b"text=" + MARKER.encode() * 500,
    ):
        assert isinstance(refusal(read_fields, head_of(OCTETS, query=query), b"x", "text"), InvalidBody)
    assert query_fields.cache_info().currsize == before


def test_the_cache_of_queries_is_bounded() -> None:
    """Ten thousand different queries do not fill the memory."""
    for i in range(10_000):
        query_fields(b"max_tokens=%d" % i)
    info = query_fields.cache_info()
    assert info.maxsize is not None
    assert info.currsize <= info.maxsize <= 4096


# Batch bodies


def test_frames_are_what_batch_body_writes() -> None:
    """Documents come back as they were put in, empty ones included."""
    for parts in ([], [b""], [b"a"], [b"", b"bc", b"", b"\xff\x00"], [b"x" * 70_000, b"y"]):
        assert [bytes(frame) for frame in frames(batch_body(parts))] == parts


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"\x01",
        b"\x01\x00\x00",
        struct.pack("<I", 1),
        struct.pack("<II", 1, 5) + b"four",
        struct.pack("<II", 1, 3) + b"four",
        struct.pack("<I", 0) + b"x",
        struct.pack("<III", 2, 0xFFFFFFFF, 1),
        struct.pack("<III", 2, 0xFFFFFFFF, 0xFFFFFFFF),
        struct.pack("<I", 0xFFFFFFFF),
        struct.pack("<I", 0xFFFFFFFF) + b"\xff" * 64,
        struct.pack("<I", 0x40000000) + b"x" * 64,
        struct.pack(">II", 1, 4) + b"four",
        struct.pack("<II", 1, 99) + MARKER.encode(),
    ],
)
def test_broken_frames_are_refused(body: bytes) -> None:
    """Truncated counts and lengths, lengths that do not add up or overflow 32 bits, and other byte orders."""
    assert isinstance(refusal(frames, body), InvalidBody)


def test_the_number_of_documents_is_bounded() -> None:
    """Many empty documents take few bytes on the wire and much memory behind it."""
    assert len(frames(batch_body([b""] * MAX_DOCUMENTS))) == MAX_DOCUMENTS
    assert isinstance(refusal(frames, batch_body([b""] * (MAX_DOCUMENTS + 1))), BodyTooLarge)


# Fields


@pytest.mark.parametrize("body", [b"[]", b"1", b'"a"', b"null", b"true"])
def test_a_body_is_an_object(body: bytes) -> None:
    """Other JSON and msgpack values are refused."""
    assert isinstance(refusal(read_fields, head_of(JSON), body, "text"), InvalidBody)
    packed = msgpack.packb(json.loads(body))
    assert isinstance(refusal(read_fields, head_of(MSGPACK), packed, "text"), InvalidBody)


def test_an_octet_stream_body_is_the_content() -> None:
    """The body stands for the named field, whatever the query says; options come from the query."""
    fields = read_fields(head_of(OCTETS, query=b"text=no&max_tokens=3"), b"raw \xff", "text")
    assert fields == {"text": b"raw \xff", "max_tokens": 3}
    fields = read_fields(head_of(OCTETS, query=b"batch=true"), batch_body([b"a", b"b"]), "ids")
    assert [bytes(item) for item in fields["ids"]] == [b"a", b"b"]
    assert read_fields(head_of(OCTETS, query=b"batch=false"), b"a", "text") == {"text": b"a"}


@pytest.mark.parametrize("value", [b"1", b"0", b"yes", b"True", b""])
def test_batch_is_true_or_false(value: bytes) -> None:
    """A mistyped `batch` would read the body as something else."""
    error = refusal(read_fields, head_of(OCTETS, query=b"batch=" + value), b"\0\0\0\0", "text")
    assert isinstance(error, InvalidBody)
    assert error.param == "batch"


@pytest.mark.parametrize("value", [None, 1, 1.5, True, {}, [], msgpack.Timestamp(1), msgpack.ExtType(1, b"x")])
def test_text_is_text(value: Any) -> None:
    """What is neither text nor bytes is refused, by the name of its field."""
    error = refusal(text_of, value, "text[2]")
    assert isinstance(error, InvalidBody)
    assert error.param == "text[2]"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "\0",
        "a\0b",
        "é",
        "\U0010ffff",
        "\ufeffx",
        "\ufffe",
        "\ud83d\ude00".encode("utf-16", "surrogatepass").decode("utf-16"),
    ],
)
def test_text_in_every_form_is_the_same(text: str) -> None:
    """Text, bytes and a view of bytes give the same document."""
    assert text_of(text, "text") == text_of(text.encode(), "text") == text_of(memoryview(text.encode()), "text") == text


@pytest.mark.parametrize("ids", [[], [0], [1, 2, 3], [0xFFFFFFFF], list(range(1000))])
def test_ids_in_every_form_are_the_same(ids: list[int]) -> None:
    """A list of integers and packed little-endian uint32 give the same sequence."""
    packed = struct.pack(f"<{len(ids)}I", *ids)
    for value in (ids, packed, memoryview(packed)):
        read = ids_of(value, "ids")
        assert read.dtype == np.uint32
        assert read.tolist() == ids


@pytest.mark.parametrize(
    "value",
    [
        None,
        1,
        "1",
        {},
        [True],
        [1, False],
        [1.0],
        [1, None],
        ["1"],
        [[1]],
        [-1],
        [2**32],
        [2**64 - 1],
        [1.8446744073709552e19],
        b"abc",
        b"\0" * 7,
        memoryview(b"abc"),
        msgpack.ExtType(1, b"abcd"),
        (MARKER,),
    ],
    ids=range(19),
)
def test_what_are_no_ids_is_refused(value: Any) -> None:
    """Other types (booleans, too), values outside uint32, and bytes that are no whole number of ids."""
    error = refusal(ids_of, value, "ids[1]")
    assert isinstance(error, InvalidBody)
    assert error.param == "ids[1]"


@pytest.mark.parametrize(
    "n", [0, 1, 31, 32, 33, IDS_PER_PIECE - 1, IDS_PER_PIECE, IDS_PER_PIECE + 1, 3 * IDS_PER_PIECE + 7]
)
def test_ids_as_json(n: int) -> None:
    """Any number of ids is one JSON array, also where it is written in pieces."""
    ids = (np.arange(n, dtype=np.uint64) * 2654435761 % 2**32).astype("<u4")
    assert orjson.loads(ids_json(ids.tobytes())) == ids.tolist()
    pairs = np.stack([ids, ids], 1) if n else np.zeros((0, 2), np.uint32)
    assert orjson.loads(array_json(pairs)) == pairs.tolist()
