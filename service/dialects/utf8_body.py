"""Prompts and conversations whose long texts stay the UTF-8 that they came as (`service.chat_text`).

pydantic's parser gives the bytes of a string where a schema asks for them. It reads what Python's `json` reads, to the
same values, and refuses more; what it refuses is read in the usual way, which also says what is wrong.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol, TypeVar

from pydantic_core import SchemaValidator, ValidationError, core_schema

from gpu_core.errors import CallerError
from service.body_bounds import check_json
from service.chat_text import Utf8Text
from service.dialects.body import LARGE_BODY_BYTES, Mistakes


class HasMessages(Protocol):
    """A form with a conversation in it."""

    @property
    def messages(self) -> Any:
        """Messages as dicts."""


F = TypeVar("F", bound=HasMessages)

MIN_BYTES = 512
"""Shorter texts become `str`."""
ROLES = frozenset({"user", "assistant", "tool"})
"""Other messages may be put together, or lose a line, before a template sees them."""

_ANY = core_schema.any_schema()
_TEXT = core_schema.union_schema([core_schema.bytes_schema(), _ANY], mode="left_to_right")


def _object(**schemas: core_schema.CoreSchema) -> core_schema.CoreSchema:
    """An object with fields of these schemas, as far as they are there, and any others."""
    fields = {name: core_schema.typed_dict_field(schema, required=False) for name, schema in schemas.items()}
    return core_schema.typed_dict_schema(fields, extra_behavior="allow")


_PARTS = core_schema.list_schema(core_schema.union_schema([_object(text=_TEXT), _ANY], mode="left_to_right"))
_CONTENT = core_schema.union_schema([core_schema.bytes_schema(), _PARTS, _ANY], mode="left_to_right")
_BODY = SchemaValidator(_object(prompt=_TEXT, messages=core_schema.list_schema(_object(content=_CONTENT))))


class Utf8Fields(NamedTuple):
    """The fields of a body without its long texts, in whose place an empty one stands, and those texts."""

    fields: dict[str, Any]
    prompt: bytes | None
    texts: list[Utf8Text | None]
    """Contents of messages, by message."""


def utf8_fields(body: bytes) -> Utf8Fields | None:
    """The fields of a large body; None for one that is better read in the usual way, or has to be.

    That is one of ASCII only, or not valid. Raises `BodyTooLarge`.
    """
    if len(body) <= LARGE_BODY_BYTES or body.isascii():
        return None
    check_json(body)
    try:
        fields = _BODY.validate_json(body)
    except ValidationError:
        return None
    prompt = fields.get("prompt")
    if type(prompt) is bytes:
        fields["prompt"] = "" if len(prompt) >= MIN_BYTES else str(prompt, "utf-8")
    is_long = type(prompt) is bytes and len(prompt) >= MIN_BYTES
    return Utf8Fields(fields, prompt if is_long else None, _taken_texts(fields.get("messages", ())))


def conversation_form(body: bytes, validate: Callable[[Any, int], F]) -> F | None:
    """`validate(fields, len(body))` of a conversation in a large body, with long texts of its messages as `Utf8Text`.

    None for a body that is to be read in the usual way. Raises `BodyTooLarge`.
    """
    read = utf8_fields(body)
    return None if read is None or read.prompt is not None else conversation_of_fields(read, validate, len(body))


def conversation_of_fields(read: Utf8Fields, validate: Callable[[Any, int], F], n_bytes: int) -> F | None:
    """The same of fields that were read."""
    try:
        form = validate(read.fields, n_bytes)
    except (Mistakes, CallerError):
        return None
    for message, text in zip(form.messages, read.texts, strict=True):
        if text is not None:
            message["content"] = text
    return form


def has_utf8(messages: Any) -> bool:
    """Whether a conversation has a `Utf8Text`."""
    return any(_is_utf8(content := message.get("content")) or _has_utf8_part(content) for message in messages)


def _taken_texts(messages: list[dict[str, Any]]) -> list[Utf8Text | None]:
    """The texts that stay UTF-8, by message; an empty one stands in their place, for the validation."""
    texts: list[Utf8Text | None] = []
    for message in messages:
        content = message.get("content")
        is_passed_on = message.get("role") in ROLES
        if type(content) is bytes:
            text = _text(content, is_passed_on)
            message["content"] = "" if isinstance(text, Utf8Text) else text
            texts.append(text if isinstance(text, Utf8Text) else None)
            continue
        texts.append(None)
        for part in content if type(content) is list else ():
            if isinstance(part, dict) and type(data := part.get("text")) is bytes:
                part["text"] = _text(data, is_passed_on and part.get("type") == "text")
    return texts


def _text(data: bytes, is_passed_on: bool) -> str | Utf8Text:
    return Utf8Text(data) if is_passed_on and len(data) >= MIN_BYTES else str(data, "utf-8")


def _is_utf8(value: Any) -> bool:
    return type(value) is Utf8Text


def _has_utf8_part(content: Any) -> bool:
    return type(content) is list and any(type(part) is dict and _is_utf8(part.get("text")) for part in content)
