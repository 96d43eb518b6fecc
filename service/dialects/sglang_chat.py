"""From a chat request to the text that is encoded, as SGLang does it for a text-only model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import orjson

from service.chat import ChatTemplate
from service.chat import Message as TemplateMessage
from service.dialects.sglang_schema import Message, Tokenize, Tool, ToolCall
from service.errors import ChatTemplateError

ROLES = ("system", "assistant", "tool", "function", "developer", "latest_reminder", "root")
"""Roles in any case of letters; `user` is known in lower case only."""

FUNCTION_FIELDS = ("description", "name", "parameters", "strict", "defer_loading")

MEDIA_TYPES = frozenset({"image_url", "video_url", "audio_url", "input_audio"})

TEMPLATE_IN_REQUEST = (
    "Request-supplied chat_template is not allowed. Start the server with --trust-request-chat-template to permit it."
)
NEEDS_GENERATION_PROMPT = "continue_final_message needs add_generation_prompt to open the assistant turn."


def render(form: Tokenize, template: ChatTemplate) -> tuple[str, str]:
    """The prompt of a conversation, and the start of an assistant's message that follows it but is encoded apart.

    The latter is mostly empty. Raises `ChatTemplateError`.
    """
    _check(form)
    tools = _tools(form)
    wants_parts = template.wants_media_parts(tools)
    messages = [_message(message, wants_parts) for message in form.messages or ()]
    prefix = ""
    if form.add_generation_prompt is None or form.continue_final_message:
        messages, prefix = _final_assistant(messages, form.continue_final_message)
    try:
        return _run(form, template, messages, tools), prefix
    except ChatTemplateError:
        if tools is None:
            raise
        # Some templates expect tools without the wrapper around the function.
        return _run(form, template, messages, [tool["function"] for tool in tools]), prefix


def _run(form: Tokenize, template: ChatTemplate, messages: list[TemplateMessage], tools: Sequence[Any] | None) -> str:
    return template.render(
        messages,
        tools=tools,
        add_generation_prompt=form.add_generation_prompt is not False,
        variables=_variables(form),
    )


def _check(form: Tokenize) -> None:
    if not form.messages:
        raise ChatTemplateError("Messages cannot be empty.")
    if form.chat_template_kwargs and "chat_template" in form.chat_template_kwargs:
        raise ChatTemplateError(TEMPLATE_IN_REQUEST)
    if form.add_generation_prompt is False and form.continue_final_message:
        raise ChatTemplateError(NEEDS_GENERATION_PROMPT)


def _variables(form: Tokenize) -> dict[str, Any]:
    """Variables of the template. An effort also switches thinking, under both names that templates know."""
    variables: dict[str, Any] = {}
    if form.reasoning_effort is not None:
        thinking = form.reasoning_effort != "none"
        variables = {"reasoning_effort": form.reasoning_effort, "thinking": thinking, "enable_thinking": thinking}
    return variables | (form.chat_template_kwargs or {})


def _tools(form: Tokenize) -> list[dict[str, Any]] | None:
    if not form.tools:
        if form.tool_choice == "required" or isinstance(form.tool_choice, dict):
            raise ChatTemplateError("Tools cannot be empty if tool choice is set to required or to a specific tool.")
        return None
    if form.tool_choice == "none":
        return None
    tools = [_tool(tool) for tool in form.tools]
    if isinstance(form.tool_choice, dict):
        chosen = form.tool_choice.get("function")
        name = chosen.get("name") if isinstance(chosen, dict) else None
        tools = [tool for tool in tools if tool["function"]["name"] == name]
        if not tools:
            raise ChatTemplateError("The tool that tool_choice names is not in the tools list.")
    return tools


def _tool(tool: Tool) -> dict[str, Any]:
    """The tool as templates see it: its function has known fields in the caller's order, two of them always."""
    function = dict(tool.function)
    if not isinstance(function.get("name"), str):
        raise ChatTemplateError("The function of a tool has no name.")
    for name in ("description", "parameters"):
        function.setdefault(name, None)
    if function.get("defer_loading") is None:
        function["defer_loading"] = tool.defer_loading
    known = {key: value for key, value in function.items() if key in FUNCTION_FIELDS}
    shown = {key: value for key, value in known.items() if value is not None or key in ("description", "parameters")}
    return {"type": tool.type, "function": shown, "defer_loading": tool.defer_loading}


def _message(message: Message, wants_parts: bool) -> TemplateMessage:
    role = message.role if message.role == "user" else message.role.lower()
    if role != "user" and role not in ROLES:
        raise ChatTemplateError(f"'role' must be one of {', '.join(map(repr, ROLES))} (case-insensitive), or 'user'.")
    content = _content(role, message.content, wants_parts)
    if role == "user":
        return {"role": role, "content": content}
    fields = message.model_dump(exclude_none=True, exclude={"role", "content", "tool_calls"})
    result: TemplateMessage = {"role": role, "content": content, **fields}
    if message.tool_calls is not None:
        result["tool_calls"] = [_tool_call(role, call) for call in message.tool_calls]
    if wants_parts and isinstance(message.content, list):
        # The order of the keys shows in templates that print a whole message.
        result["content"] = result.pop("content")
    return result


def _content(role: str, content: str | list[dict[str, Any]] | None, wants_parts: bool) -> str | list[dict[str, Any]]:
    if content is None or isinstance(content, str):
        return content or ""
    parts = [part for raw in content if (part := _part(raw)) is not None]
    if wants_parts and not (role == "tool" and all(part["type"] == "text" for part in parts)):
        return parts
    return " ".join(part["text"] for part in parts if part["type"] == "text")


def _part(part: dict[str, Any]) -> dict[str, Any] | None:
    """A text part or a reference to a tool; None for thinking, which SGLang leaves out."""
    kind = part.get("type")
    if isinstance(kind, str) and kind in MEDIA_TYPES:
        raise ChatTemplateError(f"Model only supports text input; received unsupported content type '{kind}'.")
    if kind in ("text", "input_text") and isinstance(part.get("text"), str):
        return {"type": "text", "text": part["text"]}
    if kind == "tool_reference" and isinstance(part.get("name"), str):
        return {"type": kind, "name": part["name"]}
    if kind in ("thinking", "reasoning"):
        return None
    raise ChatTemplateError("A content part is text: an object of type text with a field text.")


def _tool_call(role: str, call: ToolCall) -> dict[str, Any]:
    fields = call.model_dump()
    arguments = call.function.arguments
    if role == "assistant" and isinstance(arguments, str):
        try:
            fields["function"]["arguments"] = parsed = orjson.loads(arguments)
        except orjson.JSONDecodeError:
            raise ChatTemplateError("Assistant tool call function.arguments must be valid JSON.") from None
        if not isinstance(parsed, dict):
            raise ChatTemplateError("Assistant tool call function.arguments must be a JSON object.")
    return fields


def _final_assistant(messages: list[TemplateMessage], is_continued: bool) -> tuple[list[TemplateMessage], str]:
    """SGLang's way with an assistant's message at the end: encoded apart to be continued, else said by the user."""
    last = messages[-1]
    if last["role"] != "assistant" or not isinstance(last["content"], str):
        return messages, ""
    if is_continued:
        return messages[:-1], last["content"]
    return [*messages[:-1], {"role": "user", "content": last["content"]}], ""
