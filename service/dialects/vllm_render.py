"""vLLM's render API: a completion request becomes the ids that an engine would be given, and how to sample from them.

`token_ids` and `input_ids` are the same list under the names that vLLM's and SGLang's clients read; it is written once.
Source: the released server 0.33 (`vllm/entrypoints/scale_out/render`) and recorded answers of 0.32. What differs on
purpose is in docs/dialects.md.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, NamedTuple, TypeVar

import numpy as np
import orjson
from numpy.typing import NDArray

from dispatcher.errors import InvalidIds, InvalidOption
from dispatcher.late_texts import LateTexts
from dispatcher.request import EncodedDocument, EncodeOptions, EncodeRequest, Request, Result, TruncationSide
from service.block_hashes import FIELDS, HashOptions, block_hashes, hash_options, hashes_json
from service.codecs import check_count, listed_ids
from service.dialects.body import Mistakes, packed_ids, read_json, validated, with_exact_integers
from service.dialects.utf8_body import conversation_form, has_utf8
from service.dialects.vllm import ID_TOO_LARGE, check_flags
from service.dialects.vllm_chat import Conversation, render, render_utf8
from service.dialects.vllm_errors import VllmEndpoint, invalid_field
from service.dialects.vllm_render_schema import (
    ChatCompletion,
    Generation,
    TextCompletion,
    validate_chat,
    validate_text,
)
from service.dialects.vllm_sampling import sampling_params
from service.endpoint import Answer, Head, answer_of
from service.head import route_of
from service.id_array import array_json
from service.registry import Model, Registry

F = TypeVar("F")
Ids = NDArray[np.uint32]
Pieces = list[bytes]
"""An object as JSON, in pieces: its ids stand there twice and are the same pieces."""

NO_PROMPT = "Either prompt or prompt_embeds must be provided and non-empty."
NOTHING = "No token_ids rendered"
PROMPT_FORMS = "prompt is text, a list of texts, a list of ids, or a list of lists of ids."


class Limits(NamedTuple):
    """How many ids a prompt and its continuation may have."""

    max_model_len: int
    max_output: int | None
    """What the request asks for."""
    max_prompt: int
    """`max_model_len` less what was asked for."""

    def max_tokens(self, n_prompt: int) -> int:
        """The length of the continuation. Raises `InvalidField` for a prompt that leaves no room."""
        if n_prompt > self.max_prompt:
            text = (
                f"You passed {n_prompt} input tokens and requested {self.max_model_len - self.max_prompt} output "
                f"tokens. However, the model's context length is only {self.max_model_len} tokens, resulting in a "
                f"maximum input length of {self.max_prompt} tokens. Please reduce the length of the input prompt."
            )
            raise invalid_field(text, "input_tokens", n_prompt)
        left = self.max_model_len - n_prompt
        if left < 1:
            raise invalid_field(f"max_tokens must be at least 1, got {left}.", "max_tokens", left)
        return left if self.max_output is None else min(left, self.max_output)


@dataclass(slots=True)
class RenderRequest(EncodeRequest):
    """Prompts to encode, and the rest of the answer for each."""

    kind: str = "chatcmpl"
    limits: Limits | None = None
    sampling: dict[str, Any] = field(default_factory=dict)
    tail: bytes = b""
    """What follows the sampling parameters in each object."""
    given: list[Ids] | None = None
    """Prompts that came as ids; there are no documents then."""
    hashes: HashOptions | None = None
    named: str = ""
    """The model's name as the client wrote it."""


class TextForm(NamedTuple):
    """A text completion and its prompts, of which one kind is there."""

    form: TextCompletion
    texts: list[str]
    given: list[Ids] | None
    is_batch: bool


class _Render(VllmEndpoint[F]):
    """What all render endpoints do with a form once its prompt is known."""

    def rendered(
        self, head: Head, form: Generation, model: Model, texts: Sequence[str], special: bool, n_bytes: int
    ) -> RenderRequest:
        """The request for the prompts of a form."""
        if form.use_beam_search:
            raise InvalidOption("Beam search is not supported by the render endpoint")
        if form.stream_options is not None and not form.stream:
            raise invalid_field("Stream options can only be defined when `stream=True`.", "stream_options")
        sampling = sampling_params(form, model.generation_defaults)
        hashes = hash_options({name: (form.model_extra or {}).get(name) for name in FIELDS}, form.cache_salt)
        limits = _limits(form, model)
        max_ids = _truncation(form, limits)
        side: TruncationSide = form.truncation_side or "left"
        return RenderRequest(
            model.name,
            model.ready_tokenizer,
            texts,
            _options(special, max_ids, side, bool(form.return_token_offsets)),
            n_bytes,
            route=route_of(head),
            limits=limits,
            sampling=sampling,
            tail=_tail(form),
            hashes=hashes,
            named=form.model or model.name,
            lists_ids=True,
            reads_ids=hashes is not None,
            is_slow_to_write=hashes is not None,
        )

    def write(self, head: Head, request: Request, result: Result) -> Answer:
        """See `service.endpoint.Endpoint`."""
        assert isinstance(request, RenderRequest)
        objects = _objects(request, result)  # type: ignore[arg-type]
        if request.kind != "cmpl":
            return answer_of(objects[0])
        return answer_of([b"[", *objects[0], *(piece for pieces in objects[1:] for piece in (b",", *pieces)), b"]"])


