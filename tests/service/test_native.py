"""The native API: the same options and results in every codec."""

from __future__ import annotations

import itertools
import json
from types import SimpleNamespace
from typing import Any

import msgpack
import orjson
import pytest

from dispatcher.late_texts import LateTexts
from service.codecs import query_fields
from service.endpoint import Answer
from service.head import read_head
from service.native import LATE_BYTES, Count, Decode, Encode, batch_body
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
def test_of_several_mistakes_the_same_is_told(codec: str) -> None:
    """In a large body that a GPU might read as it came, too: what is no text, no JSON, and what no field takes."""
    registry = FakeRegistry(a=FakeTokenizer())
    registry.gpus = SimpleNamespace(any=True)  # type: ignore[assignment]
    endpoint, long = Encode(registry), "é" * LATE_BYTES
    queries = (b"unknown=1", b"max_tokens=x", b"return_block_hashes=x")
    cases = [(long.encode() + b"\xff", query) for query in queries]
    if codec == MSGPACK:
        cases = [(msgpack.packb({"text": data, **dict(query_fields(query))}), b"") for data, query in cases]
    elif codec == JSON:
        constants = ("NaN", "-Infinity", '["é", NaN]')
        cases = [(f'{{"text": "{long}", "{name}": {c}}}'.encode(), b"") for c in constants for name in ("x", "text")]
    for body, query in cases:
        answers = [ask(endpoint, body, query, content_type=codec, x_sidetok_route=route) for route in ("cpu", "auto")]
        assert answers[0] == answers[1]
        assert answers[0].status == 400


@pytest.mark.parametrize("codec", [MSGPACK, OCTETS])
def test_long_documents_stay_utf8_where_there_is_a_gpu(codec: str) -> None:
    """They become text when somebody asks for it; the answers are the same, and so is what is said of broken ones."""
    registry = FakeRegistry(a=FakeTokenizer())
    registry.gpus = SimpleNamespace(any=True)  # type: ignore[assignment]
    endpoint = Encode(registry)
    long, broken = ("aé" * LATE_BYTES).encode(), b"x" * LATE_BYTES + b"\xff"
    texts: list[Any] = [
        long,
        [long, b"", b"b"],
        [b"", broken],
        broken,
        [long, "text"] if codec == MSGPACK else [],
        b"ab",
    ]
    is_late = [True, True, True, True, False, False]
    for text, late in zip(texts, is_late, strict=True):
        body = (
            msgpack.packb({"text": text}) if codec == MSGPACK else text if isinstance(text, bytes) else batch_body(text)
        )
        query = b"batch=true" if codec == OCTETS and isinstance(text, list) else b""
        head = read_head("/v1/encode", query, [(b"content-type", codec.encode())])
        request = endpoint.read(head, body)
        assert isinstance(request.documents, LateTexts) == late
        assert request.utf8 is None or [*map(bytes, request.utf8)] == ([text] if isinstance(text, bytes) else text)
        answers = [ask(endpoint, body, query, content_type=codec, x_sidetok_route=route) for route in ("cpu", "auto")]
        assert answers[0] == answers[1]
        assert answers[0].status == (400 if b"\xff" in body else 200)


def test_long_json_stays_utf8_where_there_is_a_gpu() -> None:
    """In large bodies that are not ASCII: same documents, same answers, same errors as in the usual way."""
    registry = FakeRegistry(a=FakeTokenizer())
    registry.gpus = SimpleNamespace(any=True)  # type: ignore[assignment]
    endpoint, long = Encode(registry), 'é\n"a"' * LATE_BYTES
    fields: list[tuple[dict[str, Any], bool]] = [
        ({"text": long}, True),
        ({"text": [long, "", "b"], "add_special_tokens": False, "max_tokens": 5, "model": "a"}, True),
        ({"text": long, "route": "cpu"}, False),
        ({"text": [long, 5]}, False),
        ({"text": {"a": long}}, False),
        ({"text": None, "model": long}, False),
        ({"model": long}, False),
        ({"text": long, "max_tokens": 1 << 64}, False),
        ({"text": long, "max_tokens": "5"}, False),
        ({"text": long, "unknown": 5}, False),
        ({"text": "a" * 2 * LATE_BYTES}, False),
    ]
    bodies = [(json.dumps(item, ensure_ascii=False).encode(), late) for item, late in fields]
    whole = bodies[0][0]
    bodies += [(whole[:-1], False), (whole.replace("é".encode(), b"\xff", 1), False), (b"[%b]" % whole, False)]
    bodies += [(whole.replace("é".encode(), b"\\ud800", 1), False), (whole.replace("é".encode(), b"\x01", 1), False)]
    for body, late in bodies:
        answers = [ask(endpoint, body, content_type=JSON, x_sidetok_route=route) for route in ("cpu", "auto")]
        assert answers[0] == answers[1], answers[1].body[:200]
        if answers[0].status == 200:
            request = endpoint.read(read_head("/v1/encode", b"", [(b"content-type", JSON.encode())]), body)
            assert isinstance(request.documents, LateTexts) == late


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
