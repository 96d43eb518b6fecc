"""Anthropic's Messages as a chat completion: counted exactly, or rendered as vLLM renders them.

Source: Anthropic's published request shape, and vLLM's conversion (`vllm/entrypoints/anthropic`).
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import Field, TypeAdapter, ValidationError

from dispatcher.request import EncodeRequest, Request, Result
from gpu_core.errors import SidetokError
from service.block_hashes import FIELDS
from service.dialects.body import Mistakes, error_answer, read_json, shown_mistakes, validated, with_exact_integers
from service.dialects.chat_count import count_request, n_tokens
from service.dialects.json_endpoint import JsonEndpoint
from service.dialects.vllm_chat import ATTRIBUTION_HEADER
from service.dialects.vllm_render import ConversationRender
from service.dialects.vllm_render_schema import ChatCompletion, chat_completion
from service.dialects.vllm_schema import Lenient, mistakes_of
from service.endpoint import Answer, Head
from service.errors import InvalidBody, status_of

ERROR_TYPES = {404: "not_found_error", 413: "request_too_large", 429: "rate_limit_error", 503: "overloaded_error"}


class Block(Lenient):
    """One block of a message's content."""

    type: str
    text: str | None = None
    thinking: str | None = None
    id: str | None = None
    name: str | None = None
    input: dict[str, Any] | None = None
    tool_use_id: str | None = None
    content: str | list[dict[str, Any]] | None = None


class AnthropicMessage(Lenient):
    """One message."""

    role: Literal["user", "assistant", "system"]
    content: str | list[Block]


class AnthropicTool(Lenient):
    """One tool; those that the vendor runs itself have no schema, and cannot be rendered."""

    name: str
    description: str | None = None
    input_schema: dict[str, Any]
    defer_loading: bool | None = None


class Messages(Lenient):
    """What `/v1/messages/count_tokens` reads."""

    model: str
    messages: Annotated[list[AnthropicMessage], Field(fail_fast=True)]
    system: str | list[Block] | None = None
    tools: Annotated[list[AnthropicTool], Field(fail_fast=True)] | None = None
    thinking: dict[str, Any] | None = None
    output_config: dict[str, Any] | None = None
    chat_template_kwargs: dict[str, Any] | None = None


class MessagesWithLimit(Messages):
    """What `/v1/messages` reads."""

    max_tokens: int
    stop_sequences: Annotated[list[str], Field(max_length=4)] | None = None
    stream: bool | None = False
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    cache_salt: Annotated[str, Field(min_length=1, max_length=1024)] | None = None
    kv_transfer_params: dict[str, Any] | None = None
    ec_transfer_params: dict[str, Any] | None = None
    vllm_xargs: dict[str, Any] | None = None


_COUNT: TypeAdapter[Messages] = TypeAdapter(Messages)
_RENDER: TypeAdapter[MessagesWithLimit] = TypeAdapter(MessagesWithLimit)

_SAME = (
    "model", "temperature", "top_k", "top_p", "stream", "cache_salt", "kv_transfer_params", "ec_transfer_params",
    "vllm_xargs", *FIELDS,
)  # fmt: skip
"""Fields that a chat completion has under the same name."""


class CountTokens(JsonEndpoint[ChatCompletion]):
    """`POST /v1/messages/count_tokens`."""

    def form(self, body: bytes) -> ChatCompletion:
        """See `JsonEndpoint`."""
        return _chat(validated(_validate_count, with_exact_integers(read_json(body), body), body))

    def request(self, head: Head, form: ChatCompletion, n_bytes: int) -> EncodeRequest:
        """See `JsonEndpoint`."""
        return count_request(self.registry.resolve(form.model), form, head, n_bytes)

    def write(self, head: Head, request: Request, result: Result) -> Answer:
        """See `service.endpoint.Endpoint`."""
        return Answer(b'{"input_tokens":%d}' % n_tokens(result))

    def fail(self, head: Head, error: SidetokError) -> Answer:
        """Anthropic's error object."""
        code = 400 if isinstance(error, InvalidBody) else status_of(error).code
        kind = ERROR_TYPES.get(code, "invalid_request_error" if code < 500 else "api_error")
        return error_answer({"type": "error", "error": {"type": kind, "message": str(error)}}, code, error)

    def invalid(self, mistakes: Mistakes) -> InvalidBody:
        """The list of mistakes."""
        return InvalidBody(shown_mistakes(mistakes.found))


class MessagesRender(ConversationRender):
    """`POST /v1/messages/render`: one object, with vLLM's errors."""

    def form(self, body: bytes) -> ChatCompletion:
        """See `JsonEndpoint`."""
        return _chat(validated(_validate_render, with_exact_integers(read_json(body), body), body))


def _validate_count(fields: Any, _n_bytes: int) -> Messages:
    try:
        return _COUNT.validate_python(fields)
    except ValidationError as error:
        raise Mistakes(mistakes_of(error)) from None


