"""JSON bodies read as the Python servers read them: fast when all is well, with their exact complaint when it is not."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import orjson

from service.endpoint import Head
from service.errors import InvalidBody, UnsupportedMediaType

UNREADABLE = "There was an error parsing the body"
"""Said of a body that is no text, or JSON that is nested too deeply or has a number of thousands of digits."""

MAX_REPORTED_ERRORS = 10
MAX_SHOWN_CHARS = 200

Mistake = dict[str, Any]
"""One finding in a body, as pydantic reports it: `type`, `loc` (a tuple of names and positions), `msg`, `input`, perhaps `ctx`."""


class Mistakes(Exception):
    """What is wrong with a body; each dialect words its own error from it. Never leaves `read`."""

    def __init__(self, found: Iterable[Mistake]) -> None:
        super().__init__("the body does not fit")
        self.found = list(found)


def require_json(head: Head) -> None:
    """Raise unless the body claims to be JSON; a missing content type does not."""
    if head.content_type != b"application/json":
        raise UnsupportedMediaType("Unsupported Media Type: Only 'application/json' is allowed")


def read_json(body: bytes) -> Any:
    """Parse JSON, about as leniently as Python's `json`. Integers over 64 bits may come as floats; see `read_json_exactly`.

    Raises `Mistakes` with the position of the first error, or `InvalidBody` for a body that cannot be read at all.
    """
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError:
        return read_json_exactly(body)


def read_json_exactly(body: bytes) -> Any:
    """Parse JSON by Python's own parser: NaN, lone surrogates, a byte order mark and UTF-16 are accepted, integers are exact."""
    if not body:
        raise Mistakes([{"type": "missing", "loc": ("body",), "msg": "Field required", "input": None}])
    try:
        return json.loads(body)
    except json.JSONDecodeError as error:
        mistake = {"type": "json_invalid", "loc": ("body", error.pos), "msg": "JSON decode error", "input": {}}
        raise Mistakes([{**mistake, "ctx": {"error": error.msg}}]) from None
    except (UnicodeDecodeError, RecursionError, ValueError):
        raise InvalidBody(UNREADABLE) from None


def shown(value: Any) -> str:
    """How an error may show an input: numbers as they are, everything that can carry text by its size only."""
    if isinstance(value, str):
        return f"<str of {len(value)} characters>"
    if isinstance(value, list | dict):
        return f"<{type(value).__name__} of {len(value)} items>"
    try:
        text = str(value)
    except ValueError:  # an integer of thousands of digits
        return f"<{type(value).__name__}>"
    return text if len(text) <= MAX_SHOWN_CHARS else f"{text[:MAX_SHOWN_CHARS]}...[truncated]"


def shown_mistakes(found: list[Mistake], place: Any = lambda loc: loc) -> str:
    """The text that lists the mistakes, one a line, at most `MAX_REPORTED_ERRORS`. `place` words a `loc`."""
    noun = "error" if len(found) == 1 else "errors"
    lines = [f"{len(found)} validation {noun}:"]
    for mistake in found[:MAX_REPORTED_ERRORS]:
        worded = {**mistake, "loc": place(mistake["loc"]), "input": shown(mistake["input"])}
        lines.append(f"  {worded}")
    if len(found) > MAX_REPORTED_ERRORS:
        lines.append(f"  ...and {len(found) - MAX_REPORTED_ERRORS} more {noun}")
    return "\n".join(lines)
