"""Dialects: other servers' wire formats, translated onto the one request type.

`/tokenize` and `/detokenize` mean different things to vLLM's and to SGLang's clients; a request says which it is by its
`X-Sidetok-Dialect` header, or the server has a default.
"""

from __future__ import annotations

from dispatcher.request import Request, Result
from gpu_core.errors import SidetokError
from service.dialects import sglang, vllm
from service.dialects.openapi import DETOKENIZE_SCHEMA, TOKENIZE_SCHEMA
from service.endpoint import Answer, Endpoint, Head
from service.registry import Registry

__all__ = ["DETOKENIZE_SCHEMA", "TOKENIZE_SCHEMA", "Detokenize", "Tokenize"]


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


class Tokenize(_ByDialect):
    """`POST /tokenize`: text or a conversation to ids."""

    def __init__(self, registry: Registry, default_dialect: str) -> None:
        super().__init__({b"vllm": vllm.Tokenize(registry), b"sglang": sglang.Tokenize(registry)}, default_dialect)


class Detokenize(_ByDialect):
    """`POST /detokenize`: ids to text."""

    def __init__(self, registry: Registry, default_dialect: str) -> None:
        super().__init__({b"vllm": vllm.Detokenize(registry), b"sglang": sglang.Detokenize(registry)}, default_dialect)