def _validate_render(fields: Any, _n_bytes: int) -> MessagesWithLimit:
    try:
        return _RENDER.validate_python(fields)
    except ValidationError as error:
        raise Mistakes(mistakes_of(error)) from None


def _chat(form: Messages) -> ChatCompletion:
    """The same request as a chat completion."""
    fields = {name: getattr(form, name) for name in _SAME if getattr(form, name, None) is not None}
    fields["messages"] = [*_system(form), *_messages(form.messages)]
    if isinstance(form, MessagesWithLimit):
        fields |= {"max_tokens": form.max_tokens, "max_completion_tokens": form.max_tokens, "stop": form.stop_sequences}
        if form.stream:
            fields["stream_options"] = {"include_usage": True, "continuous_usage_stats": True}
    if form.tools is not None:
        fields["tools"] = [_tool(tool) for tool in form.tools]
    fields["chat_template_kwargs"] = _variables(form)
    effort = (form.output_config or {}).get("effort")
    if isinstance(effort, str):
        fields["reasoning_effort"] = effort
    return chat_completion(fields)


def _variables(form: Messages) -> dict[str, Any] | None:
    """Variables of the template: switching thinking on or off, unless the request does so by name."""
    kind = (form.thinking or {}).get("type")
    switch = {} if kind is None else {"enable_thinking": kind != "disabled"}
    return {**switch, **(form.chat_template_kwargs or {})} or None


def _system(form: Messages) -> Iterator[dict[str, Any]]:
    """All system texts as one message in front, without the line that changes with each request."""
    sources = [form.system or "", *(message.content for message in form.messages if message.role == "system")]
    texts: list[str] = []
    for source in sources:
        if isinstance(source, str):
            texts.append(source)
        else:
            found = [block.text for block in source if block.type == "text" and block.text]
            texts += [text for text in found if not text.startswith(ATTRIBUTION_HEADER)]
    if any(texts):
        yield {"role": "system", "content": "".join(texts)}


def _messages(messages: list[AnthropicMessage]) -> Iterator[dict[str, Any]]:
    for message in messages:
        if message.role == "system":
            continue
        if isinstance(message.content, str):
            yield {"role": message.role, "content": message.content}
            continue
        if message.role == "user":
            for block in message.content:
                if block.type == "tool_result":
                    yield from _tool_result(block)
        said = _said(message)
        if said or message.role != "user":
            yield {"role": message.role, **said}


def _said(message: AnthropicMessage) -> dict[str, Any]:
    """What the blocks of a message say, results of tools aside."""
    assert isinstance(message.content, list)
    parts = [part for block in message.content if (part := _part(block, message.role)) is not None]
    calls = [_call(block) for block in message.content if block.type == "tool_use"]
    reasoning = [block.thinking for block in message.content if block.type == "thinking" and block.thinking is not None]
    said: dict[str, Any] = {}
    if reasoning:
        said["reasoning"] = "".join(reasoning)
    if calls:
        said["tool_calls"] = calls
    if parts:
        is_text = len(parts) == 1 and parts[0]["type"] == "text"
        said["content"] = parts[0]["text"] if is_text else parts
    return said


def _part(block: Block, role: str) -> dict[str, Any] | None:
    if block.type == "text" and block.text:
        return {"type": "text", "text": block.text}
    if block.type == "tool_result" and role == "assistant":
        return {"type": "text", "text": f"Tool result: {_result_text(block)}"}
    if block.type in ("image", "document"):
        # Refused where content is read, like every image.
        return {"type": "image_url", "image_url": {"url": ""}}
    return None


def _call(block: Block) -> dict[str, Any]:
    arguments = json.dumps(block.input or {})
    return {"id": block.id or "", "type": "function", "function": {"name": block.name or "", "arguments": arguments}}


def _tool_result(block: Block) -> Iterator[dict[str, Any]]:
    """A result as a message of its own; what it refers to follows it."""
    answer = {"role": "tool", "tool_call_id": block.tool_use_id or ""}
    yield {**answer, "content": _result_text(block)}
    items = block.content if isinstance(block.content, list) else []
    if any(item.get("type") in ("image", "document") for item in items):
        yield {"role": "user", "content": [{"type": "image_url", "image_url": {"url": ""}}]}
    names = [item.get("tool_name") or item.get("name") for item in items if item.get("type") == "tool_reference"]
    if references := [{"type": "tool_reference", "name": name} for name in names if name]:
        yield {**answer, "content": references}


def _result_text(block: Block) -> str:
    if not isinstance(block.content, list):
        return block.content or ""
    return "\n".join(str(item.get("text", "")) for item in block.content if item.get("type") == "text")


def _tool(tool: AnthropicTool) -> dict[str, Any]:
    # As vLLM completes it.
    schema = tool.input_schema if "type" in tool.input_schema else {**tool.input_schema, "type": "object"}
    function = {"name": tool.name, "description": tool.description, "parameters": schema}
    return {"type": "function", "function": {**function, "defer_loading": tool.defer_loading}}
