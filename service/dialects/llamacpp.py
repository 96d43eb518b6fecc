"""llama.cpp's server: `POST /tokenize`, `/detokenize`, `/apply-template` and `/v1/chat/completions/input_tokens`.

Source: the README of its `tools/server`. See docs/dialects.md for what differs on purpose.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, TypeVar

import numpy as np
import orjson
from numpy.typing import NDArray
from tokenizers import pre_tokenizers

from dispatcher.errors import InvalidOption
from dispatcher.request import DecodeRequest, EncodedDocument, EncodeOptions, EncodeRequest, Request, Result
from dispatcher.tokenizer import Tokenizer as LoadedTokenizer
from gpu_core.errors import SidetokError
from service.codecs import check_count
from service.dialects.body import Mistakes, error_answer, packed_ids, read_json, validated
from service.dialects.chat_count import count_request, n_tokens
from service.dialects.json_endpoint import JsonEndpoint, one_or_named
from service.dialects.vllm_chat import render
from service.dialects.vllm_render import conversation_of
from service.dialects.vllm_render_schema import ChatCompletion, validate_chat
from service.endpoint import Answer, Head
from service.errors import InvalidBody, InvalidField, status_of
from service.head import route_of
from service.id_array import ids_json

F = TypeVar("F")
Fields = dict[str, Any]

ERROR_TYPES = {
    401: "authentication_error", 404: "not_found_error", 429: "unavailable_error", 501: "not_supported_error",
    503: "unavailable_error",
}  # fmt: skip

_WITH_SPECIAL = EncodeOptions(add_special_tokens=True)
_WITHOUT_SPECIAL = EncodeOptions(add_special_tokens=False)
_NOTHING = EncodeOptions(add_special_tokens=False)

_BYTE_OF = {chr(i): i for i in (*range(33, 127), *range(161, 173), *range(174, 256))}
"""The byte that a character of a byte-level vocabulary stands for: itself where it is visible, ..."""
_BYTE_OF |= {chr(256 + i): byte for i, byte in enumerate(b for b in range(256) if chr(b) not in _BYTE_OF)}
assert set(_BYTE_OF) == set(pre_tokenizers.ByteLevel.alphabet())


@dataclass(slots=True)
class TokenizeRequest(EncodeRequest):
    """Texts of one prompt, and the ids that stand between them."""

    parts: list[NDArray[np.uint32] | None] = field(default_factory=list)
    """In order: ids, or None for the next document."""
    with_pieces: bool = False


@dataclass(slots=True)
class TemplateRequest(EncodeRequest):
    """A rendered conversation; nothing is encoded."""

    prompt: str = ""


class _LlamaEndpoint(JsonEndpoint[F]):
    """An endpoint whose errors are llama.cpp's: `{"error": {code, message, type}}`."""

    def fail(self, head: Head, error: SidetokError) -> Answer:
        """See `service.endpoint.Endpoint`."""
        code = 400 if isinstance(error, InvalidBody) else status_of(error).code
        kind = ERROR_TYPES.get(code, "invalid_request_error" if code < 500 else "server_error")
        return error_answer({"error": {"code": code, "message": str(error), "type": kind}}, code, error)


class Tokenize(_LlamaEndpoint[Fields]):
    """`POST /tokenize`: text, or a mixture of texts and ids, to ids; nothing at all to no ids."""

    def form(self, body: bytes) -> Fields:
        """See `JsonEndpoint`."""
        return _object(body)

    def request(self, head: Head, form: Fields, n_bytes: int) -> TokenizeRequest:
        """See `JsonEndpoint`."""
        model = one_or_named(self.registry, _name(form))
        tokenizer = model.ready_tokenizer
        texts, parts = _content(form.get("content"))
        special = _flag(form, "add_special", False)
        with_pieces = _flag(form, "with_pieces", False)
        if special and len(parts) > 1:
            raise InvalidOption("add_special needs a content that is one text.")
        if not _flag(form, "parse_special", True):
            _check_plain(tokenizer, texts)
        return TokenizeRequest(
            model.name,
            tokenizer,
            texts,
            _WITH_SPECIAL if special else _WITHOUT_SPECIAL,
            n_bytes,
            route=route_of(head),
            parts=parts,
            with_pieces=with_pieces,
            is_slow_to_write=with_pieces,
        )

    def write(self, head: Head, request: Request, result: Result) -> Answer:
        """See `service.endpoint.Endpoint`."""
        assert isinstance(request, TokenizeRequest)
        encoded: list[EncodedDocument] = result  # type: ignore[assignment]
        following = iter(encoded)
        ids = b"".join([next(following).ids if part is None else part.tobytes() for part in request.parts])
        if not request.with_pieces:
            return Answer(b'{"tokens":%b}' % ids_json(ids))
        return Answer(orjson.dumps({"tokens": _pieces(request.tokenizer, np.frombuffer(ids, "<u4"))}))


