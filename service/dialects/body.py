"""JSON bodies read as the Python servers read them: fast when all is well, with their own complaint when it is not."""

from __future__ import annotations

import json
from array import array
from collections.abc import Callable, Iterable
from typing import Any, TypeVar

import numpy as np
import orjson
from numpy.typing import NDArray

from dispatcher.errors import TooBusy
from gpu_core.errors import OverloadError, SidetokError
from service.body_bounds import check_json
from service.endpoint import Answer, Head
from service.errors import InvalidBody, UnsupportedMediaType

T = TypeVar("T")

UNREADABLE = "There was an error parsing the body"
"""Said of a body that is no text, or JSON that is nested too deeply or has a number of thousands of digits."""

MAX_REPORTED_ERRORS = 10
MAX_SHOWN_CHARS = 200

LARGE_BODY_BYTES = 1 << 16
"""Above this only the first mistake of a list is looked for: a mistake takes more memory than its bytes in the body."""

MAX_INTEGER = float(1 << 63)
"""Integers that are read as floats are this large."""

Mistake = dict[str, Any]
"""One finding as pydantic reports it: `type`, `loc` (a tuple of names and positions), `msg`, `input`, maybe `ctx`."""


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
    """Parse JSON as leniently as Python's `json`, except that integers over 64 bits may come as floats.

    Raises `Mistakes` with the position of the first error, `InvalidBody` for a body that cannot be read at all, or
    `BodyTooLarge`.
    """
    check_json(body)
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError:
        return read_json_exactly(body)


def read_json_exactly(body: bytes) -> Any:
    """Parse JSON by Python's own parser: exact integers; NaN, lone surrogates, byte order marks, UTF-16 are taken."""
    if not body:
        raise Mistakes([{"type": "missing", "loc": ("body",), "msg": "Field required", "input": None}])
    try:
        return json.loads(body)
    except json.JSONDecodeError as error:
        mistake = {"type": "json_invalid", "loc": ("body", error.pos), "msg": "JSON decode error", "input": {}}
        raise Mistakes([{**mistake, "ctx": {"error": error.msg}}]) from None
    except (UnicodeDecodeError, RecursionError, ValueError):
        raise InvalidBody(UNREADABLE) from None


def with_exact_integers(fields: Any, body: bytes) -> Any:
    """What `read_json` made of a body, with integers over 64 bits as the servers in Python have them.

    For values that a chat template may show. Raises as `read_json`.
    """
    left = [fields]
    for value in left:
        kind = type(value)
        if kind is dict:
            left += [item for item in value.values() if type(item) is not str]
        elif kind is list:
            left += value
        elif kind is float and not -MAX_INTEGER < value < MAX_INTEGER:
            return read_json_exactly(body)
    return fields


def validated(validate: Callable[[Any, int], T], fields: Any, body: bytes) -> T:
    """`validate(fields, len(body))`, where `fields` are what `read_json` made of the body. Raises `Mistakes`."""
    try:
        return validate(fields, len(body))
    except Mistakes:
        if len(body) > LARGE_BODY_BYTES:
            raise
        # Integers over 64 bits were read as floats; read again, so that the complaint names the number that was sent.
        return validate(read_json_exactly(body), len(body))


def packed_ids(values: list[Any]) -> NDArray[np.uint32] | None:
    """A list of integers from 0 to 2^32-1 as an array, None when anything else is among them. Booleans are 0 and 1."""
    try:
        return np.frombuffer(array("I", values), np.uint32)
    except (TypeError, OverflowError):
        return None


def error_answer(fields: dict[str, Any], code: int, error: SidetokError) -> Answer:
    """An error as JSON; one that may pass says when to come again."""
    answer = Answer(orjson.dumps(fields), status=code)
    # The hot path adds the header itself to refusals of the admission.
    if isinstance(error, OverloadError) and not isinstance(error, TooBusy):
        answer.headers.append((b"retry-after", b"%d" % max(1, round(error.retry_after_s))))
    return answer


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


def shown_mistakes(found: list[Mistake], place: Callable[[Any], Any] = lambda loc: loc) -> str:
    """The text that lists the mistakes, one a line, at most `MAX_REPORTED_ERRORS`. `place` words a `loc`."""
    noun = "error" if len(found) == 1 else "errors"
    lines = [f"{len(found)} validation {noun}:"]
    for mistake in found[:MAX_REPORTED_ERRORS]:
        worded = {**mistake, "loc": place(mistake["loc"]), "input": shown(mistake["input"])}
        lines.append(f"  {worded}")
    if len(found) > MAX_REPORTED_ERRORS:
        lines.append(f"  ...and {len(found) - MAX_REPORTED_ERRORS} more {noun}")
    return "\n".join(lines)
