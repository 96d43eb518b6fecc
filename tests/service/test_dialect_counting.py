"""Anthropic's and OpenAI's newer bodies: the conversation that they are, its exact count, and their errors."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import orjson
import pytest

from dispatcher.request import EncodeRequest
from service.dialects import sglang
from service.dialects.anthropic import CountTokens, MessagesRender
from service.dialects.body import LARGE_BODY_BYTES
from service.dialects.responses import InputTokens, ResponsesRender
from service.dialects.vllm import Tokenize
from service.dialects.vllm_render import ChatRender
from service.errors import ModelNotReady
from service.registry import Registry
from tests.service.small_model import documents_of, head_of, registry_of, send, write_model

DUMP = "{% for m in messages %}{{ m | tojson }}{% endfor %}{{ (tools or '') | tojson }}{{ enable_thinking }}"
IMAGE = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="}}


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Registry:
    """A model that renders, and one whose template prints what it is given."""
    folder = tmp_path_factory.mktemp("models")
    dump = write_model(folder / "dump", tokenizer_config={"chat_template": DUMP})
    return registry_of(f"small={write_model(folder / 'small')}", f"dump={dump}")


def said(*messages: Any, tools: Any = "", thinking: str = "") -> list[str]:
    """What the template of `dump` prints."""
    texts = [json.dumps(message, ensure_ascii=False) for message in messages]
    return ["".join([*texts, json.dumps(tools), thinking])]


def user(content: Any) -> dict[str, Any]:
    """One message of a user."""
    return {"role": "user", "content": content}


def tool_f(schema: dict[str, Any]) -> dict[str, Any]:
    """A tool as templates see it."""
    return {"type": "function", "function": {"name": "f", "description": None, "parameters": schema}}


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({"messages": [user("a")]}, said(user("a"))),
        ({"messages": [user("a")], "system": "s"}, said({"role": "system", "content": "s"}, user("a"))),
        (
            {
                "messages": [user("a"), {"role": "system", "content": "z"}],
                "system": [
                    {"type": "text", "text": "x-anthropic-billing-header: cch=1"},
                    {"type": "text", "text": "s", "cache_control": {"type": "ephemeral"}},
                ],
            },
            said({"role": "system", "content": "sz"}, user("a")),
        ),
        (
            {"messages": [user([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}])]},
            said(user("a\nb")),
        ),
        (
            {
                "messages": [
                    {
                        "role": "assistant",
                        "content": [
                            {"type": "thinking", "thinking": "hm", "signature": "x"},
                            {"type": "redacted_thinking", "data": "x"},
                            {"type": "text", "text": "ok"},
                            {"type": "tool_use", "id": "1", "name": "f", "input": {"a": 1}},
                        ],
                    },
                    user(
                        [
                            {"type": "tool_result", "tool_use_id": "1", "content": [{"type": "text", "text": "r"}]},
                            {"type": "text", "text": "go"},
                        ]
                    ),
                ]
            },
            said(
                {
                    "thinking": "hm",
                    "role": "assistant",
                    "content": "ok",
                    "tool_calls": [
                        {"id": "1", "function": {"arguments": {"a": 1}, "name": "f"}, "type": "function"},
                    ],
                    "reasoning": "hm",
                    "reasoning_content": "hm",
                },
                {"role": "tool", "content": "r", "tool_call_id": "1"},
                user("go"),
            ),
        ),
        (
            {"messages": [user([{"type": "tool_result", "tool_use_id": "1", "content": "r"}])]},
            said({"role": "tool", "content": "r", "tool_call_id": "1"}),
        ),
        (
            {"messages": [user("a")], "tools": [{"name": "f", "input_schema": {"type": "object"}}]},
            said(user("a"), tools=[tool_f({"type": "object"})]),
        ),
        (
            {"messages": [user("a")], "tools": [{"name": "f", "input_schema": {"properties": {}}}]},
            said(user("a"), tools=[tool_f({"properties": {}, "type": "object"})]),
        ),
        ({"messages": [user("a")], "thinking": {"type": "disabled"}}, said(user("a"), thinking="False")),
        (
            {"messages": [user("a")], "thinking": {"type": "enabled", "budget_tokens": 2048}},
            said(user("a"), thinking="True"),
        ),
        (
            {
                "messages": [user("a")],
                "thinking": {"type": "enabled"},
                "chat_template_kwargs": {"enable_thinking": 0},
            },
            said(user("a"), thinking="0"),
        ),
    ],
)
def test_messages(body: dict[str, Any], expected: list[str], registry: Registry) -> None:
    """Anthropic's messages as the template sees them; counting and rendering see the same."""
    fields = {"model": "dump", **body}
    assert documents_of(CountTokens(registry), fields) == expected
    assert documents_of(MessagesRender(registry), {**fields, "max_tokens": 5}) == expected


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({"input": "a"}, said(user("a"))),
        ({"input": "a", "instructions": "s"}, said({"role": "system", "content": "s"}, user("a"))),
        (
            {"input": [{"role": "user", "content": [{"type": "input_text", "text": "a"}], "type": "message"}]},
            said(user("a")),
        ),
        (
            {
                "input": [
                    {
                        "type": "reasoning",
                        "id": "r",
                        "summary": [],
                        "content": [{"type": "reasoning_text", "text": "h"}],
                    },
                    {
                        "type": "message",
                        "id": "m",
                        "role": "assistant",
                        "status": "completed",
                        "content": [{"type": "output_text", "text": "ok", "annotations": []}],
                    },
                    {"type": "function_call", "call_id": "1", "name": "f", "arguments": '{"a": 1}'},
                    {"type": "function_call", "call_id": "2", "name": "g", "arguments": "{}"},
                    {"type": "function_call_output", "call_id": "1", "output": "r"},
                ]
            },
            said(
                {
                    "thinking": "h",
                    "role": "assistant",
                    "content": "ok",
                    "tool_calls": [
                        {"id": "1", "function": {"arguments": {"a": 1}, "name": "f"}, "type": "function"},
                        {"id": "2", "function": {"arguments": {}, "name": "g"}, "type": "function"},
                    ],
                    "reasoning": "h",
                    "reasoning_content": "h",
                },
                {"role": "tool", "content": "r", "tool_call_id": "1"},
            ),
        ),
        (
            {
                "input": "a",
                "tools": [{"type": "function", "name": "f", "parameters": {}}, {"type": "web_search"}],
            },
            said(
                user("a"),
                tools=[{"type": "function", "function": {"name": "f", "description": None, "parameters": {}}}],
            ),
        ),
        (
            {"input": [user("a"), {"role": "assistant", "content": "b"}, {"role": "assistant", "content": "c"}]},
            said(user("a"), {"role": "assistant", "content": "b"}, {"role": "assistant", "content": "c"}),
        ),
    ],
)
def test_responses(body: dict[str, Any], expected: list[str], registry: Registry) -> None:
    """OpenAI's items as the template sees them; counting and rendering see the same."""
    fields = {"model": "dump", **body}
    assert documents_of(InputTokens(registry), fields) == expected
    assert documents_of(ResponsesRender(registry), fields) == expected