class Detokenize(_LlamaEndpoint[Fields]):
    """`POST /detokenize`: ids to text, special tokens kept."""

    def form(self, body: bytes) -> Fields:
        """See `JsonEndpoint`."""
        return _object(body)

    def request(self, head: Head, form: Fields, n_bytes: int) -> DecodeRequest:
        """See `JsonEndpoint`."""
        model = one_or_named(self.registry, _name(form))
        tokens = form.get("tokens", [])
        ids = packed_ids(tokens) if isinstance(tokens, list) else None
        if ids is None:
            raise InvalidField("tokens is a list of ids.", "tokens")
        return DecodeRequest(model.name, model.ready_tokenizer, [ids], False, n_bytes)

    def write(self, head: Head, request: Request, result: Result) -> Answer:
        """See `service.endpoint.Endpoint`."""
        return Answer(orjson.dumps({"content": result[0]}))


class ApplyTemplate(_LlamaEndpoint[ChatCompletion]):
    """`POST /apply-template`: a conversation to its prompt."""

    def form(self, body: bytes) -> ChatCompletion:
        """See `JsonEndpoint`."""
        return validated(validate_chat, read_json(body), body)

    def request(self, head: Head, form: ChatCompletion, n_bytes: int) -> TemplateRequest:
        """See `JsonEndpoint`."""
        model = one_or_named(self.registry, form.model)
        text = render(conversation_of(form), model, trust_templates=False)
        return TemplateRequest(model.name, model.ready_tokenizer, [], _NOTHING, n_bytes, prompt=text)

    def write(self, head: Head, request: Request, result: Result) -> Answer:
        """See `service.endpoint.Endpoint`."""
        assert isinstance(request, TemplateRequest)
        return Answer(orjson.dumps({"prompt": request.prompt}))


class ChatInputTokens(_LlamaEndpoint[ChatCompletion]):
    """`POST /v1/chat/completions/input_tokens`: how many ids a conversation has."""

    def form(self, body: bytes) -> ChatCompletion:
        """See `JsonEndpoint`."""
        return validated(validate_chat, read_json(body), body)

    def request(self, head: Head, form: ChatCompletion, n_bytes: int) -> EncodeRequest:
        """See `JsonEndpoint`."""
        return count_request(one_or_named(self.registry, form.model), form, head, n_bytes)

    def write(self, head: Head, request: Request, result: Result) -> Answer:
        """See `service.endpoint.Endpoint`."""
        return Answer(b'{"object":"response.input_tokens","input_tokens":%d}' % n_tokens(result))


def _object(body: bytes) -> Fields:
    fields = read_json(body)
    if not isinstance(fields, dict):
        raise Mistakes([{"type": "dict_type", "loc": ("body",), "msg": "The body is an object.", "input": fields}])
    return fields


def _name(fields: Fields) -> str | None:
    name = fields.get("model")
    if name is not None and not isinstance(name, str):
        raise InvalidField("model is a name.", "model")
    return name


def _flag(fields: Fields, name: str, default: bool) -> bool:
    value = fields.get(name, default)
    if not isinstance(value, bool):
        raise InvalidField(f"{name} is true or false.", name)
    return value


def _content(content: Any) -> tuple[list[str], list[NDArray[np.uint32] | None]]:
    """The texts, and the order in which they and ids follow each other."""
    if content is None:
        return [], []
    items = content if isinstance(content, list) else [content]
    check_count(len(items))
    texts: list[str] = []
    parts: list[NDArray[np.uint32] | None] = []
    for item in items:
        if isinstance(item, str):
            texts.append(item)
            parts.append(None)
            continue
        ids = None if isinstance(item, bool) else packed_ids([item])
        if ids is None:
            raise InvalidField("content is text, or a list of texts and ids.", "content")
        parts.append(ids)
    return texts, parts


def _check_plain(tokenizer: LoadedTokenizer, texts: list[str]) -> None:
    """Raise where text that spells a special token would have to stay text: the reference reads it as the token."""
    for token in tokenizer.spec.added_tokens:
        if token.special and any(token.content in text for text in texts):
            raise InvalidOption("parse_special: false is not supported for text that has a special token in it.")


def _pieces(tokenizer: LoadedTokenizer, ids: NDArray[np.uint32]) -> list[dict[str, Any]]:
    added = {token.id: token.content for token in tokenizer.spec.added_tokens}
    spelt = tokenizer.tokens_of(ids)
    known = zip(ids.tolist(), spelt, strict=True)
    is_byte_level = tokenizer.spec.byte_level
    return [{"id": i, "piece": added[i] if i in added else _piece(text or "", is_byte_level)} for i, text in known]


def _piece(spelt: str, is_byte_level: bool) -> str | list[int]:
    """The text of an entry, or its bytes where they are no whole characters."""
    if is_byte_level:
        data = bytes(_BYTE_OF.get(char, 63) for char in spelt)
    elif len(spelt) == 6 and spelt.startswith("<0x") and spelt.endswith(">"):
        data = bytes.fromhex(spelt[3:5])
    else:
        return spelt.replace("▁", " ")
    try:
        return data.decode()
    except UnicodeDecodeError:
        return list(data)
