"""Answers that list ids: where a GPU wrote them as decimal numbers, its text goes out; the answer is the same."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import orjson
import pytest

from dispatcher.request import EncodedDocument, EncodeRequest
from service.dialects.vllm import Tokenize
from service.dialects.vllm_render import ChatRender, TextRender
from service.endpoint import Endpoint, Head
from service.native import Count, Encode
from service.registry import Registry
from tests.service.small_model import head_of, registry_of, write_model

MESSAGES = [{"role": "user", "content": "hi"}]
CASES: dict[str, tuple[Any, dict[str, Any]]] = {
    "native": (Encode, {"text": "some words", "model": "small"}),
    "native batch": (Encode, {"text": ["some words", "", "more"], "model": "small"}),
    "native with hashes": (Encode, {"text": "some words " * 9, "return_block_hashes": "vllm"}),
    "tokenize": (Tokenize, {"prompt": "some words"}),
    "tokenize with strings": (Tokenize, {"prompt": "some words", "return_token_strs": True}),
    "render": (TextRender, {"prompt": ["some", "words"]}),
    "render a chat": (ChatRender, {"messages": MESSAGES}),
}


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Registry:
    """One small model with a chat template."""
    return registry_of(f"small={write_model(tmp_path_factory.mktemp('small'))}")


def encoded(endpoint: Endpoint, head: Head, fields: dict[str, Any]) -> tuple[EncodeRequest, list[EncodedDocument]]:
    """A request and its results."""
    request = endpoint.read(head, orjson.dumps(fields))
    assert isinstance(request, EncodeRequest)
    return request, request.tokenizer.encode(request.documents, request.options)


def body_of(endpoint: Endpoint, head: Head, request: EncodeRequest, result: list[EncodedDocument]) -> bytes:
    """The answer, without what differs in any two."""
    return re.sub(rb"cmpl-[0-9a-f]{16}", b"", endpoint.write(head, request, result).whole)


@pytest.mark.parametrize("case", CASES)
def test_the_same_answer_with_numbers_of_a_gpu(registry: Registry, case: str) -> None:
    """It is made of the pieces that there are, and nothing else in it changes."""
    endpoint, head = CASES[case][0](registry), head_of()
    request, result = encoded(endpoint, head, CASES[case][1])
    assert request.lists_ids
    plain = body_of(endpoint, head, request, result)
    for document in result:
        text = orjson.dumps(np.frombuffer(document.ids, "<u4").tolist())[1:-1]
        document.decimals = (text[:3], b"", text[3:]) if text else ()
    assert body_of(endpoint, head, request, result) == plain
    result[0].decimals = (b"7,", b"8", b"")
    assert b"[7,8]" in body_of(endpoint, head, request, result)


def test_others_do_not_ask(registry: Registry) -> None:
    """Packed ids and counts."""
    fields = {"text": "some words", "model": "small"}
    head = head_of()
    head.accept = b"application/msgpack"
    assert not encoded(Encode(registry), head, fields)[0].lists_ids
    assert not encoded(Count(registry), head_of(), fields)[0].lists_ids