class ConversationRender(_Render[ChatCompletion]):
    """A conversation, however it is written, to one object."""

    def __init__(self, registry: Registry, trust_templates: bool = False) -> None:
        super().__init__(registry)
        self._trust_templates = trust_templates

    def request(self, head: Head, form: ChatCompletion, n_bytes: int) -> RenderRequest:
        """See `JsonEndpoint`."""
        model = self.registry.resolve(form.model)
        rendered = render_utf8 if has_utf8(form.messages) else render
        prompt = rendered(conversation_of(form), model, self._trust_templates)
        texts = [prompt] if isinstance(prompt, str) else LateTexts([prompt])
        return self.rendered(head, form, model, texts, form.add_special_tokens, n_bytes)


class ChatRender(ConversationRender):
    """`POST /v1/chat/completions/render`."""

    def form(self, body: bytes) -> ChatCompletion:
        """See `JsonEndpoint`."""
        return validated(_checked_chat, with_exact_integers(read_json(body), body), body)

    def utf8_form(self, body: bytes) -> ChatCompletion | None:
        """See `JsonEndpoint`."""
        return conversation_form(body, _checked_chat)


def _checked_chat(fields: Any, n_bytes: int) -> ChatCompletion:
    check_flags(fields)
    return validate_chat(fields, n_bytes)


class TextRender(_Render[TextForm]):
    """`POST /v1/completions/render`: an array, also for one prompt."""

    def form(self, body: bytes) -> TextForm:
        """See `JsonEndpoint`."""
        fields = read_json(body)
        form = validated(validate_text, fields, body)
        prompt = fields.get("prompt")
        if not prompt:
            raise invalid_field(NO_PROMPT, "prompt")
        if isinstance(prompt, str):
            return TextForm(form, [prompt], None, False)
        if not isinstance(prompt, list):
            raise Mistakes([{"type": "prompt_type", "loc": ("body", "prompt"), "msg": PROMPT_FORMS, "input": prompt}])
        check_count(len(prompt))
        if {str}.issuperset(map(type, prompt)):
            return TextForm(form, prompt, None, True)
        is_batch = isinstance(prompt[0], list)
        return TextForm(form, [], [_ids(ids) for ids in (prompt if is_batch else [prompt])], is_batch)

    def request(self, head: Head, form: TextForm, n_bytes: int) -> RenderRequest:
        """See `JsonEndpoint`."""
        model = self.registry.resolve(form.form.model)
        request = self.rendered(head, form.form, model, form.texts, form.form.add_special_tokens, n_bytes)
        request.kind, request.is_batch, request.given = "cmpl", form.is_batch, form.given
        return request


def conversation_of(form: ChatCompletion) -> Conversation:
    """What a chat completion renders. A message's `reasoning_content` is read like its `reasoning`."""
    variables = dict(form.chat_template_kwargs or {})
    if form.reasoning_effort is not None:
        variables.setdefault("enable_thinking", form.reasoning_effort != "none")
        variables["reasoning_effort"] = form.reasoning_effort
    documents = form.documents if form.documents is not None else variables.get("documents")
    return Conversation(
        [_with_reasoning(message) for message in form.messages],  # type: ignore[arg-type]
        None if form.tools is None else [tool.fields() for tool in form.tools],
        variables,
        documents if isinstance(documents, list) else None,
        form.add_generation_prompt,
        form.continue_final_message,
        form.chat_template,
    )


def _with_reasoning(message: dict[str, Any]) -> dict[str, Any]:
    reasoning = message.get("reasoning_content")
    if reasoning is None or message.get("reasoning") is not None:
        return message
    return {**message, "reasoning": reasoning}


