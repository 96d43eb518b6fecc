"""What all endpoints with JSON bodies share, whichever dialect they speak."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Generic, TypeVar

from dispatcher.request import Request, Result
from gpu_core.errors import SidetokError
from service.dialects.body import Mistakes, require_json, shown_mistakes
from service.endpoint import Answer, Head
from service.errors import InvalidBody, UnknownModel
from service.head import route_of
from service.registry import Model, Registry

F = TypeVar("F")


class JsonEndpoint(ABC, Generic[F]):
    """One POST endpoint: a JSON body, read as a form `F`, becomes a request. See `service.endpoint.Endpoint`."""

    def __init__(self, registry: Registry) -> None:
        self.registry = registry

    def read(self, head: Head, body: bytes) -> Request:
        """See `service.endpoint.Endpoint`."""
        require_json(head)
        kept = self.utf8_form(body) if self.registry.may_use_gpu(route_of(head)) else None
        try:
            form = self.form(body) if kept is None else kept
        except Mistakes as mistakes:
            raise self.invalid(mistakes) from None
        return self.request(head, form, len(body))

    @abstractmethod
    def form(self, body: bytes) -> F:
        """The body, validated. Raises `Mistakes` or a `CallerError`."""

    def utf8_form(self, body: bytes) -> F | None:
        """The same of a large body, with long texts as they came (`service.dialects.utf8_body`): a GPU may read them.

        None for a body that is to be read in the usual way. CPU engines want `str`, and making it later costs more.
        """
        return None

    @abstractmethod
    def request(self, head: Head, form: F, n_bytes: int) -> Request:
        """What a form asks for; its body had `n_bytes`. Raises `CallerError`."""

    @abstractmethod
    def write(self, head: Head, request: Request, result: Result) -> Answer:
        """See `service.endpoint.Endpoint`."""

    @abstractmethod
    def fail(self, head: Head, error: SidetokError) -> Answer:
        """See `service.endpoint.Endpoint`."""

    def invalid(self, mistakes: Mistakes) -> InvalidBody:
        """The error that lists what is wrong with a body."""
        return InvalidBody(shown_mistakes(mistakes.found))


def one_or_named(registry: Registry, name: str | None) -> Model:
    """The model for clients of servers that have one and ignore its name, which matters only where there are several.

    Raises `UnknownModel`, `ModelNotReady` or `ModelFailed`.
    """
    if registry.n_models == 1:
        return registry.resolve(None)
    try:
        return registry.resolve(name)
    except UnknownModel:
        if name != "default":
            raise
        return registry.resolve(None)
