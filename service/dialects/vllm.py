"""vLLM's `POST /tokenize` and `POST /detokenize`: same bodies in, same bodies and errors out.

Source: the released server 0.33 (`vllm/entrypoints/serve/tokenize`) and recorded answers of 0.32. What differs on
purpose is in docs/dialects.md.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import orjson
from numpy.typing import NDArray

from dispatcher.errors import InvalidIds, InvalidOption, InvalidText
from dispatcher.request import DecodeRequest, EncodeOptions, EncodeRequest, Request, Result
from gpu_core.errors import SidetokError
from service.codecs import IDS_PER_PIECE, ids_json
from service.dialects.body import (
    UNREADABLE,
    Mistakes,
    error_answer,
    packed_ids,
    read_json,
    require_json,
    shown_mistakes,
    validated,
)
from service.dialects.vllm_chat import template_messages
from service.dialects.vllm_schema import Chat, Completion, Ids, validate_detokenize, validate_tokenize
from service.endpoint import Answer, Head
from service.errors import ChatTemplateError, InvalidBody, UnknownModel, UnsupportedMediaType, status_of
from service.head import route_of
from service.registry import Model, Registry

BOTH_FLAGS = "Cannot set both `continue_final_message` and `add_generation_prompt` to True."
TEMPLATE_IN_REQUEST = (
    "Chat template is passed with request, but --trust-request-chat-template is not set. "
    "Refused request with untrusted chat template."
)
NO_CHAT_TEMPLATE = (
    "As of transformers v4.44, default chat template is no longer allowed, so you must provide a chat template if the "
    "tokenizer does not define one."
)
NOT_UNICODE = "TextEncodeInput must be Union[TextInputSequence, Tuple[InputSequence, InputSequence]]"
ID_TOO_LARGE = "number too large to fit in target type"

_WITH_SPECIAL = EncodeOptions(add_special_tokens=True)
_WITHOUT_SPECIAL = EncodeOptions(add_special_tokens=False)


@dataclass(slots=True)
class TokenizeRequest(EncodeRequest):
    """An encode request and what its answer needs."""

    max_model_len: int = 0
    return_token_strs: bool = False


class Prompt(NamedTuple):
    """What `vllm_schema.Completion` says, without pydantic."""

    model: str | None
    prompt: str
    add_special_tokens: bool
    return_token_strs: bool


class PackedIds(NamedTuple):
    """What `vllm_schema.Ids` says, without pydantic."""

    model: str | None
    tokens: NDArray[np.uint32]


class Tokenize:
    """`POST /tokenize`: a prompt or a conversation to ids."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry

    def read(self, head: Head, body: bytes) -> TokenizeRequest:
        """See `service.endpoint.Endpoint`."""
        require_json(head)
        try:
            form = _tokenize_form(body)
        except Mistakes as mistakes:
            raise _invalid(mistakes) from None
        model = self._registry.resolve(form.model)
        text = _render(form, model) if isinstance(form, Chat) else form.prompt
        options = _WITH_SPECIAL if form.add_special_tokens else _WITHOUT_SPECIAL
        return TokenizeRequest(
            model.name,
            model.ready_tokenizer,
            [text],
            options,
            len(body),
            route=route_of(head),
            max_model_len=model.max_model_len,
            return_token_strs=bool(form.return_token_strs),
        )

    def write(self, head: Head, request: Request, result: Result) -> Answer:
        """See `service.endpoint.Endpoint`."""
        assert isinstance(request, TokenizeRequest)
        ids: bytes = result[0].ids  # type: ignore[union-attr]
        strs = b"null"
        if request.return_token_strs:
            strs = strings_json(request.tokenizer.tokens_of(np.frombuffer(ids, "<u4")))
        counts = b'{"count":%d,"max_model_len":%d,"tokens":' % (len(ids) // 4, request.max_model_len)
        return Answer(b"".join([counts, ids_json(ids), b',"token_strs":', strs, b"}"]))

    def fail(self, head: Head, error: SidetokError) -> Answer:
        """See `service.endpoint.Endpoint`."""
        return fail(error)


class Detokenize:
    """`POST /detokenize`: ids to text, special tokens kept. The reference skips ids outside the vocabulary."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry

    def read(self, head: Head, body: bytes) -> DecodeRequest:
        """See `service.endpoint.Endpoint`."""
        require_json(head)
        try:
            form = _ids_form(body)
        except Mistakes as mistakes:
            raise _invalid(mistakes) from None
        model = self._registry.resolve(form.model)
        sequence = packed_ids(form.tokens) if isinstance(form, Ids) else form.tokens
        if sequence is None:
            raise InvalidIds(ID_TOO_LARGE)
        return DecodeRequest(model.name, model.ready_tokenizer, [sequence], False, len(body))

    def write(self, head: Head, request: Request, result: Result) -> Answer:
        """See `service.endpoint.Endpoint`."""
        return Answer(b'{"prompt":%b}' % orjson.dumps(result[0]))

    def fail(self, head: Head, error: SidetokError) -> Answer:
        """See `service.endpoint.Endpoint`."""
        return fail(error)


def fail(error: SidetokError) -> Answer:
    """vLLM's error object: `{"error": {message, type, param, code}}`."""
    status = status_of(error)
    code, kind, message, param = status.code, status.type, str(error), None
    if isinstance(error, InvalidBody | UnsupportedMediaType):
        if message == UNREADABLE:
            return Answer(orjson.dumps({"detail": UNREADABLE}), status=400)
        code, kind, param = 400, "Bad Request", getattr(error, "param", None)
        if isinstance(error, UnsupportedMediaType):
            message = f"1 validation error:\n  {message}"
    elif isinstance(error, UnknownModel):
        param = "model"
    elif isinstance(error, InvalidText):
        message = NOT_UNICODE
    return error_answer({"error": {"message": message, "type": kind, "param": param, "code": code}}, code, error)


def strings_json(strings: list[str | None]) -> bytes:
    """Strings as a JSON array, in pieces so that no single call holds the interpreter for long."""
    if len(strings) <= IDS_PER_PIECE:
        return orjson.dumps(strings)
    return b"[" + b",".join(_pieces(strings)) + b"]"


def _pieces(strings: list[str | None]) -> Iterator[bytes]:
    for start in range(0, len(strings), IDS_PER_PIECE):
        yield orjson.dumps(strings[start : start + IDS_PER_PIECE])[1:-1]


def _tokenize_form(body: bytes) -> Prompt | Completion | Chat:
    fields = read_json(body)
    if isinstance(fields, dict):
        # Checked before anything else, on the raw values, whichever form the body has.
        if fields.get("continue_final_message") and fields.get("add_generation_prompt"):
            raise InvalidOption(BOTH_FLAGS)
        if (form := _plain_completion(fields)) is not None:
            return form
    return validated(validate_tokenize, fields, body)


def _plain_completion(fields: dict[str, Any]) -> Prompt | None:
    """The completion form, when every field is of its own type; None leaves the decision to pydantic."""
    prompt, model = fields.get("prompt"), fields.get("model")
    if type(prompt) is not str or "messages" in fields or not (model is None or type(model) is str):
        return None
    special, strs = fields.get("add_special_tokens", True), fields.get("return_token_strs", False)
    if type(special) is not bool or type(strs) is not bool:
        return None
    return Prompt(model, prompt, special, strs)


def _ids_form(body: bytes) -> PackedIds | Ids:
    fields = read_json(body)
    if isinstance(fields, dict):
        tokens, model = fields.get("tokens"), fields.get("model")
        if type(tokens) is list and (model is None or type(model) is str):
            sequence = packed_ids(tokens)
            if sequence is not None:
                return PackedIds(model, sequence)
    return validated(validate_detokenize, fields, body)


def _render(form: Chat, model: Model) -> str:
    """The prompt of a conversation."""
    variables = form.chat_template_kwargs or {}
    if form.chat_template is not None or variables.get("chat_template") is not None:
        raise ChatTemplateError(TEMPLATE_IN_REQUEST)
    template = model.chat_template
    if template is None:
        raise ChatTemplateError(model.error or NO_CHAT_TEMPLATE)
    tools = _tools(form, variables)
    documents = variables.get("documents")
    return template.render(
        template_messages(form.messages, template, tools),
        tools=tools,
        documents=documents if isinstance(documents, list) else None,
        add_generation_prompt=form.add_generation_prompt,
        continue_final_message=form.continue_final_message,
        variables=variables,
    )


def _tools(form: Chat, variables: dict[str, Any]) -> list[Any] | None:
    """The tools that the template sees; those among the template's variables win, and go in as they are."""
    tools = variables.get("tools")
    if tools is None:
        return None if form.tools is None else [tool.fields() for tool in form.tools]
    if not isinstance(tools, list) or not all(isinstance(tool, dict) for tool in tools):
        raise ChatTemplateError("The tools among chat_template_kwargs are a list of objects.")
    return tools


def _invalid(mistakes: Mistakes) -> InvalidBody:
    found = mistakes.found
    return InvalidBody(shown_mistakes(found, _place), _place(found[0]["loc"]))


def _place(loc: tuple[str | int, ...]) -> str:
    return ".".join(map(str, loc))
