"""Request and answer schemas of rendering and counting: the fields that are read, others being ignored."""

from __future__ import annotations

from typing import Any

Schema = dict[str, Any]

_TEXT: Schema = {"type": "string"}
_INTEGER: Schema = {"type": "integer"}
_OBJECT: Schema = {"type": "object", "additionalProperties": True}
_OBJECTS: Schema = {"type": "array", "items": _OBJECT}
_IDS: Schema = {"type": "array", "items": {"type": "integer", "minimum": 0}}
_PAIRS: Schema = {
    "type": "array",
    "items": {"type": "array", "items": _INTEGER, "minItems": 2, "maxItems": 2},
}
_FLAG: Schema = {"type": "boolean"}


def _optional(*schemas: Schema) -> Schema:
    return {"anyOf": [*schemas, {"type": "null"}]}


def _object(title: str, required: list[str], properties: Schema) -> Schema:
    return {"type": "object", "title": title, "required": required, "properties": properties, **_OPEN}


_OPEN: Schema = {"additionalProperties": True}

_GENERATION: Schema = {
    "model": _optional(_TEXT),
    "truncate_prompt_tokens": _optional({"type": "integer", "minimum": -1}),
    "truncation_side": _optional({"type": "string", "enum": ["left", "right"]}),
    "return_token_offsets": _optional(_FLAG),
    "add_special_tokens": _FLAG,
    "cache_salt": _optional(_TEXT),
    "priority": _INTEGER,
    "max_tokens": _optional(_INTEGER),
    "stop": _optional(_TEXT, {"type": "array", "items": _TEXT}),
    "stream": _optional(_FLAG),
    "stream_options": _optional(_OBJECT),
}
_CHAT = _object(
    "Chat completion",
    ["messages"],
    {
        **_GENERATION,
        "messages": _OBJECTS,
        "tools": _optional(_OBJECTS),
        "documents": _optional(_OBJECTS),
        "add_generation_prompt": _FLAG,
        "continue_final_message": _FLAG,
        "chat_template": _optional(_TEXT),
        "chat_template_kwargs": _optional(_OBJECT),
        "reasoning_effort": _optional(_TEXT),
        "max_completion_tokens": _optional(_INTEGER),
    },
)
_COMPLETION = _object(
    "Completion",
    ["prompt"],
    {
        **_GENERATION,
        "prompt": {"anyOf": [_TEXT, {"type": "array", "items": _TEXT}, _IDS, {"type": "array", "items": _IDS}]},
    },
)
_MESSAGES = _object(
    "Anthropic messages",
    ["model", "messages"],
    {
        "model": _TEXT,
        "messages": _OBJECTS,
        "system": _optional(_TEXT, _OBJECTS),
        "tools": _optional(_OBJECTS),
        "thinking": _optional(_OBJECT),
        "max_tokens": _INTEGER,
        "chat_template_kwargs": _optional(_OBJECT),
    },
)
_RESPONSES = _object(
    "OpenAI responses",
    [],
    {
        "model": _optional(_TEXT),
        "input": _optional(_TEXT, _OBJECTS),
        "instructions": _optional(_TEXT),
        "tools": _optional(_OBJECTS),
        "reasoning": _optional(_OBJECT),
        "max_output_tokens": _optional(_INTEGER),
    },
)
_GENERATE = _object(
    "What an engine is given",
    ["request_id", "token_ids", "input_ids", "sampling_params"],
    {
        "request_id": _TEXT,
        "token_ids": _IDS,
        "input_ids": _IDS,
        "token_offsets": _optional(_PAIRS),
        "features": {"type": "null"},
        "sampling_params": _OBJECT,
        "model": _optional(_TEXT),
        "stream": _FLAG,
        "stream_options": _optional(_OBJECT),
        "cache_salt": _optional(_TEXT),
        "priority": _INTEGER,
    },
)

RENDER_OPERATIONS: dict[str, tuple[str, Schema, Schema]] = {
    "/v1/chat/completions/render": ("Chat completion to ids, as vLLM", _CHAT, _GENERATE),
    "/v1/completions/render": (
        "Completion to ids, one answer for each prompt, as vLLM",
        _COMPLETION,
        {"type": "array", "items": _GENERATE},
    ),
    "/v1/messages/render": ("Anthropic messages to ids, as vLLM", _MESSAGES, _GENERATE),
    "/v1/responses/render": ("OpenAI responses to ids, as vLLM", _RESPONSES, _GENERATE),
    "/v1/messages/count_tokens": (
        "Number of ids of Anthropic messages",
        _MESSAGES,
        _object("Count", ["input_tokens"], {"input_tokens": _INTEGER}),
    ),
    "/v1/chat/completions/input_tokens": (
        "Number of ids of a chat completion, as llama.cpp",
        _CHAT,
        _object("Count", ["object", "input_tokens"], {"object": _TEXT, "input_tokens": _INTEGER}),
    ),
    "/apply-template": (
        "Chat completion to its prompt, as llama.cpp",
        _CHAT,
        _object("Prompt", ["prompt"], {"prompt": _TEXT}),
    ),
    "/decode": (
        "Ids to texts, as Text Embeddings Inference",
        _object(
            "Ids",
            ["ids"],
            {"ids": {"anyOf": [_IDS, {"type": "array", "items": _IDS}]}, "skip_special_tokens": _FLAG},
        ),
        {"type": "array", "items": _TEXT},
    ),
    "/v1/responses/input_tokens": (
        "Number of ids of OpenAI responses",
        _RESPONSES,
        _object("Count", ["object", "input_tokens"], {"object": _TEXT, "input_tokens": _INTEGER}),
    ),
}
"""Summary, request and answer of each path."""
