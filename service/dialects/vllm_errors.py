"""vLLM's errors: `{"error": {message, type, param, code}}`, worded as the released server words them."""

from __future__ import annotations

from typing import Any, TypeVar

import orjson

from dispatcher.errors import InvalidText
from gpu_core.errors import SidetokError
from service.dialects.body import UNREADABLE, Mistakes, error_answer, shown_mistakes
from service.dialects.json_endpoint import JsonEndpoint
from service.endpoint import Answer, Head
from service.errors import InvalidBody, InvalidField, UnknownModel, UnsupportedMediaType, status_of

F = TypeVar("F")

NOT_UNICODE = "TextEncodeInput must be Union[TextInputSequence, Tuple[InputSequence, InputSequence]]"


class VllmEndpoint(JsonEndpoint[F]):
    """An endpoint whose errors are vLLM's."""

    def fail(self, head: Head, error: SidetokError) -> Answer:
        """See `service.endpoint.Endpoint`."""
        return fail(error)

    def invalid(self, mistakes: Mistakes) -> InvalidBody:
        """The list of mistakes; `param` is the place of the first."""
        found = mistakes.found
        return InvalidBody(shown_mistakes(found, _place), _place(found[0]["loc"]))


def fail(error: SidetokError) -> Answer:
    """vLLM's error object."""
    status = status_of(error)
    code, kind, message, param = status.code, status.type, str(error), None
    if isinstance(error, InvalidBody | UnsupportedMediaType):
        if message == UNREADABLE:
            return Answer(orjson.dumps({"detail": UNREADABLE}), status=400)
        code, kind, param = 400, "Bad Request", getattr(error, "param", None)
        if isinstance(error, UnsupportedMediaType):
            message = f"1 validation error:\n  {message}"
    elif isinstance(error, InvalidField):
        param = error.param
    elif isinstance(error, UnknownModel):
        param = "model"
    elif isinstance(error, InvalidText):
        message = NOT_UNICODE
    return error_answer({"error": {"message": message, "type": kind, "param": param, "code": code}}, code, error)


def invalid_field(message: str, param: str, value: Any = None) -> InvalidField:
    """The error of one field: vLLM ends its message with the field's name and, if it is a number, its value."""
    shown = f", value={value}" if isinstance(value, int | float) else ""
    return InvalidField(f"{message} (parameter={param}{shown})", param)


def _place(loc: tuple[str | int, ...]) -> str:
    return ".".join(map(str, loc))
