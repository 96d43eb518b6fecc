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

from dispatcher.errors import InvalidIds, InvalidOption
from dispatcher.late_texts import LateTexts
from dispatcher.request import DecodeRequest, EncodedDocument, EncodeOptions, EncodeRequest, Request, Result
from service.codecs import listed_ids
from service.dialects.body import Mistakes, packed_ids, read_json, validated, with_exact_integers
from service.dialects.utf8_body import conversation_of_fields, has_utf8, utf8_fields
from service.dialects.vllm_chat import Conversation, render, render_utf8
from service.dialects.vllm_errors import VllmEndpoint
from service.dialects.vllm_schema import Chat, Completion, Ids, validate_detokenize, validate_tokenize
from service.endpoint import Answer, Head, answer_of
from service.head import route_of
from service.id_array import IDS_PER_PIECE
from service.registry import Model, Registry

BOTH_FLAGS = "Cannot set both `continue_final_message` and `add_generation_prompt` to True."
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
    prompt: str | bytes
    """UTF-8 where it stays what it came as."""
    add_special_tokens: bool
    return_token_strs: bool


class PackedIds(NamedTuple):
    """What `vllm_schema.Ids` says, without pydantic."""

    model: str | None
    tokens: NDArray[np.uint32]


class Tokenize(VllmEndpoint[Prompt | Completion | Chat]):
    """`POST /tokenize`: a prompt or a conversation to ids."""

    def __init__(self, registry: Registry, trust_templates: bool = False) -> None:
        super().__init__(registry)
        self._trust_templates = trust_templates

    def form(self, body: bytes) -> Prompt | Completion | Chat:
        """See `JsonEndpoint`."""
        fields = read_json(body)
        check_flags(fields)
        if isinstance(fields, dict) and (form := _plain_completion(fields)) is not None:
            return form
        return validated(validate_tokenize, with_exact_integers(fields, body), body)

    def request(self, head: Head, form: Prompt | Completion | Chat, n_bytes: int) -> TokenizeRequest:
        """See `JsonEndpoint`."""
        model = self.registry.resolve(form.model)
        text = self._text(form, model)
        return TokenizeRequest(
            model.name,
            model.ready_tokenizer,
            [text] if isinstance(text, str) else LateTexts([text]),
            _WITH_SPECIAL if form.add_special_tokens else _WITHOUT_SPECIAL,
            n_bytes,
            route=route_of(head),
            lists_ids=True,
            reads_ids=bool(form.return_token_strs),
            is_slow_to_write=bool(form.return_token_strs),
            max_model_len=model.max_model_len,
            return_token_strs=bool(form.return_token_strs),
        )

    def utf8_form(self, body: bytes) -> Prompt | Chat | None:
        """See `JsonEndpoint`."""
        read = utf8_fields(body)
        if read is None:
            return None
        check_flags(read.fields)
        if read.prompt is None:
            return conversation_of_fields(read, _chat, len(body))
        form = _plain_completion(read.fields)
        return None if form is None else form._replace(prompt=read.prompt)

    def _text(self, form: Prompt | Completion | Chat, model: Model) -> str | bytes:
        if not isinstance(form, Chat):
            return form.prompt
        rendered = render_utf8 if has_utf8(form.messages) else render
        return rendered(_conversation(form), model, self._trust_templates)

    def write(self, head: Head, request: Request, result: Result) -> Answer:
        """See `service.endpoint.Endpoint`."""
        assert isinstance(request, TokenizeRequest)
        document: EncodedDocument = result[0]  # type: ignore[assignment]
        strs = b"null"
        if request.return_token_strs:
            strs = strings_json(request.tokenizer.tokens_of(np.frombuffer(document.ids, "<u4")))
        counts = b'{"count":%d,"max_model_len":%d,"tokens":' % (document.n_tokens, request.max_model_len)
        return answer_of([counts, *listed_ids(document), b',"token_strs":', strs, b"}"])


class Detokenize(VllmEndpoint[PackedIds | Ids]):
    """`POST /detokenize`: ids to text, special tokens kept. The reference skips ids outside the vocabulary."""

    def form(self, body: bytes) -> PackedIds | Ids:
        """See `JsonEndpoint`."""
        fields = read_json(body)
        if isinstance(fields, dict):
            tokens, model = fields.get("tokens"), fields.get("model")
            if type(tokens) is list and (model is None or type(model) is str):
                sequence = packed_ids(tokens)
                if sequence is not None:
                    return PackedIds(model, sequence)
        return validated(validate_detokenize, fields, body)

    def request(self, head: Head, form: PackedIds | Ids, n_bytes: int) -> DecodeRequest:
        """See `JsonEndpoint`."""
        model = self.registry.resolve(form.model)
        sequence = packed_ids(form.tokens) if isinstance(form, Ids) else form.tokens
        if sequence is None:
            raise InvalidIds(ID_TOO_LARGE)
        return DecodeRequest(model.name, model.ready_tokenizer, [sequence], False, n_bytes)

    def write(self, head: Head, request: Request, result: Result) -> Answer:
        """See `service.endpoint.Endpoint`."""
        return Answer(b'{"prompt":%b}' % orjson.dumps(result[0]))


def check_flags(fields: Any) -> None:
    """Raise for flags that exclude each other; on the raw values and before anything else, as vLLM does."""
    if isinstance(fields, dict) and fields.get("continue_final_message") and fields.get("add_generation_prompt"):
        raise InvalidOption(BOTH_FLAGS)


def _chat(fields: Any, n_bytes: int) -> Chat:
    form = validate_tokenize(fields, n_bytes)
    if not isinstance(form, Chat):
        raise Mistakes([])
    return form


def strings_json(strings: list[str | None]) -> bytes:
    """Strings as a JSON array, in pieces so that no single call holds the interpreter for long."""
    if len(strings) <= IDS_PER_PIECE:
        return orjson.dumps(strings)
    return b"[" + b",".join(_pieces(strings)) + b"]"


def _pieces(strings: list[str | None]) -> Iterator[bytes]:
    for start in range(0, len(strings), IDS_PER_PIECE):
        yield orjson.dumps(strings[start : start + IDS_PER_PIECE])[1:-1]


def _plain_completion(fields: dict[str, Any]) -> Prompt | None:
    """The completion form, when every field is of its own type; None leaves the decision to pydantic."""
    prompt, model = fields.get("prompt"), fields.get("model")
    if type(prompt) is not str or "messages" in fields or not (model is None or type(model) is str):
        return None
    special, strs = fields.get("add_special_tokens", True), fields.get("return_token_strs", False)
    if type(special) is not bool or type(strs) is not bool:
        return None
    return Prompt(model, prompt, special, strs)


def _conversation(form: Chat) -> Conversation:
    variables = form.chat_template_kwargs or {}
    documents = variables.get("documents")
    return Conversation(
        form.messages,
        None if form.tools is None else [tool.fields() for tool in form.tools],
        variables,
        documents if isinstance(documents, list) else None,
        form.add_generation_prompt,
        form.continue_final_message,
        form.chat_template,
    )