def test_an_unfinished_item_is_continued(registry: Registry) -> None:
    """An assistant's message whose status says so is the end of the prompt."""
    items = [
        user("a"),
        {"role": "assistant", "status": "incomplete", "content": [{"type": "output_text", "text": "b"}]},
    ]
    assert documents_of(ResponsesRender(registry), {"input": items}) == ["<s>[user]a</s>[assistant]b"]


def test_counts(registry: Registry) -> None:
    """Exactly the ids that rendering gives."""
    rendered = orjson.loads(
        send(MessagesRender(registry), {"model": "small", "messages": [user("é")], "max_tokens": 1}).body
    )
    answer = send(CountTokens(registry), {"model": "small", "messages": [user("é")]})
    assert orjson.loads(answer.body) == {"input_tokens": len(rendered["token_ids"])}
    answer = send(InputTokens(registry), {"input": "é"})
    assert orjson.loads(answer.body) == {
        "object": "response.input_tokens",
        "input_tokens": len(rendered["token_ids"]),
    }


def test_sampling_of_messages(registry: Registry) -> None:
    """The names differ, the parameters do not; a stream has what vLLM's own answers have."""
    body = {
        "model": "small", "messages": [user("a")], "max_tokens": 7, "stop_sequences": ["X"], "top_k": 3, "stream": True,
        "cache_salt": "s",
    }  # fmt: skip
    answer = orjson.loads(send(MessagesRender(registry), body).body)
    params = answer["sampling_params"]
    assert (params["max_tokens"], params["stop"], params["top_k"], params["output_kind"]) == (7, ["X"], 3, 1)
    assert answer["stream_options"] == {"include_usage": True, "continuous_usage_stats": True}
    assert (answer["cache_salt"], answer["model"]) == ("s", "small")


def test_sampling_of_responses(registry: Registry) -> None:
    """Likewise; an answer's format is a constraint."""
    schema = {"type": "object"}
    body = {
        "input": "a", "max_output_tokens": 9, "temperature": 0.5, "truncation": "auto", "top_logprobs": 2,
        "include": ["message.output_text.logprobs"], "text": {"format": {"type": "json_schema", "schema": schema}},
    }  # fmt: skip
    params = orjson.loads(send(ResponsesRender(registry), body).body)["sampling_params"]
    assert (params["max_tokens"], params["temperature"], params["logprobs"]) == (9, 0.5, 2)
    assert params["structured_outputs"] == {"json": schema}
    body = {"input": "a", "text": {"format": {"type": "json_object"}}}
    params = orjson.loads(send(ResponsesRender(registry), body).body)["sampling_params"]
    assert params["structured_outputs"] == {"json_object": True}


