"""Hashes of blocks in answers: the same in every codec of the native API and in rendered completions."""

from __future__ import annotations

from typing import Any

import msgpack
import numpy as np
import orjson
import pytest

from service.block_hashes import HashOptions, block_hashes
from service.dialects.anthropic import MessagesRender
from service.dialects.responses import ResponsesRender
from service.dialects.vllm_render import ChatRender, TextRender
from service.native import Count, Encode
from tests.fakes import FakeTokenizer
from tests.service.small_model import registry_of, send, write_model
from tests.service_fakes import FakeRegistry, ask

REGISTRY = FakeRegistry(a=FakeTokenizer())
TEXTS = ["abcdefg", "", "xyzxyz"]


def expected(text: str, **options: Any) -> Any:
    """The hashes of a text under the fake tokenizer, whose ids are characters."""
    ids = np.array([ord(char) for char in text], "<u4").tobytes()
    return block_hashes(ids, HashOptions(**{"scheme": "dynamo", "block_size": 3, **options}), "a")


def encode(body: Any, codec: str = "json", query: bytes = b"", endpoint: Any = None) -> Any:
    """The answer to an encode request."""
    data = body if isinstance(body, bytes) else (orjson.dumps(body) if codec == "json" else msgpack.packb(body))
    return ask(endpoint or Encode(REGISTRY), data, query, content_type=f"application/{codec}")


def test_json() -> None:
    """Lists of numbers; a batch has a list of them for each document."""
    options = {"return_block_hashes": "dynamo", "block_size": 3}
    one = orjson.loads(encode({"text": "abcdefg", **options}).body)
    hashes = expected("abcdefg")
    assert (one["block_hashes"], one["sequence_hashes"]) == (hashes.block_hashes, hashes.sequence_hashes)
    assert len(one["block_hashes"]) == 2
    many = orjson.loads(encode({"text": TEXTS, **options}).body)
    assert many["block_hashes"] == [expected(text).block_hashes for text in TEXTS]
    assert many["sequence_hashes"] == [expected(text).sequence_hashes for text in TEXTS]


def test_msgpack() -> None:
    """Packed little-endian int64; digests as they are."""
    one = msgpack.unpackb(encode({"text": "abcdefg", "return_block_hashes": True, "block_size": 3}, "msgpack").body)
    assert np.frombuffer(one["block_hashes"], "<i8").tolist() == expected("abcdefg").block_hashes
    fields = {"text": "abcdefg", "return_block_hashes": "vllm", "block_size": 3, "hash_seed": "0"}
    one = msgpack.unpackb(encode(fields, "msgpack").body)
    digests = expected("abcdefg", scheme="vllm", seed="0").block_hashes
    assert one["block_hashes"] == bytes.fromhex("".join(digests))
    assert "sequence_hashes" not in one


def test_octets() -> None:
    """Sections behind the others; names that look like numbers stay text."""
    answer = encode(b"abcdefg", "octet-stream", b"return_block_hashes=true&block_size=3&cache_salt=007")
    assert dict(answer.headers)[b"x-sidetok-sections"] == b"ids=28,block_hashes=16,sequence_hashes=16"
    hashes = expected("abcdefg", cache_salt="007")
    assert np.frombuffer(answer.body[28:44], "<i8").tolist() == hashes.block_hashes
    assert np.frombuffer(answer.body[44:], "<i8").tolist() == hashes.sequence_hashes


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"return_block_hashes": "x"}, "return_block_hashes"),
        ({"return_block_hashes": True, "block_size": 0}, "block_size"),
        ({"block_size": 16}, "body"),
        ({"cache_salt": "s"}, "body"),
    ],
)
def test_refusals(fields: dict[str, Any], param: str) -> None:
    """What cannot be, and fields that would do nothing."""
    answer = encode({"text": "a", **fields})
    assert (answer.status, orjson.loads(answer.body)["error"]["param"]) == (400, param)


def test_refusals_say_what_is_known() -> None:
    """A field that does nothing alone names the one that it lacks; a mistyped one is told these names, too."""
    alone = orjson.loads(encode({"text": "a", "block_size": 16}).body)["error"]["message"]
    assert alone == "`block_size` means something only together with `return_block_hashes`."
    mistyped = {"text": "a", "return_block_hash": True}
    assert "return_block_hashes, " in orjson.loads(encode(mistyped).body)["error"]["message"]
    assert "hash" not in orjson.loads(encode(mistyped, endpoint=Count(REGISTRY)).body)["error"]["message"]


def test_counts_have_none() -> None:
    """A count has no ids to hash."""
    answer = encode({"text": "a", "return_block_hashes": True}, endpoint=Count(REGISTRY))
    assert (answer.status, orjson.loads(answer.body)["error"]["param"]) == (400, "return_block_hashes")
    assert encode({"text": "a", "return_block_hashes": False}, endpoint=Count(REGISTRY)).status == 200


def test_rendered(tmp_path: Any) -> None:
    """Every render endpoint takes the fields; the salt is the request's, and prompts of ids are hashed, too."""
    registry = registry_of(f"small={write_model(tmp_path / 'm')}", alias=("other=small",))
    messages = [{"role": "user", "content": "hello"}]
    asked = {"return_block_hashes": "dynamo", "block_size": 4, "cache_salt": "s", "model": "other"}
    bodies: dict[Any, dict[str, Any]] = {
        ChatRender: {"messages": messages},
        MessagesRender: {"messages": messages, "max_tokens": 5},
        ResponsesRender: {"input": messages},
    }
    for endpoint, body in bodies.items():
        one = orjson.loads(send(endpoint(registry), {**body, **asked}).body)
        ids = np.array(one["token_ids"], "<u4").tobytes()
        hashes = block_hashes(ids, HashOptions("dynamo", 4, cache_salt="s"), "")
        assert (one["block_hashes"], one["sequence_hashes"]) == (hashes.block_hashes, hashes.sequence_hashes)
        assert one["isl_tokens"] == len(one["token_ids"])
    (one,) = orjson.loads(
        send(TextRender(registry), {"prompt": [1, 2, 3], "return_block_hashes": "llm-d", "block_size": 1}).body
    )
    named = block_hashes(np.array([1, 2, 3], "<u4").tobytes(), HashOptions("llm-d", 1), "small")
    assert one["block_hashes"] == named.block_hashes
    answer = send(ChatRender(registry), {"messages": messages, **asked, "return_block_hashes": "md5"})
    assert orjson.loads(answer.body)["error"]["param"] == "return_block_hashes"
