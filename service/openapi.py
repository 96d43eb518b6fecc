"""OpenAPI fragments of the hot endpoints, which FastAPI's router never sees."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from service.dialects import OPERATIONS

Schema = dict[str, Any]

_TEXT: Schema = {"type": "string"}
_IDS: Schema = {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 4294967295}}
_PAIRS: Schema = {
    "type": "array",
    "items": {"type": "array", "items": {"type": "integer"}, "minItems": 2, "maxItems": 2},
}
_BINARY: Schema = {"type": "string", "format": "binary"}


def _one_or_many(schema: Schema) -> Schema:
    # Not oneOf: an empty list of ids is also an empty list of lists.
    return {"anyOf": [schema, {"type": "array", "items": schema}]}


def _optional(schema: Schema, **more: Any) -> Schema:
    return {"anyOf": [schema, {"type": "null"}], **more}


def _flag(default: bool, description: str) -> Schema:
    return {"type": "boolean", "default": default, "description": description}


_MODEL = _optional(_TEXT, description="Name or alias of a model; none = the default model.")

_ENCODE_REQUEST: Schema = {
    "type": "object",
    "required": ["text"],
    "additionalProperties": False,
    "properties": {
        "model": _MODEL,
        "text": _one_or_many(_TEXT),
        "add_special_tokens": _flag(True, "Run the tokenizer's post-processor (BOS, EOS, ...)."),
        "max_tokens": _optional({"type": "integer", "minimum": 0}, description="Keep at most this many ids."),
        "truncation_side": {"type": "string", "enum": ["left", "right"], "default": "right"},
        "route": {
            "type": "string",
            "enum": ["auto", "cpu", "gpu"],
            "default": "auto",
            "description": "Where to encode: on a CPU engine, on the GPU, or where the service thinks best.",
        },
        "return_char_offsets": _flag(False, "Start and end of each id, in characters."),
        "return_byte_offsets": _flag(False, "Start and end of each id, in bytes of the UTF-8."),
        "return_token_strings": _flag(False, "The token of each id, as the vocabulary spells it."),
        "return_special_tokens_mask": _flag(False, "1 for ids that the post-processor added."),
        "return_block_hashes": {
            "anyOf": [{"type": "boolean"}, {"type": "string", "enum": ["dynamo", "vllm", "llm-d"]}, {"type": "null"}],
            "description": "Hashes of blocks of ids, by the rule of a router or engine; true = Dynamo's.",
        },
        "block_size": _optional({"type": "integer", "minimum": 1, "maximum": 65536}, description="Ids of a block."),
        "lora_name": _optional(_TEXT, description="LoRA whose name enters the hashes."),
        "cache_salt": _optional(_TEXT, description="Salt that enters the hashes."),
        "hash_seed": _optional(_TEXT, description="PYTHONHASHSEED of vLLM, hashSeed of llm-d."),
    },
}
_ENCODE_ANSWER: Schema = {
    "type": "object",
    "required": ["model", "count", "ids"],
    "properties": {
        "model": _TEXT,
        "count": _one_or_many({"type": "integer"}),
        "ids": _one_or_many(_IDS),
        "truncated": _one_or_many({"type": "boolean"}),
        "char_offsets": _one_or_many(_PAIRS),
        "byte_offsets": _one_or_many(_PAIRS),
        "token_strings": _one_or_many({"type": "array", "items": _TEXT}),
        "special_tokens_mask": _one_or_many({"type": "array", "items": {"type": "integer"}}),
        "block_hashes": _one_or_many({"type": "array", "items": {"anyOf": [{"type": "integer"}, _TEXT]}}),
        "sequence_hashes": _one_or_many({"type": "array", "items": {"type": "integer"}}),
    },
}
_COUNT_ANSWER: Schema = {
    "type": "object",
    "required": ["model", "count"],
    "properties": {"model": _TEXT, "count": _one_or_many({"type": "integer"})},
}
_DECODE_REQUEST: Schema = {
    "type": "object",
    "required": ["ids"],
    "additionalProperties": False,
    "properties": {
        "model": _MODEL,
        "ids": _one_or_many(_IDS),
        "skip_special_tokens": _flag(True, "Leave special tokens out of the text."),
    },
}
_DECODE_ANSWER: Schema = {
    "type": "object",
    "required": ["model", "text"],
    "properties": {"model": _TEXT, "text": _one_or_many(_TEXT)},
}
_ERROR: Schema = {
    "type": "object",
    "properties": {
        "error": {
            "type": "object",
            "properties": {
                "message": _TEXT,
                "type": _TEXT,
                "param": _optional(_TEXT),
                "code": {"type": "integer"},
            },
        }
    },
}
_ERRORS = {
    "400": "The body, a field or the text is wrong.",
    "404": "No such model.",
    "413": "The body is over the limit.",
    "415": "The content type is not one of ours.",
    "429": "Too much in flight; see Retry-After.",
    "503": "The model is not loaded yet, or the GPU route was asked for and is not ready; see Retry-After.",
    "504": "The deadline passed.",
}


def _operation(summary: str, request: Schema, answer: Schema, binary: Iterable[str] = ()) -> Schema:
    """One POST operation; `binary` names the media types beside JSON."""

    def content(schema: Schema) -> Schema:
        return {"application/json": {"schema": schema}, **{kind: {"schema": _BINARY} for kind in binary}}

    errors = {
        code: {"description": text, "content": {"application/json": {"schema": _ERROR}}}
        for code, text in _ERRORS.items()
    }
    return {
        "post": {
            "summary": summary,
            "tags": ["tokens"],
            "requestBody": {"required": True, "content": content(request)},
            "responses": {"200": {"description": "Done.", "content": content(answer)}, **errors},
        }
    }


_BOTH = ("application/msgpack", "application/octet-stream")
_OPERATIONS: dict[str, Schema] = {
    "/v1/encode": _operation("Text to ids", _ENCODE_REQUEST, _ENCODE_ANSWER, _BOTH),
    "/v1/count": _operation("Number of ids of text", _ENCODE_REQUEST, _COUNT_ANSWER, _BOTH),
    "/v1/decode": _operation("Ids to text", _DECODE_REQUEST, _DECODE_ANSWER, _BOTH),
    **{path: _operation(*operation) for path, operation in OPERATIONS.items()},
}


def paths(endpoints: Iterable[str]) -> Schema:
    """The `paths` object of the given paths; a path without an operation here is an error."""
    return {path: _OPERATIONS[path] for path in endpoints}
