"""From a conversation to its prompt, as vLLM does it.

Only fields that vLLM knows reach the template. Content becomes text, its parts joined by line breaks, or a list of
parts when the template loops over content.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from service.chat import ChatTemplate, Message, request_template, with_str
from service.chat_text import Utf8Text, joined
from service.errors import ChatTemplateError
from service.registry import Model

TEXT_FIELDS = {
    "text": "text",
    "input_text": "text",
    "output_text": "text",
    "refusal": "refusal",
    "thinking": "thinking",
}
"""The field that holds the text of a content part, by the part's type."""

MEDIA_FIELDS = frozenset(
    {
        "image_url", "input_image", "image_pil", "image_embeds", "audio_url", "input_audio", "audio_embeds",
        "video_url", "video_embeds", "prompt_embeds",
    }
)  # fmt: skip
"""Types of parts that are no text, and the fields that mark such a part when it has no type."""

KNOWN_PART_FIELDS = MEDIA_FIELDS | {
    "type", "text", "refusal", "thinking", "uuid", "detail", "name", "file", "data", "closed",
}  # fmt: skip
"""Fields of a part that vLLM interprets; others are handed to templates that take parts."""

ATTRIBUTION_HEADER = "x-anthropic-billing-header"
"""vLLM drops a first line that starts so from system text: it changes on each request and would spoil prefix caches."""

TEMPLATE_IN_REQUEST = (
    "Chat template is passed with request, but --trust-request-chat-template is not set. "
    "Refused request with untrusted chat template."
)
NO_CHAT_TEMPLATE = (
    "As of transformers v4.44, default chat template is no longer allowed, so you must provide a chat template if the "
    "tokenizer does not define one."
)
TEXT_ONLY = "This service takes text only; the message has a content part of another kind."


@dataclass(slots=True)
class Conversation:
    """What is rendered. `tools` are objects as templates see them; those among `variables` win."""

    messages: Sequence[Mapping[str, Any]]
    tools: list[Any] | None = None
    variables: dict[str, Any] = field(default_factory=dict)
    documents: list[Any] | None = None
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    chat_template: str | None = None
    """The request's own template."""


def render(conversation: Conversation, model: Model, trust_templates: bool) -> str:
    """The prompt of a conversation. Raises `ChatTemplateError`."""
    template = _template(conversation, model, trust_templates)
    tools = _tools(conversation)
    return template.render(
        template_messages(conversation.messages, template, tools),
        tools=tools,
        documents=conversation.documents,
        add_generation_prompt=conversation.add_generation_prompt,
        continue_final_message=conversation.continue_final_message,
        variables=conversation.variables,
    )


def render_utf8(conversation: Conversation, model: Model, trust_templates: bool) -> bytes | str:
    """`render` of messages that have `Utf8Text` in them: the same prompt, as UTF-8 where that can be."""
    if conversation.continue_final_message:
        messages = [with_str({**message}) for message in conversation.messages]
        return render(replace(conversation, messages=messages), model, trust_templates)
    template = _template(conversation, model, trust_templates)
    tools = _tools(conversation)
    return template.render_utf8(
        template_messages(conversation.messages, template, tools),
        tools=tools,
        documents=conversation.documents,
        add_generation_prompt=conversation.add_generation_prompt,
        variables=conversation.variables,
    )


def _template(conversation: Conversation, model: Model, trust_templates: bool) -> ChatTemplate:
    """The request's template, where it may have one, else the model's."""
    given = conversation.chat_template
    if given is None:
        given = conversation.variables.get("chat_template")
    if given is not None and not trust_templates:
        raise ChatTemplateError(TEMPLATE_IN_REQUEST)
    if isinstance(given, str):
        return request_template(given, model.special_tokens)
    if model.chat_template is None:
        raise ChatTemplateError(model.error or NO_CHAT_TEMPLATE)
    return model.chat_template


def _tools(conversation: Conversation) -> list[Any] | None:
    tools = conversation.variables.get("tools")
    if tools is None:
        return conversation.tools
    if not isinstance(tools, list) or not all(isinstance(tool, dict) for tool in tools):
        raise ChatTemplateError("The tools among chat_template_kwargs are a list of objects.")
    return tools


def template_messages(
    messages: Sequence[Mapping[str, Any]], template: ChatTemplate, tools: Sequence[Any] | None
) -> list[Message]:
    """The conversation as `template` sees it. Raises `ChatTemplateError` for what cannot be text."""
    wants_parts = template.wants_parts(tools)
    conversation = [_message(message, wants_parts) for message in messages]
    if any(message["role"] == "developer" for message in conversation) and not template.knows_role("developer", tools):
        conversation = _one_system_message([_as_system(message) for message in conversation])
    return conversation


