"""The request shapes of SGLang's `/tokenize` and `/detokenize`, validated in pydantic's lax mode as there."""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from service.dialects.body import Mistake, Mistakes

EXACTLY_ONE = "Value error, Exactly one of 'prompt' or 'messages' must be provided."

Effort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "ultra", "max"]


T = TypeVar("T")

Many = Annotated[list[T], Field(fail_fast=True)]
"""A list of which only the first mistake is reported: a mistake takes far more memory than the bytes that make it."""


class _Lenient(BaseModel):
    model_config = ConfigDict(extra="allow")


class CalledFunction(BaseModel):
    """The function of a tool call."""

    name: str | None = None
    arguments: str | dict[str, Any] | None = None


class ToolCall(BaseModel):
    """One call of an assistant."""

    id: str | None = None
    index: int | None = None
    type: Literal["function"] = "function"
    function: CalledFunction


class Message(BaseModel):
    """One message; fields that are not named here do not reach the template."""

    role: str
    content: str | Many[dict[str, Any]] | None = None
    tool_call_id: str | None = None
    name: str | None = None
    phase: Literal["commentary", "final_answer"] | None = None
    reasoning_content: str | None = None
    tool_calls: Many[ToolCall] | None = None
    tools: Many[dict[str, Any]] | None = None
    prefix: bool | None = None


class Tool(BaseModel):
    """One tool, its function as the caller wrote it."""

    type: str = "function"
    function: dict[str, Any]
    defer_loading: bool | None = None


class Tokenize(_Lenient):
    """`/tokenize`: exactly one of `prompt` and `messages`."""

    model: str = "default"
    prompt: str | Many[str] | None = None
    messages: Many[Message] | None = None
    tools: Many[Tool] | None = None
    tool_choice: dict[str, Any] | Literal["auto", "required", "none"] | None = None
    reasoning_effort: Effort | Annotated[float, Field(ge=0.0, le=0.99, allow_inf_nan=False)] | None = None
    continue_final_message: bool = False
    chat_template_kwargs: dict[str, Any] | None = None
    add_special_tokens: bool = True
    add_generation_prompt: bool | None = None


class Detokenize(_Lenient):
    """`/detokenize`."""

    model: str = "default"
    tokens: Many[int] | Many[Many[int]]
    skip_special_tokens: bool = True


_TOKENIZE: TypeAdapter[Tokenize] = TypeAdapter(Tokenize)
_DETOKENIZE: TypeAdapter[Detokenize] = TypeAdapter(Detokenize)


def validate_tokenize(fields: Any, _n_bytes: int) -> Tokenize:
    """A prompt, prompts or a conversation. Raises `Mistakes`."""
    try:
        form = _TOKENIZE.validate_python(fields, from_attributes=True)
    except ValidationError as error:
        raise Mistakes(_mistakes(error)) from None
    if (form.prompt is None) == (form.messages is None):
        raise Mistakes([{"type": "value_error", "loc": ("body",), "msg": EXACTLY_ONE, "input": fields}])
    return form


def validate_detokenize(fields: Any, _n_bytes: int) -> Detokenize:
    """One sequence of ids, or several. Raises `Mistakes`."""
    try:
        return _DETOKENIZE.validate_python(fields, from_attributes=True)
    except ValidationError as error:
        raise Mistakes(_mistakes(error)) from None


def _mistakes(error: ValidationError) -> list[Mistake]:
    return [{**found, "loc": ("body", *map(_named, found["loc"]))} for found in error.errors(include_url=False)]


def _named(part: str | int) -> str | int:
    """A part of a `loc` that may be shown: keys that the caller made up may hold any text."""
    known = isinstance(part, int) or (part.isascii() and part.replace("[", "").replace("]", "").isidentifier())
    return part if known and len(str(part)) <= 64 else "<key>"
