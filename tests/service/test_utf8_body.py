"""Conversations read without a `str` for their long texts: the same form as in the usual way, or none."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import orjson
import pytest

from dispatcher.late_texts import LateTexts
from dispatcher.options import DispatcherOptions
from dispatcher.request import EncodeRequest
from service.chat_text import Utf8Text, str_of
from service.dialects.body import LARGE_BODY_BYTES, read_json
from service.dialects.utf8_body import MIN_BYTES, conversation_form, has_utf8
from service.dialects.vllm import Tokenize
from service.dialects.vllm_render import ChatRender
from service.dialects.vllm_render_schema import ChatCompletion, validate_chat
from service.options import ServiceOptions
from service.registry import Registry
from tests.service.small_model import head_of, registry_of, send, write_model

LONG = 'Zoë \U0001f44b \\ "quoted" \n\t\u2028 ' * 3000
HEAD = head_of("/v1/chat/completions/render")


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Registry:
    """One small model."""
    return registry_of(f"small={write_model(tmp_path_factory.mktemp('models') / 'small')}")


def form_of(body: bytes) -> ChatCompletion | None:
    """The form, if it is read so."""
    return conversation_form(body, validate_chat)


def plain(value: Any) -> Any:
    """A value with `str` in the place of every `Utf8Text`."""
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    return [plain(item) for item in value] if isinstance(value, list) else str_of(value)


def test_long_texts_stay_utf8() -> None:
    """Of roles that templates pass on, as content or as a part of it; everything else is what it always is."""
    short = "é" * (MIN_BYTES // 2 - 1)
    messages = [
        {"role": "system", "content": LONG},
        {"role": "user", "content": LONG, "name": "zoë"},
        {"role": "assistant", "content": short, "tool_calls": [{"function": {"name": "f", "arguments": LONG}}]},
        {"role": "tool", "content": [{"type": "text", "text": LONG}, {"type": "text", "text": short}, LONG]},
        {"role": "user", "content": [{"text": LONG, "type": "refusal", "refusal": LONG}, {"type": "text", "text": 5}]},
        {"role": "assistant", "content": None},
        {"role": "assistant"},
    ]
    fields = {"messages": messages, "model": "m", "tools": None, "documents": [{"a": 1.5}], "x": {"y": [1, None, "é"]}}
    body = orjson.dumps(fields)
    form = form_of(body)
    assert form is not None
    expected = validate_chat(read_json(body), len(body))
    assert plain(form.messages) == expected.messages
    assert form.model_dump(exclude={"messages"}) == expected.model_dump(exclude={"messages"})
    utf8 = [isinstance(message.get("content"), Utf8Text) for message in form.messages]
    assert utf8 == [False, True, False, False, False, False, False]
    parts = form.messages[3]["content"]
    assert isinstance(parts, list)
    assert [isinstance(part, dict) and isinstance(part["text"], Utf8Text) for part in parts] == [True, False, False]
    assert has_utf8(form.messages)
    assert not has_utf8(expected.messages)


@pytest.mark.parametrize(
    "body",
    [
        orjson.dumps({"messages": [{"role": "user", "content": "é"}]}),
        orjson.dumps({"messages": [{"role": "user", "content": "a" * 2 * LARGE_BODY_BYTES}]}),
        orjson.dumps({"messages": [{"content": LONG}]}),
        orjson.dumps({"messages": [{"role": "user", "content": {"a": LONG}}]}),
        orjson.dumps({"messages": {"role": "user", "content": LONG}}),
        orjson.dumps({"messages": [LONG]}),
        orjson.dumps([LONG]),
        orjson.dumps({"prompt": LONG}),
        orjson.dumps({"messages": [{"role": "user", "content": LONG}], "max_tokens": "many"}),
        orjson.dumps({"messages": [{"role": "user", "content": LONG}]})[:-1],
        orjson.dumps({"messages": [{"role": "user", "content": LONG}]}).replace("ë".encode(), b"\xff", 1),
        orjson.dumps({"messages": [{"role": "user", "content": LONG}]}).replace("ë".encode(), b"\\ud800", 1),
        orjson.dumps({"messages": [{"role": "user", "content": LONG}]}).replace("ë".encode(), b"\xed\xa0\x80", 1),
        orjson.dumps({"messages": [{"role": "user", "content": LONG}]}).replace("ë".encode(), b"\n", 1),
    ],
)
def test_what_is_read_in_the_usual_way(body: bytes) -> None:
    """Short or ASCII bodies, and whatever is wrong: the usual way says how."""
    assert form_of(body) is None


def test_any_json_is_read_to_the_same_values() -> None:
    """Keys that come twice, escapes, numbers of all sizes, constants of Python's: as Python's `json` reads them."""
    rng = random.Random(9)
    numbers = ("0", "-0", "1e5", "-1.5E-3", "18446744073709551616", "1e400", "NaN", "0.1", "123456789012345678")
    strings = (r'"\u00e9\ud83d\ude00\/\b\f\n\r\t\\\""', r'"\u0000"', '"é"', '""', '"a\x7f"')
    contents = (orjson.dumps(LONG).decode(), *strings)
    for _ in range(40):
        messages = []
        for _ in range(rng.randrange(1, 5)):
            pairs = [f'"content":{rng.choice(contents)}' for _ in range(rng.randrange(1, 3))]
            pairs += [f'"role":"{rng.choice(["user", "system", "tool"])}"' for _ in range(rng.randrange(1, 3))]
            pairs += [f'"n{i}":{rng.choice(numbers + strings)}' for i in range(rng.randrange(3))]
            rng.shuffle(pairs)
            messages.append("{" + ",".join(pairs) + "}")
        body = (
            f'{{"messages":[{contents[0]}],"é":{rng.choice(numbers)}, "messages" : [ {",".join(messages)} ]}}'.encode()
        )
        body += b" " * LARGE_BODY_BYTES
        form = form_of(body)
        assert form is not None
        # `repr` also tells NaN from NaN, and 0 from -0.
        expected = validate_chat(exactly(body), len(body))
        assert repr(plain(form.messages)) == repr(expected.messages)
        assert repr(form.model_extra) == repr(expected.model_extra)


def exactly(body: bytes) -> Any:
    """What Python's `json` reads."""
    return json.loads(body)