def _message(message: Mapping[str, Any], wants_parts: bool) -> Message:
    role = message["role"]
    result: Message = {"role": role, "content": _content(role, message.get("content"), wants_parts)}
    if len(message) == 2 and "content" in message and role != "developer":
        return result
    if role == "assistant":
        result |= _assistant_fields(message)
    elif role == "tool" and "tool_call_id" in message:
        result["tool_call_id"] = message["tool_call_id"]
    for name in ("name", "task"):
        if isinstance(message.get(name), str):
            result[name] = message[name]
    if role == "developer":
        result["tools"] = message.get("tools")
    return result


def _assistant_fields(message: Mapping[str, Any]) -> Message:
    fields: Message = {}
    if message.get("tool_calls"):
        fields["tool_calls"] = [_tool_call(call) for call in message["tool_calls"]]
    if (reasoning := message.get("reasoning")) is not None:
        fields |= {"reasoning": reasoning, "reasoning_content": reasoning}
    return fields


def _content(role: str, content: Any, wants_parts: bool) -> str | Utf8Text | list[Message]:
    is_text = isinstance(content, str | Utf8Text)
    if is_text and not wants_parts:
        return content if role != "system" else _without_attribution(content) or ""
    parts: list[Any] = [content] if is_text else content or []
    if role == "system":
        parts = [kept for part in parts if (kept := _without_attribution(part)) is not None]
    read = [result for part in parts if (result := _part(part)) is not None]
    texts = [part["text"] if part["type"] == "text" else part["name"] for part in read]
    if not wants_parts:
        return joined([*filter(None, texts)], "\n")
    # Most templates that take parts still want the result of a tool as text.
    return joined(texts, "\n") if role == "tool" and all(part["type"] == "text" for part in read) else read


def _part(part: Any) -> Message | None:
    """One part as `{"type": "text", "text": ...}` and what else it carries; None for a part that is left out."""
    if isinstance(part, str | Utf8Text):
        return {"type": "text", "text": part}
    if not isinstance(part, dict):
        raise ChatTemplateError("A content part is text or an object with a type.")
    kind = part.get("type")
    if kind is not None and not isinstance(kind, str):
        raise ChatTemplateError("The type of a content part is text.")
    if kind in MEDIA_FIELDS or (kind is None and not MEDIA_FIELDS.isdisjoint(part)):
        raise ChatTemplateError(TEXT_ONLY)
    if kind == "tool_reference" and isinstance(part.get("name"), str):
        return {"type": "tool_reference", "name": part["name"]}
    field = TEXT_FIELDS.get(kind) if kind else None
    if field is None:
        raise ChatTemplateError(f"A content part has no supported type; supported are {', '.join(TEXT_FIELDS)}.")
    text = part.get(field)
    if text is None and field != "thinking":
        return None
    if not isinstance(text, str | Utf8Text):
        raise ChatTemplateError(f"A content part has no text in its field `{field}`.")
    return {"type": "text", "text": text, **{key: value for key, value in part.items() if key not in KNOWN_PART_FIELDS}}


def _without_attribution(part: Any) -> Any:
    is_text_part = isinstance(part, dict) and part.get("type") == "text"
    text = part.get("text") if is_text_part else part
    if not isinstance(text, str) or not text.startswith(ATTRIBUTION_HEADER):
        return part
    rest = text.partition("\n")[2]
    if not rest:
        return None
    return {**part, "text": rest} if is_text_part else rest


def _tool_call(call: Any) -> Message:
    """One call with its arguments as an object, fields in the order in which vLLM hands them on."""
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict) or call.get("type", "function") != "function":
        raise ChatTemplateError("Entries of an assistant's tool_calls are objects of type function.")
    inner = {"arguments": _arguments(function.get("arguments")), **_ordered(function, "name", without="arguments")}
    outer = {**_ordered(call, "id", without="type"), "function": inner}
    kind = {"type": call["type"]} if "type" in call else {}
    first: Message = {key: outer.pop(key) for key in ("id", "function") if key in outer}
    return {**first, **kind, **outer}


def _ordered(fields: Mapping[str, Any], first: str, without: str) -> Message:
    head: Message = {first: fields[first]} if first in fields else {}
    return head | {key: value for key, value in fields.items() if key != without}


def _arguments(value: Any) -> Message:
    """Arguments as an object. What is none becomes an empty one: a bad past call must not block a conversation."""
    if isinstance(value, str) and value:
        try:
            value = json.loads(value)
        except (ValueError, RecursionError):
            return {}
    return value if isinstance(value, dict) else {}


def _as_system(message: Message) -> Message:
    if message["role"] != "developer":
        return message
    return {**{key: value for key, value in message.items() if key != "tools"}, "role": "system"}


def _one_system_message(conversation: list[Message]) -> list[Message]:
    """All system messages as one at the start, unless the only one is there already."""
    if not any(message["role"] == "system" for message in conversation[1:]):
        return conversation
    texts = [text for message in conversation if message["role"] == "system" and (text := _text_of(message["content"]))]
    others = [message for message in conversation if message["role"] != "system"]
    return [{"role": "system", "content": "\n\n".join(texts)}, *others]


def _text_of(content: str | list[Message]) -> str:
    return content if isinstance(content, str) else "\n".join(part["text"] for part in content if "text" in part)
