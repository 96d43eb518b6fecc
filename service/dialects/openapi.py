"""Schemas of the dialects; `/tokenize` and `/detokenize` have one branch for each form and dialect."""

from __future__ import annotations

from typing import Any

from service.dialects.openapi_render import RENDER_OPERATIONS

Schema = dict[str, Any]

_TEXT: Schema = {"type": "string"}
_TEXTS: Schema = {"type": "array", "items": _TEXT}
_INTEGER: Schema = {"type": "integer"}
_IDS: Schema = {"type": "array", "items": {"type": "integer", "minimum": 0}}
_OBJECT: Schema = {"type": "object", "additionalProperties": True}
_OBJECTS: Schema = {"type": "array", "items": _OBJECT}


def _or_null(schema: Schema) -> Schema:
    return {"anyOf": [schema, {"type": "null"}], "default": None}


def _flag(default: bool) -> Schema:
    return {"type": "boolean", "default": default}


def _form(title: str, required: list[str], properties: Schema) -> Schema:
    return {
        "type": "object",
        "title": title,
        "required": required,
        "properties": properties,
        "additionalProperties": True,
    }


_MESSAGES: Schema = {
    "type": "array",
    "items": {"type": "object", "required": ["role"], "properties": {"role": _TEXT}, "additionalProperties": True},
}

_VLLM_PROMPT = _form(
    "vLLM, prompt",
    ["prompt"],
    {
        "model": _or_null(_TEXT),
        "prompt": _TEXT,
        "add_special_tokens": _flag(True),
        "return_token_strs": _flag(False),
    },
)
_VLLM_CHAT = _form(
    "vLLM, conversation",
    ["messages"],
    {
        "model": _or_null(_TEXT),
        "messages": _MESSAGES,
        "add_generation_prompt": _flag(True),
        "continue_final_message": _flag(False),
        "add_special_tokens": _flag(False),
        "return_token_strs": _flag(False),
        "tools": _or_null(_OBJECTS),
        "chat_template_kwargs": _or_null(_OBJECT),
    },
)
_SGLANG_PROMPT = _form(
    "SGLang, prompt or prompts",
    ["prompt"],
    {
        "model": {**_TEXT, "default": "default"},
        "prompt": {"anyOf": [_TEXT, _TEXTS]},
        "add_special_tokens": _flag(True),
    },
)
_SGLANG_CHAT = _form(
    "SGLang, conversation",
    ["messages"],
    {
        "model": {**_TEXT, "default": "default"},
        "messages": _MESSAGES,
        "tools": _or_null(_OBJECTS),
        "tool_choice": _or_null({"anyOf": [{"enum": ["auto", "required", "none"]}, _OBJECT]}),
        "reasoning_effort": _or_null({"anyOf": [_TEXT, {"type": "number"}]}),
        "continue_final_message": _flag(False),
        "chat_template_kwargs": _or_null(_OBJECT),
        "add_special_tokens": _flag(True),
        "add_generation_prompt": _or_null({"type": "boolean"}),
    },
)
_VLLM_IDS = _form(
    "vLLM",
    ["count", "max_model_len", "tokens", "token_strs"],
    {"count": _INTEGER, "max_model_len": _INTEGER, "tokens": _IDS, "token_strs": {"anyOf": [_TEXTS, {"type": "null"}]}},
)
_SGLANG_IDS = _form(
    "SGLang",
    ["tokens", "count", "max_model_len"],
    {
        "tokens": {"anyOf": [_IDS, {"type": "array", "items": _IDS}]},
        "count": {"anyOf": [_INTEGER, {"type": "array", "items": _INTEGER}]},
        "max_model_len": _INTEGER,
    },
)
_VLLM_DETOKENIZE = _form("vLLM", ["tokens"], {"model": _or_null(_TEXT), "tokens": _IDS})
_SGLANG_DETOKENIZE = _form(
    "SGLang",
    ["tokens"],
    {
        "model": {**_TEXT, "default": "default"},
        "tokens": {"anyOf": [_IDS, {"type": "array", "items": _IDS}]},
        "skip_special_tokens": _flag(True),
    },
)
_VLLM_TEXT = _form("vLLM", ["prompt"], {"prompt": _TEXT})
_SGLANG_TEXT = _form("SGLang", ["text"], {"text": {"anyOf": [_TEXT, _TEXTS]}})

_LLAMACPP_TEXT = _form(
    "llama.cpp",
    [],
    {
        "content": {"anyOf": [_TEXT, {"type": "array", "items": {"anyOf": [_TEXT, _INTEGER]}}]},
        "add_special": _flag(False),
        "parse_special": _flag(True),
        "with_pieces": _flag(False),
    },
)
_LLAMACPP_IDS = _form("llama.cpp", ["tokens"], {"tokens": {"anyOf": [_IDS, _OBJECTS]}})
_LLAMACPP_DETOKENIZE = _form("llama.cpp", [], {"tokens": _IDS})
_LLAMACPP_CONTENT = _form("llama.cpp", ["content"], {"content": _TEXT})
_TEI_TEXT = _form(
    "Text Embeddings Inference",
    ["inputs"],
    {"inputs": {"anyOf": [_TEXT, _TEXTS]}, "add_special_tokens": _flag(True)},
)
_TEI_TOKENS: Schema = {"type": "array", "items": _OBJECTS}

_TOKENIZE = (
    "Text or chat to ids, as the server of the dialect",
    {"anyOf": [_VLLM_PROMPT, _VLLM_CHAT, _SGLANG_PROMPT, _SGLANG_CHAT, _LLAMACPP_TEXT, _TEI_TEXT]},
    {"anyOf": [_VLLM_IDS, _SGLANG_IDS, _LLAMACPP_IDS, _TEI_TOKENS]},
)
_DETOKENIZE = (
    "Ids to text, as the server of the dialect",
    {"anyOf": [_VLLM_DETOKENIZE, _SGLANG_DETOKENIZE, _LLAMACPP_DETOKENIZE]},
    {"anyOf": [_VLLM_TEXT, _SGLANG_TEXT, _LLAMACPP_CONTENT]},
)

OPERATIONS: dict[str, tuple[str, Schema, Schema]] = {
    "/tokenize": _TOKENIZE,
    "/v1/tokenize": _TOKENIZE,
    "/detokenize": _DETOKENIZE,
    "/v1/detokenize": _DETOKENIZE,
    **RENDER_OPERATIONS,
}
"""Summary, request and answer of each path."""
