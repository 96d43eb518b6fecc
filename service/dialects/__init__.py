"""Dialects: other servers' wire formats, translated onto the one request type.

`/tokenize` and `/detokenize` mean different things to the clients of different servers; a request says which it is by
its `X-Sidetok-Dialect` header, or the server has a default. Other paths belong to one format each.
"""

from __future__ import annotations

from dispatcher.request import Request, Result
from gpu_core.errors import SidetokError
from service.dialects import anthropic, llamacpp, responses, sglang, tei, vllm, vllm_render
from service.dialects.openapi import OPERATIONS
from service.endpoint import Answer, Endpoint, Head
from service.registry import Registry

__all__ = ["OPERATIONS", "dialect_endpoints"]


class _ByDialect:
    """An endpoint that hands each request to the one of its dialect."""

    def __init__(self, by_name: dict[bytes, Endpoint], default_dialect: str) -> None:
        self._by_name = by_name
        self._default = by_name[default_dialect.encode()]

    def read(self, head: Head, body: bytes) -> Request:
        """See `service.endpoint.Endpoint`."""
        return self._of(head).read(head, body)

    def write(self, head: Head, request: Request, result: Result) -> Answer:
        """See `service.endpoint.Endpoint`."""
        return self._of(head).write(head, request, result)

    def fail(self, head: Head, error: SidetokError) -> Answer:
        """See `service.endpoint.Endpoint`."""
        return self._of(head).fail(head, error)

    def _of(self, head: Head) -> Endpoint:
        return self._by_name.get(head.dialect, self._default)


def dialect_endpoints(registry: Registry, default_dialect: str, trust_templates: bool) -> dict[str, Endpoint]:
    """Every endpoint that speaks another server's format, by path."""
    tokenize = _ByDialect(
        {
            b"vllm": vllm.Tokenize(registry, trust_templates),
            b"sglang": sglang.Tokenize(registry),
            b"llamacpp": llamacpp.Tokenize(registry),
            b"tei": tei.Tokenize(registry),
        },
        default_dialect,
    )
    detokenize = _ByDialect(
        {
            b"vllm": vllm.Detokenize(registry),
            b"sglang": sglang.Detokenize(registry),
            b"llamacpp": llamacpp.Detokenize(registry),
            b"tei": tei.Decode(registry),
        },
        default_dialect,
    )
    return {
        "/tokenize": tokenize,
        "/v1/tokenize": tokenize,
        "/detokenize": detokenize,
        "/v1/detokenize": detokenize,
        "/decode": tei.Decode(registry),
        "/apply-template": llamacpp.ApplyTemplate(registry),
        "/v1/chat/completions/input_tokens": llamacpp.ChatInputTokens(registry),
        "/v1/chat/completions/render": vllm_render.ChatRender(registry, trust_templates),
        "/v1/completions/render": vllm_render.TextRender(registry),
        "/v1/messages/render": anthropic.MessagesRender(registry),
        "/v1/messages/count_tokens": anthropic.CountTokens(registry),
        "/v1/responses/render": responses.ResponsesRender(registry),
        "/v1/responses/input_tokens": responses.InputTokens(registry),
    }
