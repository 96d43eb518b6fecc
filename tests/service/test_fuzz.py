"""Mutated requests: whatever arrives, an endpoint answers with a result or with the caller's error, never with ours."""

from __future__ import annotations

import random
from typing import Any

import msgpack
import orjson
import pytest

from dispatcher.tokenizer import Tokenizer
from service.chat import ChatTemplate
from service.codecs import MAX_DOCUMENTS
from service.dialects import OPERATIONS, dialect_endpoints
from service.native import Count, Decode, Encode
from service.options import DIALECTS
from tests.fakes import FakeTokenizer
from tests.native_client import CODECS, JSON, MSGPACK, OCTETS
from tests.service.small_model import CHAT_TEMPLATE
from tests.service_fakes import FakeRegistry, ask

VALUES: list[Any] = [
    *(None, True, False, 0, 1, -1, 2**31, 2**32, 2**63 - 1, 2**63, 2**64 - 1, -(2**63), 0.0, 1.5, 1e308, ""),
    *("a", "\0", "é\U0001f600", "true", "left", "right", [], [[]], {}, {"a": []}, [1], ["a"], [None], [True]),
    *([1, "a"], [[1], [2]], [["a"]], [{"role": "user", "content": "a"}], "x" * 3000, list(range(300))),
]
NAMES = (
    *("model", "text", "ids", "prompt", "tokens", "messages", "add_special_tokens", "max_tokens", "truncation_side"),
    *("return_char_offsets", "return_byte_offsets", "return_token_strings", "return_special_tokens_mask", "tools"),
    *("skip_special_tokens", "return_token_strs", "add_generation_prompt", "continue_final_message", "chat_template"),
    *("input", "instructions", "system", "thinking", "stop", "n", "temperature", "stream", "logit_bias", "max_tokens"),
    *("truncate_prompt_tokens", "cache_salt", "response_format", "documents", "reasoning", "chat_template_kwargs"),
)
ALLOWED = {200, 400, 404, 413, 415, 422}


@pytest.fixture(scope="module")
def endpoints(embedded: Tokenizer) -> dict[str, Any]:
    """Every hot endpoint, over a real tokenizer and a fake one."""
    registry = FakeRegistry(real=embedded, fake=FakeTokenizer())
    for model in registry.models():
        model.chat_template = ChatTemplate({"default": CHAT_TEMPLATE}, {})
    return {
        "encode": Encode(registry),
        "count": Count(registry),
        "decode": Decode(registry),
        **by_dialect(registry),
    }


def by_dialect(registry: FakeRegistry) -> dict[str, Any]:
    """The endpoints of each dialect; those whose path means one thing only are the same in all."""
    return {
        f"{path}-{dialect}": endpoint
        for dialect in DIALECTS
        for path, endpoint in dialect_endpoints(registry, dialect, trust_templates=True).items()
    }


ENDPOINTS = (
    *("encode", "count", "decode"),
    *(f"{path}-{dialect}" for path in ("/tokenize", "/detokenize") for dialect in DIALECTS),
    *(f"{path}-vllm" for path in OPERATIONS if "tokenize" not in path),
)


def some_fields(rng: random.Random) -> dict[str, Any]:
    """A few names with a few values, mostly ones that some endpoint knows."""
    fields = {rng.choice(NAMES): rng.choice(VALUES) for _ in range(rng.randrange(5))}
    content = rng.choice(["text", "ids", "prompt", "tokens", "input", "inputs", "content"])
    if rng.random() < 0.7:
        fields[content] = rng.choice([["a", "bc"], "abc", [5, 6], [[5], [6]], [], ""])
    if rng.random() < 0.3:
        fields["model"] = rng.choice(["fake", "real"])
    return fields


def mutated(rng: random.Random, body: bytes) -> bytes:
    """The body with a few bytes changed, cut out, doubled, or cut off."""
    data = bytearray(body)
    for _ in range(rng.randrange(1, 4)):
        if not data:
            break
        at = rng.randrange(len(data))
        action = rng.randrange(5)
        if action == 0:
            data[at] = rng.randrange(256)
        elif action == 1:
            del data[at : at + rng.randrange(1, 9)]
        elif action == 2:
            data[at:at] = data[at : at + rng.randrange(1, 9)]
        elif action == 3:
            data[at:at] = rng.randbytes(rng.randrange(1, 5))
        else:
            del data[at:]
    return bytes(data)


