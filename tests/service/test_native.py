"""The native API: the same options and results in every codec; all else is refused without repeating it."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import msgpack
import orjson
import pytest

from service.codecs import MAX_DOCUMENTS
from service.endpoint import Answer
from service.head import read_head
from service.native import Count, Decode, Encode
from tests.fakes import FakeTokenizer
from tests.native_client import CODECS, JSON, MSGPACK, OCTETS, read_decoded, read_encoded, write_request
from tests.service_fakes import FakeRegistry, ask

MARKER = "the-secret-text"
REGISTRY = FakeRegistry(aliases=("other name=b",), a=FakeTokenizer(), b=FakeTokenizer())
ENCODE, COUNT, DECODE = Encode(REGISTRY), Count(REGISTRY), Decode(REGISTRY)


def encode(codec: str, text: Any, accept: str = "", endpoint: Any = ENCODE, **options: Any) -> Any:
    """The fields of the answer to an encode or count request in this codec."""
    body, query = write_request(codec, "text", text, options)
    answer = ask(endpoint, body, query.encode(), content_type=codec, accept=accept or codec)
    assert answer.status == 200, answer.body
    assert answer.content_type.decode() == (accept or codec)
    sections = dict(answer.headers).get(b"x-sidetok-sections", b"").decode()
    return read_encoded(accept or codec, answer.body, sections, isinstance(text, list), endpoint is COUNT)


def decode(codec: str, ids: Any, accept: str = "", **options: Any) -> Any:
    """The text of the answer to a decode request in this codec."""
    body, query = write_request(codec, "ids", ids, options)
    answer = ask(DECODE, body, query.encode(), content_type=codec, accept=accept or codec)
    assert answer.status == 200, answer.body
    return read_decoded(accept or codec, answer.body, bool(ids) and isinstance(ids[0], list))


def error_of(answer: Answer) -> dict[str, Any]:
    """The error object of a refusal, which never repeats the input."""
    assert answer.status >= 400
    assert MARKER.encode() not in answer.body
    assert MARKER not in str(answer.headers)
    fields = (
        msgpack.unpackb(answer.body) if answer.content_type == b"application/msgpack" else orjson.loads(answer.body)
    )
    error: dict[str, Any] = fields.pop("error")
    assert fields == {}
    assert set(error) == {"message", "type", "param", "code"}
    assert error["code"] == answer.status
    assert error["message"]
    return error


TEXTS: list[Any] = ["", "abc", "a\0b", "é\U0001f600", [], [""], ["", ""], ["ab", "", "cde"], ["x"]]
EXTRAS = ("return_char_offsets", "return_byte_offsets", "return_token_strings", "return_special_tokens_mask")


def expected(text: str, options: dict[str, Any], count_only: bool) -> dict[str, Any]:
    """What the fake tokenizer makes of one document."""
    ids = [ord(c) for c in text]
    limit = options.get("max_tokens")
    fields: dict[str, Any] = {}
    if limit is not None:
        fields["truncated"] = len(ids) > limit
        left = options.get("truncation_side") == "left"
        ids = ids[len(ids) - limit if left and limit < len(ids) else 0 :] if left else ids[:limit]
    fields |= {"count": len(ids)} | ({} if count_only else {"ids": ids})
    pairs = [[i, i + 1] for i in range(len(ids))]
    values = {
        "return_char_offsets": pairs,
        "return_byte_offsets": pairs,
        "return_token_strings": [chr(i) for i in ids],
        "return_special_tokens_mask": [0] * len(ids),
    }
    return fields | {name.removeprefix("return_"): value for name, value in values.items() if options.get(name)}


def expected_of(text: Any, options: dict[str, Any], count_only: bool = False) -> dict[str, Any]:
    """The whole answer: one document, or columns."""
    if isinstance(text, str):
        return expected(text, options, count_only)
    names = expected("", options, count_only)
    rows = [expected(item, options, count_only) for item in text]
    return {name: [row[name] for row in rows] for name in names}


OPTIONS: list[dict[str, Any]] = [
    {},
    {"model": "b"},
    {"model": "other name"},
    {"add_special_tokens": False},
    {"max_tokens": 0},
    {"max_tokens": 2},
    {"max_tokens": 2, "truncation_side": "left"},
    {"max_tokens": 2**63, "truncation_side": "right"},
    *({name: True} for name in EXTRAS),
    *({name: False} for name in EXTRAS),
    {**dict.fromkeys(EXTRAS, True), "max_tokens": 1},
    dict.fromkeys(EXTRAS, True),
]


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("text", TEXTS, ids=repr)
def test_encode_and_count(codec: str, options: dict[str, Any], text: Any) -> None:
    """Each option with each shape of text gives the same fields in each codec, for encode and for count."""
    assert encode(codec, text, **options) == expected_of(text, options)
    assert encode(codec, text, endpoint=COUNT, **options) == expected_of(text, options, count_only=True)


@pytest.mark.parametrize(("codec", "accept"), list(itertools.product(CODECS, CODECS)))
def test_the_answer_may_have_another_codec(codec: str, accept: str) -> None:
    """Any codec of the request goes with any codec of the answer."""
    options = {**dict.fromkeys(EXTRAS, True), "max_tokens": 2}
    for text in ("abc", ["abc", ""]):
        assert encode(codec, text, accept, **options) == expected_of(text, options)
    assert decode(codec, [97, 98], accept) == "ab"
    assert decode(codec, [[97], [], [98]], accept) == ["a", "", "b"]


def test_the_model_is_named_in_the_answer() -> None:
    """The answer names the model that answered, not its alias."""
    for name, model in ((None, "a"), ("b", "b"), ("other name", "b")):
        body = orjson.dumps({"text": "x", "model": name})
        assert orjson.loads(ask(ENCODE, body).body)["model"] == model
        assert msgpack.unpackb(ask(ENCODE, body, accept=MSGPACK).body)["model"] == model


def test_null_options_are_defaults() -> None:
    """An option that is null is as if it were not there."""
    names = ["model", "add_special_tokens", "max_tokens", "truncation_side", *EXTRAS]
    body = {"text": "abc", **dict.fromkeys(names)}
    for codec, packed in ((JSON, orjson.dumps(body)), (MSGPACK, msgpack.packb(body))):
        answer = ask(ENCODE, packed, content_type=codec)
        assert read_encoded(codec, answer.body, None, False) == {"count": 3, "ids": [97, 98, 99]}
    nulls = orjson.dumps({"ids": [97], "skip_special_tokens": None, "model": None})
    assert orjson.loads(ask(DECODE, nulls).body)["text"] == "a"


@pytest.mark.parametrize("text", [b"abc", [b"a", "b"], [b"", b"c"]])
def test_msgpack_text_may_be_bin(text: Any) -> None:
    """Documents as bin are UTF-8."""
    answer = ask(ENCODE, msgpack.packb({"text": text}), content_type=MSGPACK)
    words = (
        [str(item, "utf-8") if isinstance(item, bytes) else item for item in text] if isinstance(text, list) else "abc"
    )
    assert read_encoded(MSGPACK, answer.body, None, isinstance(text, list)) == expected_of(words, {})


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("ids", [[], [97], [97, 0x1F600], [[97], [98, 99]], [[97], []], [[]]], ids=repr)
def test_decode(codec: str, ids: Any) -> None:
    """One sequence gives one text, a list of them a list, empty ones empty text."""
    text = ["".join(map(chr, item)) for item in ids] if ids and isinstance(ids[0], list) else "".join(map(chr, ids))
    assert decode(codec, ids) == text
    assert decode(codec, ids, skip_special_tokens=False, model="b") == text


def test_decode_of_an_empty_batch_body() -> None:
    """A batch body without sequences gives a batch without texts."""
    answer = ask(DECODE, b"\0\0\0\0", b"batch=true", content_type=OCTETS)
    assert answer.body == b"\0\0\0\0"


def test_msgpack_ids_may_be_numbers() -> None:
    """Sequences as arrays of numbers are read as well as packed ones."""
    for ids in ([97, 98], [[97], [98]], [b"a\0\0\0", [98]]):
        assert ask(DECODE, msgpack.packb({"ids": ids}), content_type=MSGPACK).status == 200


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


def test_a_request_knows_its_size() -> None:
    """The bytes that the metrics count are those of the body."""
    for codec in CODECS:
        body, _ = write_request(codec, "text", "abc", {})
        request = ENCODE.read(read_head("/v1/encode", b"", [(b"content-type", codec.encode())]), body)
        assert (request.n_bytes, request.model, request.is_batch) == (len(body), "a", False)


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("endpoint", [ENCODE, COUNT], ids=["encode", "count"])
def test_a_route_is_asked_for(codec: str, endpoint: Any) -> None:
    """The field, else the header, else the policy decides; another name is refused."""

    def route(header: str = "", **options: Any) -> str:
        body, query = write_request(codec, "text", "ab", options)
        headers = [(b"content-type", codec.encode()), (b"x-sidetok-route", header.encode())]
        read: str = endpoint.read(read_head("/v1/encode", query.encode(), headers), body).route
        return read

    assert (route(), route("gpu"), route("gpu", route="cpu"), route(route="auto")) == ("auto", "gpu", "cpu", "auto")
    for wrong in ("tpu", 1, True):
        body, query = write_request(codec, "text", "ab", {"route": wrong})
        error = error_of(ask(endpoint, body, query.encode(), content_type=codec))
        assert (error["code"], error["param"]) == (400, "route")
