"""The schema has every endpoint, and the service answers as it says."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from service.native import _ENCODE_FIELDS, HASH_FIELDS, Decode
from service.openapi import paths
from tests.fakes import FakeTokenizer
from tests.service.test_app import CONTROL, HOT
from tests.service_fakes import FakeRegistry, Running, ask, run, running

Schema = dict[str, Any]


def fits(value: Any, schema: Schema) -> bool:
    """Whether a value is what the part of JSON Schema that the service uses says."""
    if "oneOf" in schema:
        return sum(fits(value, part) for part in schema["oneOf"]) == 1
    if "anyOf" in schema:
        return any(fits(value, part) for part in schema["anyOf"])
    kinds = {
        "string": str,
        "integer": int,
        "boolean": bool,
        "array": list,
        "object": dict,
        "null": type(None),
    }
    kind = kinds[schema["type"]]
    if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
        return False
    if isinstance(value, list):
        sized = schema.get("minItems", 0) <= len(value) <= schema.get("maxItems", 1 << 60)
        return sized and all(fits(item, schema.get("items", {"anyOf": [schema]})) for item in value)
    if isinstance(value, dict):
        known = schema.get("properties", {})
        if not set(schema.get("required", ())) <= set(value):
            return False
        if schema.get("additionalProperties") is False and not set(value) <= set(known):
            return False
        return all(fits(item, known[name]) for name, item in value.items() if name in known)
    if isinstance(value, int) and not isinstance(value, bool):
        return bool(schema.get("minimum", value) <= value <= schema.get("maximum", value))
    return value in schema.get("enum", [value])


def content(operation: Schema, status: str | None = None) -> Schema:
    """The schema of the JSON body of a request, or of the answer with a status."""
    place = operation["responses"][status] if status else operation["requestBody"]
    schema: Schema = place["content"]["application/json"]["schema"]
    return schema


def with_app(test: Any) -> None:
    """Run a test with a service."""

    async def main() -> None:
        async with running(FakeRegistry(fake=FakeTokenizer())) as it:
            await test(it)

    run(main())


def test_every_endpoint_is_there() -> None:
    """Hot endpoints stand beside the control endpoints, each with its method; the document is served."""

    async def test(it: Running) -> None:
        schema = orjson.loads((await it.call("/openapi.json", method="GET")).body)
        assert set(schema["paths"]) == {*HOT, *CONTROL}
        assert all(set(schema["paths"][path]) == {"post"} for path in HOT)
        assert all(set(schema["paths"][path]) == {"get"} for path in CONTROL)
        assert schema["info"]["title"] == "sidetok"
        assert it.app.openapi() is it.app.openapi()

    with_app(test)


def test_hot_operations_are_complete() -> None:
    """Each names its request, its answer and its errors; the native ones also their binary codecs."""
    for path, item in paths(HOT).items():
        operation = item["post"]
        assert operation["summary"]
        assert set(operation["responses"]) == {"200", "400", "404", "413", "415", "429", "503", "504"}
        kinds = set(operation["requestBody"]["content"])
        native = path in ("/v1/encode", "/v1/decode", "/v1/count")
        assert kinds == (
            {"application/json", "application/msgpack", "application/octet-stream"} if native else {"application/json"}
        )


def test_a_path_without_an_operation_is_an_error() -> None:
    """An endpoint cannot be added without its schema."""
    with pytest.raises(KeyError):
        paths(["/v1/nothing"])


def test_the_schema_names_every_field() -> None:
    """The fields of the schema are those that are read."""
    assert set(content(paths(["/v1/encode"])["/v1/encode"]["post"])["properties"]) == (_ENCODE_FIELDS | HASH_FIELDS)
    decode = content(paths(["/v1/decode"])["/v1/decode"]["post"])["properties"]
    for name in decode:
        fields = {"ids": [97], name: {"ids": [97], "model": "fake", "skip_special_tokens": False}[name]}
        assert ask(Decode(FakeRegistry(fake=FakeTokenizer())), orjson.dumps(fields)).status == 200


REQUESTS: list[tuple[str, Schema]] = [
    ("/v1/encode", {"text": "ab"}),
    ("/v1/encode", {"text": ["ab", ""], "model": None}),
    ("/v1/encode", {"text": ""}),
    (
        "/v1/encode",
        {
            "text": "ab",
            "max_tokens": 1,
            "truncation_side": "left",
            "return_char_offsets": True,
            "return_byte_offsets": True,
            "return_token_strings": True,
            "return_special_tokens_mask": True,
            "add_special_tokens": False,
        },
    ),
    ("/v1/encode", {"text": "ab", "return_block_hashes": True, "block_size": 1}),
    ("/v1/encode", {"text": ["ab"], "return_block_hashes": "vllm", "block_size": 2, "cache_salt": "s"}),
    ("/v1/count", {"text": "ab"}),
    ("/v1/count", {"text": ["ab"], "max_tokens": 1}),
    ("/v1/decode", {"ids": [97]}),
    ("/v1/decode", {"ids": [[97], [98]], "skip_special_tokens": False}),
    ("/tokenize", {"prompt": "ab"}),
    ("/v1/tokenize", {"prompt": "ab", "return_token_strs": True}),
    ("/detokenize", {"tokens": [97]}),
]


@pytest.mark.parametrize(("path", "fields"), REQUESTS, ids=str)
def test_requests_and_answers_fit_their_schema(path: str, fields: Schema) -> None:
    """What the service takes and gives is what the schema says."""

    async def test(it: Running) -> None:
        operation = it.app.openapi()["paths"][path]["post"]
        assert fits(fields, content(operation))
        send = await it.call(path, orjson.dumps(fields), content_type="application/json")
        assert send.status == 200, send.body
        assert fits(orjson.loads(send.body), content(operation, "200"))

    with_app(test)


@pytest.mark.parametrize(
    ("fields", "status"),
    [({}, 400), ({"text": 1}, 400), ({"text": "a", "x": 1}, 400), ({"text": "a", "model": "?"}, 404)],
)
def test_errors_fit_their_schema(fields: Schema, status: int) -> None:
    """So are errors; and what the schema forbids is refused."""

    async def test(it: Running) -> None:
        operation = it.app.openapi()["paths"]["/v1/encode"]["post"]
        assert fits(fields, content(operation)) is (status == 404)
        send = await it.call("/v1/encode", orjson.dumps(fields))
        assert send.status == status
        assert fits(orjson.loads(send.body), content(operation, str(status)))

    with_app(test)