@pytest.mark.parametrize("name", ENDPOINTS)
@pytest.mark.parametrize("codec", CODECS)
def test_mutated_requests(endpoints: dict[str, Any], name: str, codec: str) -> None:
    """Fields of every kind, and bytes that are nearly right, in every codec."""
    rng = random.Random(f"{name} {codec}")
    for _ in range(700):
        fields = some_fields(rng)
        query = b""
        if codec == JSON:
            body = orjson.dumps(fields)
        elif codec == MSGPACK:
            body = msgpack.packb(fields)
        else:
            body = rng.choice([b"", b"abc", rng.randbytes(rng.choice([3, 4, 8, 40])), b"\1\0\0\0\3\0\0\0abc"])
            pairs = [f"{k}={str(v).lower() if isinstance(v, bool) else v}" for k, v in fields.items()]
            query = "&".join([*pairs, *rng.choice([[], ["batch=true"]])]).encode()[:4000]
        if rng.random() < 0.5:
            body = mutated(rng, body)
        if rng.random() < 0.2:
            query = mutated(rng, query)
        answer = ask(endpoints[name], body, query, content_type=codec, accept=rng.choice(CODECS))
        assert answer.status in ALLOWED, (body, query, answer.body)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("name", ENDPOINTS)
def test_random_bytes(endpoints: dict[str, Any], name: str, seed: int) -> None:
    """Bytes without any sense."""
    rng = random.Random(f"{name} {seed}")
    for _ in range(300):
        body = rng.randbytes(rng.choice([0, 1, 2, 5, 30, 200]))
        answer = ask(endpoints[name], body, rng.randbytes(rng.randrange(6)), content_type=rng.choice(CODECS))
        assert answer.status in ALLOWED, (body, answer.body)


@pytest.mark.parametrize("n", [0, 1, 2**16, 2**31, 2**32 - 1, 2**63, 2**64 - 1])
def test_extreme_limits(endpoints: dict[str, Any], n: int) -> None:
    """`max_tokens` up to 64 bits means the same to a real tokenizer in every codec, with and without details."""
    for options in ({}, {"return_char_offsets": True}, {"add_special_tokens": False}):
        fields = {"text": "some text", "max_tokens": n, **options}
        statuses = {
            ask(endpoints["encode"], orjson.dumps(fields)).status,
            ask(endpoints["encode"], msgpack.packb(fields), content_type=MSGPACK).status,
            ask(
                endpoints["encode"],
                b"some text",
                "&".join(f"{k}={str(v).lower()}" for k, v in fields.items() if k != "text").encode(),
                content_type=OCTETS,
            ).status,
        }
        assert statuses in ({200}, {400})
        assert n == 0 or statuses == {200}


@pytest.mark.parametrize("ids", [[0], [2**32 - 1], [128_815, 129_280], [5, 2**31, 6]])
def test_ids_that_no_tokenizer_has(endpoints: dict[str, Any], ids: list[int]) -> None:
    """Ids outside the vocabulary are left out by the reference, and are no error of ours."""
    assert ask(endpoints["decode"], orjson.dumps({"ids": ids})).status == 200
    for name in ("/detokenize-vllm", "/detokenize-sglang"):
        assert ask(endpoints[name], orjson.dumps({"tokens": ids}), content_type=JSON).status in ALLOWED


@pytest.mark.parametrize(
    ("name", "content", "item"),
    [("/tokenize-sglang", "prompt", ""), ("/detokenize-sglang", "tokens", [1])],
)
def test_dialects_bound_their_batches(endpoints: dict[str, Any], name: str, content: str, item: Any) -> None:
    """A dialect with batches has the same bound on the number of documents."""
    for n, status in ((MAX_DOCUMENTS, 200), (MAX_DOCUMENTS + 1, 413)):
        body = orjson.dumps({"model": "fake", content: [item] * n})
        assert ask(endpoints[name], body, content_type=JSON).status == status
