"""The octet-stream codec and what all codecs share: queries, frames of batches, texts and ids in every form."""

from __future__ import annotations

import json
import struct
from typing import Any

import msgpack
import numpy as np
import pytest

from service.codecs import (
    JSON,
    MAX_DOCUMENTS,
    MAX_QUERY_BYTES,
    MSGPACK,
    OCTETS,
    frames,
    ids_of,
    query_fields,
    read_fields,
    text_of,
)
from service.errors import BodyTooLarge, InvalidBody
from service.native import batch_body
from tests.service.test_codecs import MARKER, head_of, refusal


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
