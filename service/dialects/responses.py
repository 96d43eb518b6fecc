"""OpenAI's Responses as a chat completion: counted exactly, or rendered as vLLM renders them.

Source: OpenAI's published request shape, and vLLM's conversion (`vllm/entrypoints/openai/responses/utils.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

from pydantic import Field, TypeAdapter, ValidationError

from dispatcher.request import EncodeRequest, Request, Result
from gpu_core.errors import SidetokError
from service.block_hashes import FIELDS
from service.dialects.body import Mistakes, error_answer, read_json, validated, with_exact_integers
from service.dialects.chat_count import count_request, n_tokens
from service.dialects.json_endpoint import JsonEndpoint
from service.dialects.vllm_errors import invalid_field
from service.dialects.vllm_render import ConversationRender
from service.dialects.vllm_render_schema import ChatCompletion, chat_completion
from service.dialects.vllm_schema import Lenient, mistakes_of
from service.endpoint import Answer, Head
from service.errors import InvalidBody, InvalidField, status_of

UNFINISHED = ("in_progress", "incomplete")
"""States of an assistant's message that is to be continued."""
JSON_FORMATS = ("json_object", "json_schema")
"""Of an answer's text, where its form is the engine's business."""


class Responses(Lenient):
    """What both endpoints read."""

    model: str | None = None
    input: str | Annotated[list[dict[str, Any]], Field(fail_fast=True)] | None = None
    instructions: str | None = None
    tools: Annotated[list[dict[str, Any]], Field(fail_fast=True)] | None = None
    tool_choice: str | dict[str, Any] | None = None
    reasoning: dict[str, Any] | None = None
    text: dict[str, Any] | None = None
    include: list[str] | None = None
    previous_response_id: str | None = None
    conversation: str | dict[str, Any] | None = None
    prompt: dict[str, Any] | None = None
    max_output_tokens: int | None = None
    truncation: str | None = "disabled"
    top_logprobs: int | None = 0


_ADAPTER: TypeAdapter[Responses] = TypeAdapter(Responses)

_SAME = (
    "model", "temperature", "top_p", "top_k", "min_p", "presence_penalty", "frequency_penalty", "repetition_penalty",
    "seed", "stop", "stop_token_ids", "ignore_eos", "logit_bias", "stream", "skip_special_tokens", "watermarking",
    "include_stop_str_in_output", "structured_outputs", "vllm_xargs", "cache_salt", "priority", "chat_template_kwargs",
    "kv_transfer_params", "ec_transfer_params", *FIELDS,
)  # fmt: skip
"""Fields that a chat completion has under the same name."""


class InputTokens(JsonEndpoint[ChatCompletion]):
    """`POST /v1/responses/input_tokens`."""

    def form(self, body: bytes) -> ChatCompletion:
        """See `JsonEndpoint`."""
        return _chat(validated(_validate, with_exact_integers(read_json(body), body), body))

    def request(self, head: Head, form: ChatCompletion, n_bytes: int) -> EncodeRequest:
        """See `JsonEndpoint`."""
        return count_request(self.registry.resolve(form.model), form, head, n_bytes)

    def write(self, head: Head, request: Request, result: Result) -> Answer:
        """See `service.endpoint.Endpoint`."""
        return Answer(b'{"object":"response.input_tokens","input_tokens":%d}' % n_tokens(result))

    def fail(self, head: Head, error: SidetokError) -> Answer:
        """OpenAI's error object."""
        return fail(error)


class ResponsesRender(ConversationRender):
    """`POST /v1/responses/render`: one object, with vLLM's errors."""

    def form(self, body: bytes) -> ChatCompletion:
        """See `JsonEndpoint`."""
        fields = with_exact_integers(read_json(body), body)
        form = validated(_validate, fields, body)
        if form.input is None:
            raise Mistakes([{"type": "missing", "loc": ("body", "input"), "msg": "Field required", "input": fields}])
        return _chat(form)


def fail(error: SidetokError) -> Answer:
    """OpenAI's error object: `{"error": {message, type, param, code}}`."""
    code = 400 if isinstance(error, InvalidBody) else status_of(error).code
    kind = "invalid_request_error" if code < 500 and code != 429 else status_of(error).type
    param = error.param if isinstance(error, InvalidBody | InvalidField) else None
    return error_answer({"error": {"message": str(error), "type": kind, "param": param, "code": code}}, code, error)


