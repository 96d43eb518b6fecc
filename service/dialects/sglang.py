"""SGLang's `POST /tokenize` and `POST /detokenize`: same bodies in, same bodies out, errors flat.

Source: the released server 0.5.23 (`sglang/srt/entrypoints/openai`). See docs/dialects.md for what differs on purpose.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import numpy as np
import orjson
from numpy.typing import NDArray

from dispatcher.errors import InvalidIds, InvalidOption, InvalidText
from dispatcher.request import DecodeRequest, EncodedDocument, EncodeOptions, EncodeRequest, Request, Result
from gpu_core.errors import SidetokError
from service.codecs import check_count
from service.dialects import sglang_schema as schema
from service.dialects.body import error_answer, packed_ids, read_json, validated, with_exact_integers
from service.dialects.json_endpoint import JsonEndpoint, one_or_named
from service.dialects.sglang_chat import render
from service.endpoint import Answer, Head
from service.errors import ChatTemplateError, InvalidBody, UnknownModel, UnsupportedMediaType, status_of
from service.head import route_of
from service.id_array import ids_json
from service.registry import Model

F = TypeVar("F")

NO_CHAT_TEMPLATE = "The model has no chat template; send text as `prompt`."
NOT_UNICODE = "The text is not valid Unicode: it has a lone surrogate."
ID_OUT_OF_RANGE = "Error decoding tokens: an id is not in 0 to 4294967295. Input tokens might be invalid for the model."

_WITH_SPECIAL = EncodeOptions(add_special_tokens=True)
_WITHOUT_SPECIAL = EncodeOptions(add_special_tokens=False)


@dataclass(slots=True)
class TokenizeRequest(EncodeRequest):
    """An encode request and what its answer needs. Without `is_batch` all documents are parts of one prompt."""

    max_model_len: int = 0


class Prompt(NamedTuple):
    """What `sglang_schema.Tokenize` says of a prompt, without pydantic."""

    model: str
    prompt: str | list[str]
    add_special_tokens: bool


class PackedIds(NamedTuple):
    """What `sglang_schema.Detokenize` says of one list of ids, without pydantic."""

    model: str
    tokens: NDArray[np.uint32]
    skip_special_tokens: bool


class _SglangEndpoint(JsonEndpoint[F]):
    """An endpoint whose errors are SGLang's."""

    def fail(self, head: Head, error: SidetokError) -> Answer:
        """See `service.endpoint.Endpoint`."""
        return fail(error)


