"""Text Embeddings Inference: tokens with their places, texts of ids, its errors."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from dispatcher.errors import InvalidText
from service.codecs import MAX_DOCUMENTS
from service.dialects.tei import Decode, Tokenize
from service.errors import ModelNotReady
from service.registry import Registry
from tests.service.small_model import head_of, registry_of, send, write_model

BOS = 256


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Registry:
    """One small model."""
    return registry_of(f"small={write_model(tmp_path_factory.mktemp('small'))}")


def lists(registry: Registry, **fields: Any) -> Any:
    """What `/tokenize` answers."""
    answer = send(Tokenize(registry), fields)
    assert answer.status == 200, answer.body
    return orjson.loads(answer.body)


def test_tokens_have_places(registry: Registry) -> None:
    """In characters; special tokens have a name instead."""
    (found,) = lists(registry, inputs="aé</s>")
    assert found[0] == {"id": BOS, "text": "<s>", "special": True, "start": None, "stop": None}
    assert [(t["text"], t["start"], t["stop"]) for t in found[1:]] == [
        ("a", 0, 1),
        ("é", 1, 2),
        ("é", 1, 2),
        ("</s>", 2, 6),
    ]
    assert not any(token["special"] for token in found[1:])


def test_lists(registry: Registry) -> None:
    """The answer is a list of lists, for one text and for several; special tokens can be refused."""
    assert [len(tokens) for tokens in lists(registry, inputs=["a", "", "bcd"])] == [2, 1, 4]
    assert [len(tokens) for tokens in lists(registry, inputs="ab", add_special_tokens=False, model="any")] == [2]


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"ids": [BOS, 64]}, 1),
        ({"ids": [[BOS, 64], []]}, 2),
    ],
)
def test_decode(fields: Any, expected: int, registry: Registry) -> None:
    """A list of texts, special tokens left out unless they are to stay."""
    found = orjson.loads(send(Decode(registry), fields).body)
    assert len(found) == expected
    assert "<s>" not in found[0]
    kept = orjson.loads(send(Decode(registry), {**fields, "skip_special_tokens": False}).body)
    assert kept[0] == "<s>" + found[0]


@pytest.mark.parametrize(
    ("endpoint", "body", "status", "kind"),
    [
        (Tokenize, {"inputs": []}, 400, "Empty"),
        (Tokenize, {}, 422, "Validation"),
        (Tokenize, {"inputs": 5}, 422, "Validation"),
        (Tokenize, {"inputs": ["a", 5]}, 422, "Validation"),
        (Tokenize, {"inputs": "a", "add_special_tokens": 1}, 422, "Validation"),
        (Tokenize, {"inputs": "a", "prompt_name": "query"}, 422, "Validation"),
        (Tokenize, {"inputs": "a", "model": 5}, 422, "Validation"),
        (Tokenize, {"inputs": ["a"] * (MAX_DOCUMENTS + 1)}, 413, "Validation"),
        (Tokenize, b"[", 422, "Validation"),
        (Tokenize, [], 422, "Validation"),
        (Decode, {"ids": []}, 400, "Empty"),
        (Decode, {"ids": 5}, 422, "Validation"),
        (Decode, {"ids": [[1], 2]}, 422, "Validation"),
        (Decode, {"ids": [1], "skip_special_tokens": "x"}, 422, "Validation"),
    ],
)
def test_errors(endpoint: Any, body: Any, status: int, kind: str, registry: Registry) -> None:
    """An error and its type, flat."""
    answer = send(endpoint(registry), body)
    fields = orjson.loads(answer.body)
    assert set(fields) == {"error", "error_type"}
    assert (answer.status, fields["error_type"]) == (status, kind)


def test_errors_of_the_service(registry: Registry) -> None:
    """What a tokenizer refuses, and a model that still loads."""
    endpoint = Tokenize(registry)
    for error, status, kind in ((InvalidText("x"), 422, "Tokenizer"), (ModelNotReady("x"), 503, "Unhealthy")):
        answer = endpoint.fail(head_of(), error)
        assert (answer.status, orjson.loads(answer.body)["error_type"]) == (status, kind)