def _validate(fields: Any, _n_bytes: int) -> Responses:
    try:
        return _ADAPTER.validate_python(fields)
    except ValidationError as error:
        raise Mistakes(mistakes_of(error)) from None


def _chat(form: Responses) -> ChatCompletion:
    """The same request as a chat completion. Raises `InvalidField` for what only a server with a store can know."""
    for name in ("previous_response_id", "conversation", "prompt"):
        if getattr(form, name) is not None:
            raise invalid_field(f"{name} is not supported: nothing is stored here; send the conversation.", name)
    extra = form.model_extra or {}
    fields = {name: extra[name] for name in _SAME if extra.get(name) is not None}
    fields |= {"model": form.model, "messages": _conversation(form)}
    fields |= {"max_tokens": form.max_output_tokens, "max_completion_tokens": form.max_output_tokens}
    is_continued = _is_unfinished(form.input)
    fields |= {"add_generation_prompt": not is_continued, "continue_final_message": is_continued}
    if form.tools:
        fields["tools"] = [tool for given in form.tools for tool in _tools(given)]
    if isinstance(effort := (form.reasoning or {}).get("effort"), str):
        fields["chat_template_kwargs"] = {**fields.get("chat_template_kwargs", {}), "reasoning_effort": effort}
    if form.truncation not in (None, "disabled"):
        fields["truncate_prompt_tokens"] = -1
    if "message.output_text.logprobs" in (form.include or ()):
        fields |= {"logprobs": True, "top_logprobs": form.top_logprobs}
    if isinstance(wanted := (form.text or {}).get("format"), dict) and wanted.get("type") in JSON_FORMATS:
        fields["response_format"] = {"type": wanted["type"], "json_schema": {"schema": wanted.get("schema")}}
    return chat_completion(fields)


def _tools(tool: dict[str, Any]) -> Sequence[dict[str, Any]]:
    """The functions of a tool; those that the vendor runs itself have no place in a prompt."""
    if tool.get("type") == "function":
        return [{"type": "function", "function": {key: value for key, value in tool.items() if key != "type"}}]
    return ()


def _is_unfinished(given: str | list[dict[str, Any]] | None) -> bool:
    if not isinstance(given, list) or not given:
        return False
    last = given[-1]
    return last.get("type", "message") in ("message", "reasoning") and last.get("status") in UNFINISHED


def _conversation(form: Responses) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = []
    if form.instructions:
        messages.append({"role": "system", "content": form.instructions})
    if isinstance(form.input, str):
        messages.append({"role": "user", "content": form.input})
    for item in form.input if isinstance(form.input, list) else ():
        _add(messages, item)
    return messages


def _add(messages: list[dict[str, Any]], item: dict[str, Any]) -> None:
    """Append an item, or join it to the assistant's message that it belongs to."""
    kind = item.get("type", "message")
    if kind == "function_call_output":
        messages.append({"role": "tool", "content": _output(item), "tool_call_id": item.get("call_id")})
    elif kind == "function_call":
        function = {"name": item.get("name"), "arguments": item.get("arguments")}
        call = {"id": item.get("call_id"), "function": function, "type": "function"}
        said = _last_assistant(messages)
        said["tool_calls"] = [*(said.get("tool_calls") or ()), call]
    elif kind == "reasoning":
        if item.get("encrypted_content"):
            raise invalid_field("Encrypted content is not supported.", "input")
        said = _last_assistant(messages, "reasoning")
        said["reasoning"] = _first_text(item.get("content") or item.get("summary"))
    elif kind != "message":
        raise invalid_field("An item of input is of a type that has no place in a prompt of text.", "input")
    elif item.get("role") == "assistant":
        said = _last_assistant(messages, "content")
        said["content"] = _first_text(item.get("content"))
    else:
        messages.append({key: value for key, value in item.items() if key not in ("type", "status", "id")})


def _last_assistant(messages: list[dict[str, Any]], without: str = "") -> dict[str, Any]:
    """The assistant's message at the end, if it has no field `without` yet; else a new one."""
    if messages and messages[-1].get("role") == "assistant" and messages[-1].get(without) is None:
        return messages[-1]
    messages.append({"role": "assistant"})
    return messages[-1]


def _first_text(content: Any) -> str:
    first = content[0] if isinstance(content, list) and content else content
    text = first.get("text", first.get("refusal")) if isinstance(first, dict) else first
    return text if isinstance(text, str) else ""


def _output(item: dict[str, Any]) -> Any:
    output = item.get("output")
    return output if isinstance(output, str | list) else ""
