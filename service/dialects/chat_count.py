"""How many ids a conversation has: what the counting endpoints of several vendors share."""

from __future__ import annotations

from dispatcher.request import EncodedDocument, EncodeOptions, EncodeRequest, Result
from service.dialects.vllm_chat import render
from service.dialects.vllm_render import conversation_of
from service.dialects.vllm_render_schema import ChatCompletion
from service.endpoint import Head
from service.head import route_of
from service.registry import Model

_COUNT = EncodeOptions(add_special_tokens=False, count_only=True)


def count_request(model: Model, form: ChatCompletion, head: Head, n_bytes: int) -> EncodeRequest:
    """The request that counts the prompt of a chat completion. Raises `ChatTemplateError`."""
    text = render(conversation_of(form), model, trust_templates=False)
    return EncodeRequest(model.name, model.ready_tokenizer, [text], _COUNT, n_bytes, route=route_of(head))


def n_tokens(result: Result) -> int:
    """The count of the one document."""
    document = result[0]
    assert isinstance(document, EncodedDocument)
    return document.n_tokens
