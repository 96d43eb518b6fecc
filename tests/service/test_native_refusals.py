"""What the native API refuses, in every codec, without repeating it."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import msgpack
import orjson
import pytest

from service.codecs import MAX_DOCUMENTS
from service.native import Count, Decode, Encode
from tests.fakes import FakeTokenizer
from tests.native_client import CODECS, JSON, MSGPACK, OCTETS, write_request
from tests.service.test_native import COUNT, DECODE, ENCODE, EXTRAS, MARKER, error_of
from tests.service_fakes import FakeRegistry, ask

NO_FLAGS: list[Any] = [1, 0, "true", 1.0, [], [True], {}]


NO_NUMBERS: list[Any] = [True, False, -1, 1.0, "3", [3], {}, 2.0**64]


NO_SIDES: list[Any] = ["up", "", 1, True, ["left"], {"a": 1}, MARKER]


NO_NAMES: list[Any] = [1, True, ["a"], {}, 1.5]


BAD_OPTIONS: list[tuple[str, Any]] = [
    *((name, value) for name in ("add_special_tokens", *EXTRAS) for value in NO_FLAGS),
    *(("max_tokens", value) for value in NO_NUMBERS),
    *(("truncation_side", value) for value in NO_SIDES),
    *(("model", value) for value in NO_NAMES),
    *((name, 1) for name in ("Text", "prompt", "max_length", "count_only", "n_bytes", "__class__", MARKER)),
    ("max_tokens", {"deep": [{"er": MARKER}]}),
    (MARKER, [MARKER]),
]


@pytest.mark.parametrize(("name", "value"), BAD_OPTIONS, ids=lambda x: repr(x)[:20])
@pytest.mark.parametrize("codec", [JSON, MSGPACK])
def test_bad_options_are_refused(codec: str, name: str, value: Any) -> None:
    """Wrong types, wrong values and unknown names: 400, with the field in `param` where it is one of ours."""
    fields = {"text": MARKER, name: value}
    body = orjson.dumps(fields) if codec == JSON else msgpack.packb(fields)
    error = error_of(ask(ENCODE, body, content_type=codec))
    assert error["code"] == 400
    known = ("add_special_tokens", "max_tokens", "truncation_side", "model", *EXTRAS)
    assert error["param"] == (name if name in known else "body")


@pytest.mark.parametrize(
    "query",
    [
        "max_tokens=-1",
        "max_tokens=true",
        "max_tokens=1.0",
        "max_tokens=",
        "max_tokens=18446744073709551616",
        "add_special_tokens=1",
        "add_special_tokens=yes",
        "truncation_side=up",
        "unknown=1",
        f"{MARKER}=1",
        f"truncation_side={MARKER}",
        "batch=1",
        "model=%ff",
        "&".join(f"x{i}=1" for i in range(10_000)),
    ],
    ids=lambda x: x[:30],
)
def test_bad_queries_are_refused(query: str) -> None:
    """The options of an octet-stream request are checked like those of the others."""
    error = error_of(ask(ENCODE, MARKER.encode(), query.encode(), content_type=OCTETS))
    assert error["code"] == 400


def test_checked_options_do_not_poison_others() -> None:
    """Values that are equal but of another type are checked for themselves, in either order and codec."""
    for good, bad in ((1, True), (0, False), (1, 1.0)):
        for _ in range(2):
            assert ask(ENCODE, orjson.dumps({"text": "x", "max_tokens": good})).status == 200
            assert ask(ENCODE, orjson.dumps({"text": "x", "max_tokens": bad})).status == 400
    for flag, bad in ((True, 1), (False, 0), (True, 1.0)):
        assert ask(ENCODE, orjson.dumps({"text": "x", "return_token_strings": flag})).status == 200
        assert ask(ENCODE, orjson.dumps({"text": "x", "return_token_strings": bad})).status == 400
        assert (
            ask(ENCODE, msgpack.packb({"text": "x", "return_token_strings": bad}), content_type=MSGPACK).status == 400
        )
    assert orjson.loads(ask(COUNT, b'{"text": "x", "max_tokens": 5}').body).keys() == {"model", "count", "truncated"}
    assert "ids" in orjson.loads(ask(ENCODE, b'{"text": "x", "max_tokens": 5}').body)


@pytest.mark.parametrize("codec", [JSON, MSGPACK])
@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({}, "text"),
        ({"text": None}, "text"),
        ({"text": 1}, "text"),
        ({"text": True}, "text"),
        ({"text": {"a": MARKER}}, "text"),
        ({"text": [1]}, "text[0]"),
        ({"text": ["a", None]}, "text[1]"),
        ({"text": [MARKER, [MARKER]]}, "text[1]"),
        ({"ids": MARKER}, "text"),
    ],
    ids=repr,
)
def test_text_must_be_text(codec: str, fields: dict[str, Any], param: str) -> None:
    """Missing text, or what is no text: 400 that names the place."""
    body = orjson.dumps(fields) if codec == JSON else msgpack.packb(fields)
    for endpoint in (ENCODE, COUNT):
        error = error_of(ask(endpoint, body, content_type=codec))
        assert (error["code"], error["param"]) == (400, param)


@pytest.mark.parametrize("codec", [JSON, MSGPACK])
@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({}, "ids"),
        ({"ids": None}, "ids"),
        ({"ids": MARKER}, "ids"),
        ({"ids": 1}, "ids"),
        ({"ids": [1.0]}, "ids[0]"),
        ({"ids": [True]}, "ids"),
        ({"ids": [1, MARKER]}, "ids"),
        ({"ids": [-1]}, "ids"),
        ({"ids": [2**32]}, "ids"),
        ({"ids": [1, [2]]}, "ids"),
        ({"ids": [[1], 2]}, "ids[1]"),
        ({"ids": [[1], [MARKER]]}, "ids[1]"),
        ({"ids": [[[1]]]}, "ids[0]"),
        ({"ids": [None]}, "ids[0]"),
        ({"ids": [1], "skip_special_tokens": 1}, "skip_special_tokens"),
        ({"ids": [1], "skip_special_tokens": "no"}, "skip_special_tokens"),
        ({"ids": [1], "model": 5}, "model"),
        ({"ids": [1], "text": MARKER}, "body"),
        ({"ids": [1], "max_tokens": 1}, "body"),
    ],
    ids=repr,
)
def test_ids_must_be_ids(codec: str, fields: dict[str, Any], param: str) -> None:
    """Missing ids, or what are no ids: 400 that names the place."""
    body = orjson.dumps(fields) if codec == JSON else msgpack.packb(fields)
    error = error_of(ask(DECODE, body, content_type=codec))
    assert (error["code"], error["param"]) == (400, param)


@pytest.mark.parametrize("n_bytes", [1, 2, 3, 5, 4097])
def test_packed_ids_are_whole(n_bytes: int) -> None:
    """Packed ids that end in the middle are refused."""
    assert error_of(ask(DECODE, b"x" * n_bytes, content_type=OCTETS))["param"] == "ids"
    assert error_of(ask(DECODE, msgpack.packb({"ids": b"x" * n_bytes}), content_type=MSGPACK))["param"] == "ids"


BAD_TEXT: dict[str, list[bytes]] = {
    JSON: [
        b'{"text": "' + MARKER.encode() + rb'\ud800"}',
        b'{"text": "' + MARKER.encode() + b'\xff"}',
        b'{"text": ["ok", "' + MARKER.encode() + rb'\udfff"]}',
    ],
    MSGPACK: [
        b"\x81\xa4text\xb0" + MARKER.encode() + b"\xff",
        b"\x81\xa4text\xc4\x10" + MARKER.encode() + b"\xff",
        b"\x81\xa4text\xc4\x12" + MARKER.encode() + b"\xed\xa0\x80",
    ],
    OCTETS: [MARKER.encode() + b"\xff", b"\xc3" + MARKER.encode(), MARKER.encode() + b"\xed\xa0\x80"],
}


@pytest.mark.parametrize(("codec", "body"), [(codec, body) for codec in CODECS for body in BAD_TEXT[codec]], ids=repr)
def test_what_is_no_unicode_is_refused_in_every_codec(codec: str, body: bytes) -> None:
    """Lone surrogates and invalid UTF-8 are 400 in each codec, with the error in the codec of the client."""
    answer = ask(ENCODE, body, content_type=codec)
    assert error_of(answer)["code"] == 400
    assert answer.content_type.decode() == (MSGPACK if codec == MSGPACK else JSON)


@pytest.mark.parametrize("endpoint", [ENCODE, COUNT, DECODE], ids=["encode", "count", "decode"])
def test_the_number_of_documents_is_bounded(endpoint: Any) -> None:
    """One document too many is 413 in each codec, and the bound itself is not."""
    content, item = ("ids", [1]) if endpoint is DECODE else ("text", "")
    for codec, (n, status) in itertools.product(CODECS, ((MAX_DOCUMENTS, 200), (MAX_DOCUMENTS + 1, 413))):
        body, query = write_request(codec, content, [item] * n, {})
        assert ask(endpoint, body, query.encode(), content_type=codec).status == status


@pytest.mark.parametrize("codec", CODECS)
def test_unknown_models_are_404(codec: str) -> None:
    """A model that is not served is 404, and nothing of the text is repeated."""
    body, query = write_request(codec, "text", MARKER, {"model": "nobody"})
    error = error_of(ask(ENCODE, body, query.encode(), content_type=codec))
    assert (error["code"], error["type"]) == (404, "NotFoundError")
    assert "nobody" in error["message"]


@pytest.mark.parametrize(
    ("state", "code", "kind"), [("loading", 503, "ServiceUnavailableError"), ("failed", 500, "InternalServerError")]
)
def test_models_that_cannot_serve(state: Any, code: int, kind: str) -> None:
    """A model that loads is 503, worth another try; one that failed is 500."""
    registry = FakeRegistry(a=FakeTokenizer())
    registry.models()[0].state = state
    for make in (Encode, Count):
        error = error_of(ask(make(registry), orjson.dumps({"text": MARKER})))
        assert (error["code"], error["type"]) == (code, kind)
    assert error_of(ask(Decode(registry), b'{"ids": [1]}'))["code"] == code


@pytest.mark.parametrize("content_type", ["text/plain", "multipart/form-data; boundary=x"])
def test_other_media_types_are_415(content_type: str) -> None:
    """What is no codec of ours is refused in JSON."""
    assert error_of(ask(ENCODE, MARKER.encode(), content_type=content_type))["code"] == 415


@pytest.mark.parametrize("break_it", [lambda b: b[:-1], lambda b: b[: len(b) // 2], lambda b: b + b, lambda b: b""])
@pytest.mark.parametrize("codec", [JSON, MSGPACK])
def test_truncated_and_doubled_bodies_are_refused(codec: str, break_it: Callable[[bytes], bytes]) -> None:
    """A body that is cut short or continued is 400, whatever it holds."""
    body, _ = write_request(codec, "text", [MARKER, MARKER], {"max_tokens": 3})
    assert error_of(ask(ENCODE, break_it(body), content_type=codec))["code"] == 400


@pytest.mark.parametrize("value", [msgpack.Timestamp(1, 2), msgpack.ExtType(3, b"x")], ids=["timestamp", "ext"])
def test_msgpack_extensions_are_no_values(value: Any) -> None:
    """Extension types are refused in every place, and never break the check of options."""
    for fields in (
        {"text": value},
        {"text": "a", "max_tokens": value},
        {"text": "a", "model": value},
        {"text": [value]},
    ):
        assert error_of(ask(ENCODE, msgpack.packb(fields), content_type=MSGPACK))["code"] == 400
    assert error_of(ask(DECODE, msgpack.packb({"ids": value}), content_type=MSGPACK))["code"] == 400


def test_msgpack_names_as_bin_are_unknown() -> None:
    """Names of fields are strings."""
    assert error_of(ask(ENCODE, msgpack.packb({b"text": "a"}), content_type=MSGPACK))["param"] == "text"
    assert error_of(ask(ENCODE, msgpack.packb({"text": "a", b"model": "a"}), content_type=MSGPACK))["param"] == "body"