@pytest.mark.parametrize(
    ("body", "status", "kind"),
    [
        ({"model": "small"}, 400, "invalid_request_error"),
        ({"model": "small", "messages": []}, 400, "invalid_request_error"),
        ({"model": "small", "messages": [user([IMAGE])]}, 400, "invalid_request_error"),
        (
            {"model": "small", "messages": [user([{"type": "tool_result", "tool_use_id": "1", "content": [IMAGE]}])]},
            400,
            "invalid_request_error",
        ),
        ({"model": "small", "messages": [{"role": "wizard", "content": "a"}]}, 400, "invalid_request_error"),
        ({"model": "?", "messages": [user("a")]}, 404, "not_found_error"),
        (b"{", 400, "invalid_request_error"),
    ],
)
def test_errors_of_messages(body: Any, status: int, kind: str, registry: Registry) -> None:
    """Anthropic's error object; nothing of the request's text in it."""
    answer = send(CountTokens(registry), body)
    fields = orjson.loads(answer.body)
    assert (answer.status, fields["type"], fields["error"]["type"]) == (status, "error", kind)
    assert set(fields["error"]) == {"type", "message"}


@pytest.mark.parametrize(
    ("body", "status", "param"),
    [
        ({}, 400, None),
        ({"input": 5}, 400, None),
        ({"input": "a", "previous_response_id": "x"}, 400, "previous_response_id"),
        ({"input": "a", "conversation": {"id": "x"}}, 400, "conversation"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, 400, "input"),
        ({"input": [{"type": "reasoning", "encrypted_content": "x"}]}, 400, "input"),
        ({"input": [user([{"type": "input_image", "image_url": "data:"}])]}, 400, None),
        ({"input": "a", "model": "?"}, 404, None),
    ],
)
def test_errors_of_responses(body: Any, status: int, param: str | None, registry: Registry) -> None:
    """OpenAI's error object."""
    answer = send(InputTokens(registry), body)
    error = orjson.loads(answer.body)["error"]
    assert (answer.status, error["type"], error["param"]) == (status, "invalid_request_error", param)
    assert send(ResponsesRender(registry), body).status == status


def test_overload_is_told_in_each_format(registry: Registry) -> None:
    """An overload says when to come again, also here."""
    error = ModelNotReady("loading")
    for endpoint, kind in (
        (CountTokens(registry), "overloaded_error"),
        (InputTokens(registry), "ServiceUnavailableError"),
    ):
        answer = endpoint.fail(head_of(), error)
        assert answer.status == 503
        assert orjson.loads(answer.body)["error"]["type"] == kind
        assert any(name == b"retry-after" for name, _ in answer.headers)


@pytest.mark.parametrize("pad", ["", "a" * LARGE_BODY_BYTES, "é" * LARGE_BODY_BYTES])
@pytest.mark.parametrize("has_gpu", [False, True])
def test_integers_of_any_size(pad: str, has_gpu: bool, registry: Registry) -> None:
    """A template shows the number that was sent, however the body is read; floats stay what they are."""
    schema = {"maximum": 2**70, "minimum": -(2**64), "multipleOf": 1e22, "default": [0.5, 2**63, -0.0]}
    tool, openai_tool = {"name": "f", "input_schema": schema}, {"type": "function", "name": "f", "parameters": schema}
    chat = {"messages": [user("a")], "tools": [tool_f(schema)], "pad": pad, "model": "dump"}
    expected = json.dumps(schema)[1:-1]
    registry.gpus = SimpleNamespace(any=has_gpu)  # type: ignore[assignment]
    for endpoint, fields in (
        (Tokenize(registry), chat),
        (ChatRender(registry), chat),
        (sglang.Tokenize(registry), chat),
        (CountTokens(registry), {**chat, "tools": [tool]}),
        (MessagesRender(registry), {**chat, "tools": [tool], "max_tokens": 5}),
        (InputTokens(registry), {"model": "dump", "input": "a", "tools": [openai_tool], "pad": pad}),
        (ResponsesRender(registry), {"model": "dump", "input": "a", "tools": [openai_tool], "pad": pad}),
    ):
        request = endpoint.read(head_of(), json.dumps(fields, ensure_ascii=False).encode())
        assert isinstance(request, EncodeRequest)
        assert expected in request.documents[0], endpoint
    registry.gpus = None


def test_no_template(tmp_path: Path) -> None:
    """A model without a template counts no conversations, and says why."""
    folder = write_model(tmp_path / "m", tokenizer_config={})
    answer = send(CountTokens(registry_of(f"m={folder}")), {"model": "m", "messages": [user("a")]})
    assert answer.status == 400
    assert "chat template" in orjson.loads(answer.body)["error"]["message"]
