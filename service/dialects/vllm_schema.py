"""The request shapes of vLLM's `/tokenize` and `/detokenize`, for all that the fast path of `vllm` does not take.

Validation is pydantic's lax mode, as there, so what is accepted, converted and complained about is the same. Inside
`messages` one shape stands for vLLM's eight: as lenient as the most lenient, and one complaint instead of eight.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, NotRequired

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError
from typing_extensions import TypedDict

from service.dialects.body import LARGE_BODY_BYTES, Mistake, Mistakes

MAX_INT64 = 2**63 - 1

_INTERNAL = {"str", "int"}
"""Parts of a `loc` that name a branch of a union, not a field."""


class Message(TypedDict):
    """One message of a conversation."""

    __pydantic_config__ = ConfigDict(extra="allow")  # type: ignore[misc]

    role: str
    content: NotRequired[str | list[Any] | None]
    name: NotRequired[str | None]
    tool_call_id: NotRequired[str | None]
    tool_calls: NotRequired[list[Any] | None]
    reasoning: NotRequired[str | None]
    reasoning_content: NotRequired[str | None]
    tools: NotRequired[list[Any] | None]
    task: NotRequired[str | None]


class Lenient(BaseModel):
    """A shape that ignores what it does not name."""

    model_config = ConfigDict(extra="allow")


class Function(Lenient):
    """What a tool is."""

    name: str
    description: str | None = None
    parameters: dict[str, Any] | None = None
    strict: bool | None = None
    defer_loading: bool | None = None


class Tool(Lenient):
    """One tool."""

    type: Literal["function"] = "function"
    function: Function
    defer_loading: bool | None = None

    def fields(self) -> dict[str, Any]:
        """The tool as templates see it: known fields in a fixed order, description and parameters always there."""
        function = self.function
        defer = function.defer_loading if function.defer_loading is not None else self.defer_loading
        inner: dict[str, Any] = {"name": function.name, "description": function.description}
        inner["parameters"] = function.parameters
        if function.strict is not None:
            inner["strict"] = function.strict
        if defer is not None:
            inner["defer_loading"] = defer
        outer: dict[str, Any] = {"type": self.type, "function": inner}
        if self.defer_loading is not None:
            outer["defer_loading"] = self.defer_loading
        return outer


class Completion(Lenient):
    """`/tokenize` of a prompt."""

    model: str | None = None
    prompt: str
    add_special_tokens: bool = True
    return_token_strs: bool | None = False


class Chat(Lenient):
    """`/tokenize` of a conversation."""

    model: str | None = None
    messages: list[Message]
    add_generation_prompt: bool = True
    return_token_strs: bool | None = False
    continue_final_message: bool = False
    add_special_tokens: bool = False
    chat_template: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    media_io_kwargs: dict[str, dict[str, Any]] | None = None
    mm_processor_kwargs: dict[str, Any] | None = None
    tools: list[Tool] | None = None


class Ids(Lenient):
    """`/detokenize`."""

    model: str | None = None
    tokens: list[Annotated[int, Field(ge=0, le=MAX_INT64)]]


class LargeChat(Chat):
    """A conversation in a large body: the first mistake of a list is enough."""

    messages: Annotated[list[Message], Field(fail_fast=True)]
    media_io_kwargs: dict[str, Any] | None = None
    tools: Annotated[list[Tool], Field(fail_fast=True)] | None = None


class LargeIds(Ids):
    """Ids in a large body: the first mistake is enough."""

    tokens: Annotated[list[Annotated[int, Field(ge=0, le=MAX_INT64)]], Field(fail_fast=True)]


_TOKENIZE: TypeAdapter[Completion | Chat] = TypeAdapter(Completion | Chat)
_TOKENIZE_LARGE: TypeAdapter[Completion | Chat] = TypeAdapter(Completion | LargeChat)
_DETOKENIZE: TypeAdapter[Ids] = TypeAdapter(Ids)
_DETOKENIZE_LARGE: TypeAdapter[Ids] = TypeAdapter(LargeIds)


def validate_tokenize(fields: Any, n_bytes: int) -> Completion | Chat:
    """The form that fits best: with both `prompt` and `messages` valid, the one with more of its fields set.

    Raises `Mistakes`: what both forms complain about.
    """
    adapter = _TOKENIZE if n_bytes <= LARGE_BODY_BYTES else _TOKENIZE_LARGE
    try:
        return adapter.validate_python(fields, from_attributes=True)
    except ValidationError as error:
        raise Mistakes(mistakes_of(error, is_union=True)) from None


def validate_detokenize(fields: Any, n_bytes: int) -> Ids:
    """Ids and model. Raises `Mistakes`."""
    adapter = _DETOKENIZE if n_bytes <= LARGE_BODY_BYTES else _DETOKENIZE_LARGE
    try:
        return adapter.validate_python(fields, from_attributes=True)
    except ValidationError as error:
        raise Mistakes(mistakes_of(error)) from None


def mistakes_of(error: ValidationError, is_union: bool = False) -> list[Mistake]:
    """What pydantic found, without names that the caller made up; of a union, without the names of its branches."""
    return [
        {**found, "loc": ("body", *(_named(part) for part in found["loc"][is_union:] if not _is_internal(part)))}
        for found in error.errors(include_url=False)
    ]


def _is_internal(part: str | int) -> bool:
    return isinstance(part, str) and (part in _INTERNAL or "[" in part)


def _named(part: str | int) -> str | int:
    """A part of a `loc` that may be shown: keys that the caller made up may hold any text."""
    return part if isinstance(part, int) or (part.isascii() and part.isidentifier() and len(part) <= 64) else "<key>"