class Tokenize(_SglangEndpoint[Prompt | schema.Tokenize]):
    """`POST /tokenize`: a prompt, a list of prompts or a conversation to ids."""

    def form(self, body: bytes) -> Prompt | schema.Tokenize:
        """See `JsonEndpoint`."""
        fields = read_json(body)
        if isinstance(fields, dict) and (form := _plain_prompt(fields)) is not None:
            return form
        return validated(schema.validate_tokenize, with_exact_integers(fields, body), body)

    def request(self, head: Head, form: Prompt | schema.Tokenize, n_bytes: int) -> TokenizeRequest:
        """See `JsonEndpoint`."""
        model = one_or_named(self.registry, form.model)
        is_batch = isinstance(form.prompt, list)
        documents, special = _documents(form, model)
        check_count(len(documents))
        return TokenizeRequest(
            model.name,
            model.ready_tokenizer,
            documents,
            _WITH_SPECIAL if special else _WITHOUT_SPECIAL,
            n_bytes,
            is_batch,
            route_of(head),
            max_model_len=model.tokenizer_max_len or model.max_model_len,
        )

    def write(self, head: Head, request: Request, result: Result) -> Answer:
        """See `service.endpoint.Endpoint`."""
        assert isinstance(request, TokenizeRequest)
        encoded: list[EncodedDocument] = result  # type: ignore[assignment]
        if request.is_batch:
            ids = b"[%b]" % b",".join([ids_json(document.ids) for document in encoded])
            count = orjson.dumps([document.n_tokens for document in encoded])
        else:
            packed = b"".join([document.ids for document in encoded])
            ids, count = ids_json(packed), b"%d" % (len(packed) // 4)
        return Answer(b'{"tokens":%b,"count":%b,"max_model_len":%d}' % (ids, count, request.max_model_len))


class Detokenize(_SglangEndpoint[PackedIds | schema.Detokenize]):
    """`POST /detokenize`: ids to text, special tokens dropped by default. Ids outside the vocabulary are skipped."""

    def form(self, body: bytes) -> PackedIds | schema.Detokenize:
        """See `JsonEndpoint`."""
        fields = read_json(body)
        if isinstance(fields, dict) and (form := _plain_ids(fields)) is not None:
            return form
        return validated(schema.validate_detokenize, fields, body)

    def request(self, head: Head, form: PackedIds | schema.Detokenize, n_bytes: int) -> DecodeRequest:
        """See `JsonEndpoint`."""
        model = one_or_named(self.registry, form.model)
        sequences, is_batch = _sequences(form)
        check_count(len(sequences))
        return DecodeRequest(model.name, model.ready_tokenizer, sequences, form.skip_special_tokens, n_bytes, is_batch)

    def write(self, head: Head, request: Request, result: Result) -> Answer:
        """See `service.endpoint.Endpoint`."""
        return Answer(b'{"text":%b}' % orjson.dumps(result if request.is_batch else result[0]))


def fail(error: SidetokError) -> Answer:
    """SGLang's error object: `{object, message, type, param, code}`, flat."""
    status = status_of(error)
    code, kind, message = status.code, status.type, str(error)
    if isinstance(error, InvalidBody | UnsupportedMediaType):
        code, kind = 400, "Bad Request"
    elif isinstance(error, InvalidText):
        message = NOT_UNICODE
    elif isinstance(error, InvalidIds):
        kind = "DecodeError"
    param = "model" if isinstance(error, UnknownModel) else None
    fields = {"object": "error", "message": message, "type": kind, "param": param, "code": code}
    return error_answer(fields, code, error)


def _documents(form: Prompt | schema.Tokenize, model: Model) -> tuple[list[str], bool]:
    """The texts to encode, and whether with special tokens."""
    if isinstance(form.prompt, str):
        return [form.prompt], form.add_special_tokens
    if form.prompt is not None:
        return form.prompt, form.add_special_tokens
    return _chat_documents(form, model)


def _chat_documents(form: schema.Tokenize, model: Model) -> tuple[list[str], bool]:
    """The parts of a conversation's prompt, and whether to encode with special tokens."""
    template = model.chat_template
    if template is None:
        raise ChatTemplateError(model.error or NO_CHAT_TEMPLATE)
    text, rest = render(form, template)
    is_asked = "add_special_tokens" in form.model_fields_set and form.add_special_tokens
    special = is_asked and form.add_generation_prompt is not None
    if special and rest:
        raise InvalidOption("add_special_tokens cannot be combined with continue_final_message.")
    return [text, rest] if rest else [text], special


def _plain_prompt(fields: dict[str, Any]) -> Prompt | None:
    """The prompt form, when every field is of its own type; None leaves the decision to pydantic."""
    prompt, model = fields.get("prompt"), fields.get("model", "default")
    special = fields.get("add_special_tokens", True)
    is_text = type(prompt) is str or (type(prompt) is list and {str}.issuperset(map(type, prompt)))
    if is_text and fields.get("messages") is None and type(model) is str and type(special) is bool:
        return Prompt(model, prompt, special)  # type: ignore[arg-type]
    return None


def _plain_ids(fields: dict[str, Any]) -> PackedIds | None:
    """One list of ids, when every field is of its own type; None leaves the decision to pydantic."""
    tokens, model = fields.get("tokens"), fields.get("model", "default")
    skip = fields.get("skip_special_tokens", True)
    if type(tokens) is list and type(model) is str and type(skip) is bool:
        sequence = packed_ids(tokens)
        if sequence is not None:
            return PackedIds(model, sequence, skip)
    return None


def _sequences(form: PackedIds | schema.Detokenize) -> tuple[list[NDArray[np.uint32]], bool]:
    """The sequences of ids, and whether they came as a list of lists."""
    if isinstance(form, PackedIds):
        return [form.tokens], False
    lists: list[Any] = form.tokens
    is_batch = bool(lists) and isinstance(lists[0], list)
    sequences = [packed_ids(ids) for ids in (lists if is_batch else [lists])]
    known = [sequence for sequence in sequences if sequence is not None]
    if len(known) < len(sequences):
        raise InvalidIds(ID_OUT_OF_RANGE)
    return known, is_batch