def _ids(values: Any) -> Ids:
    if isinstance(values, list) and float in map(type, values):
        values = [int(value) if type(value) is float and value.is_integer() else value for value in values]
    if not isinstance(values, list) or not {int, bool}.issuperset(map(type, values)):
        raise Mistakes([{"type": "prompt_type", "loc": ("body", "prompt"), "msg": PROMPT_FORMS, "input": values}])
    ids = packed_ids(values)
    if ids is None:
        raise InvalidIds(ID_TOO_LARGE)
    return ids


@lru_cache(maxsize=256)
def _options(special: bool, max_ids: int | None, side: TruncationSide, offsets: bool) -> EncodeOptions:
    return EncodeOptions(special, max_ids, side, char_offsets=offsets)


def _limits(form: Generation, model: Model) -> Limits:
    name, max_output = form.max_output
    total = model.max_model_len
    if max_output is not None and max_output > total:
        text = f"{name}={max_output} cannot be greater than max_model_len={total}. Please request fewer output tokens."
        raise invalid_field(text, name, max_output)
    fallback = model.generation_defaults.get("max_new_tokens") if max_output is None else max_output
    return Limits(total, fallback, total - (max_output or 0))


def _truncation(form: Generation, limits: Limits) -> int | None:
    wanted = form.truncate_prompt_tokens
    if wanted == 0:
        raise InvalidOption(NOTHING)
    if wanted is None or wanted >= 0:
        if wanted is not None and wanted > limits.max_prompt:
            text = (
                f"truncate_prompt_tokens={wanted} cannot be greater than max_model_len - {form.max_output[0]} = "
                f"{limits.max_prompt}. Please request a smaller truncation size."
            )
            raise invalid_field(text, "truncate_prompt_tokens", wanted)
        return wanted
    return limits.max_prompt


def _tail(form: Generation) -> bytes:
    """The fields of an answer that are the request's own, or never set here."""
    fields = {
        "model": form.model,
        "reasoning_ended": True if isinstance(form, ChatCompletion) and not form.include_reasoning else None,
        "reasoning_parser_kwargs": None,
        "return_token_ids": None,
        "output_mode": "tokens",
        "stream": bool(form.stream),
        "stream_options": _stream_options(form),
        "cache_salt": form.cache_salt,
        "priority": form.priority,
        "kv_transfer_params": None,
        "ec_transfer_params": None,
    }
    return orjson.dumps(fields)[1:]


def _stream_options(form: Generation) -> dict[str, Any] | None:
    if not form.stream or form.stream_options is None:
        return None
    return form.stream_options.model_dump(include={"include_usage", "continuous_usage_stats"})


def _objects(request: RenderRequest, result: list[EncodedDocument]) -> list[Pieces]:
    """One answer for each prompt."""
    request_id = f"{request.kind}-{os.urandom(8).hex()}"
    if request.given is not None:
        cut = [_cut(ids, request.options) for ids in request.given]
        result = [EncodedDocument(ids, len(ids) // 4) for ids in cut]
    is_many = len(result) > 1
    return [
        _object(request, f"{request_id}-{i}" if is_many else request_id, document) for i, document in enumerate(result)
    ]


def _object(request: RenderRequest, request_id: str, document: EncodedDocument) -> Pieces:
    n_ids = document.n_tokens
    if not n_ids:
        raise InvalidOption(NOTHING)
    assert request.limits is not None
    sampling = orjson.dumps({**request.sampling, "max_tokens": request.limits.max_tokens(n_ids)})
    listed = listed_ids(document)
    return [
        b'{"request_id":"%b","token_ids":' % request_id.encode(),
        *listed,
        b',"input_ids":',
        *listed,
        b',"token_offsets":',
        _offsets(document),
        b',"features":null,"content_parts":null,"sampling_params":',
        sampling,
        b",",
        request.tail if request.hashes is None else _with_hashes(request, document.ids),
    ]


def _with_hashes(request: RenderRequest, ids: bytes) -> bytes:
    assert request.hashes is not None
    return b"%b,%b}" % (request.tail[:-1], hashes_json(block_hashes(ids, request.hashes, request.named)))


def _offsets(document: EncodedDocument) -> bytes:
    return b"null" if document.char_offsets is None else array_json(document.char_offsets)


def _cut(ids: Ids, options: EncodeOptions) -> bytes:
    """Ids that came with the request, truncated like those that are encoded."""
    most = options.max_tokens
    if most is not None and len(ids) > most:
        ids = ids[len(ids) - most :] if options.truncation_side == "left" else ids[:most]
    return ids.astype("<u4", copy=False).tobytes()