@pytest.fixture
def with_gpu(registry: Registry) -> Iterator[Registry]:
    """The same with a GPU."""
    registry.gpus = SimpleNamespace(any=True)  # type: ignore[assignment]
    yield registry
    registry.gpus = None


def test_who_may_use_a_gpu(with_gpu: Registry) -> None:
    """Whoever asks for it; and whoever leaves it to the policy, unless that is the CPU route."""
    assert [with_gpu.may_use_gpu(route) for route in ("auto", "gpu", "cpu")] == [True, True, False]
    for policy, has_gpu, expected in (("cpu", True, [False, True, False]), ("adaptive", False, [False, False, False])):
        registry = Registry(ServiceOptions(model=("m=nowhere",)), DispatcherOptions(policy=policy))
        registry.gpus = SimpleNamespace(any=True) if has_gpu else None  # type: ignore[assignment]
        assert [registry.may_use_gpu(route) for route in ("auto", "gpu", "cpu")] == expected


def test_an_answer_is_the_same(with_gpu: Registry) -> None:
    """Read either way, a conversation gives the same document and the same ids; errors are worded alike."""
    endpoint = ChatRender(with_gpu)
    texts = [LONG, "short é", "x" * MIN_BYTES]
    messages = [{"role": "assistant" if i % 2 else "user", "content": text} for i, text in enumerate(texts)]
    for extra in ({}, {"continue_final_message": True, "add_generation_prompt": False}, {"add_special_tokens": True}):
        fields = {"messages": messages, "truncate_prompt_tokens": 50, **extra}
        body = orjson.dumps(fields)
        request, usual = (endpoint.read(HEAD, data) for data in (body, ascii_only(fields)))
        assert isinstance(request, EncodeRequest)
        assert isinstance(usual, EncodeRequest)
        assert isinstance(request.documents, LateTexts) == ("continue_final_message" not in extra)
        assert [*request.texts()] == [*usual.texts()]
        assert [*request.documents] == usual.documents
        answers = [orjson.loads(send(endpoint, data, HEAD).whole) for data in (body, ascii_only(fields))]
        assert answers[0]["token_ids"] == answers[1]["token_ids"]
        by_cpu = endpoint.read(replace(HEAD, route=b"cpu"), body)
        assert isinstance(by_cpu, EncodeRequest)
        assert by_cpu.documents == usual.documents
    wrong = {"messages": messages, "add_generation_prompt": True, "continue_final_message": True}
    assert send(endpoint, orjson.dumps(wrong), HEAD).body == send(endpoint, ascii_only(wrong), HEAD).body


def test_prompts_stay_utf8_where_there_is_a_gpu(with_gpu: Registry) -> None:
    """`/tokenize` of a prompt or a conversation: the same document, options, answer and errors as in the usual way."""
    endpoint = Tokenize(with_gpu)
    messages = [{"role": "user", "content": LONG}, {"role": "assistant", "content": "é"}]
    both_flags = {"continue_final_message": True, "add_generation_prompt": True}
    bodies: list[tuple[Any, bool]] = [
        ({"prompt": LONG}, True),
        ({"prompt": LONG, "add_special_tokens": False, "return_token_strs": True, "model": "small"}, True),
        ({"messages": messages}, True),
        ({"messages": messages, "continue_final_message": True, "add_generation_prompt": False}, False),
        ({"prompt": "é", "note": LONG}, False),
        ({"prompt": LONG, "add_special_tokens": "no"}, False),
        ({"prompt": LONG, "model": "none"}, False),
        ({"prompt": LONG, **both_flags}, False),
        ({"messages": messages, **both_flags}, False),
        ({"prompt": 5, "note": LONG}, False),
        ({"prompt": LONG, "messages": messages}, False),
    ]
    for fields, is_kept in bodies:
        body = orjson.dumps(fields)
        usual, answer = (send(endpoint, body, replace(HEAD, route=route)) for route in (b"cpu", b""))
        if usual.status == 200:
            request = endpoint.read(HEAD, body)
            assert isinstance(request, EncodeRequest)
            assert isinstance(request.documents, LateTexts) == is_kept, fields.keys()
        assert (answer.status, answer.whole) == (usual.status, usual.whole), fields.keys()


def ascii_only(fields: Any) -> bytes:
    """JSON in which everything outside ASCII is escaped."""
    return json.dumps(fields).encode()
