"""The request shapes of vLLM's render API: chat and text completions, as far as the answer depends on them.

Validation is pydantic's lax mode, as there. Fields that are not named here are ignored.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeVar

from pydantic import Field, TypeAdapter, ValidationError

from service.dialects.body import LARGE_BODY_BYTES, Mistakes
from service.dialects.vllm_schema import Lenient, Message, Tool, mistakes_of

T = TypeVar("T", bound="Generation")

Int64 = Annotated[int, Field(ge=-(2**63), le=2**63 - 1)]
Number = int | float


class StreamOptions(Lenient):
    """What a stream tells beside text."""

    include_usage: bool | None = False
    continuous_usage_stats: bool | None = False


class Generation(Lenient):
    """What chat and text completions share: the model, the answer's form, and how to sample."""

    model: str | None = None
    n: int | None = 1
    frequency_penalty: float | None = None
    presence_penalty: float | None = None
    repetition_penalty: float | None = None
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    min_p: float | None = None
    seed: Int64 | None = None
    stop: str | Annotated[list[str], Field(max_length=4)] | None = None
    stop_token_ids: list[int] | None = None
    max_tokens: int | None = None
    min_tokens: int = 0
    ignore_eos: bool = False
    logit_bias: dict[str, float] | None = None
    logprob_token_ids: list[int] | None = None
    prompt_logprobs: int | None = None
    allowed_token_ids: list[int] | None = None
    bad_words: list[str] | None = None
    skip_special_tokens: bool = True
    spaces_between_special_tokens: bool = True
    include_stop_str_in_output: bool = False
    use_beam_search: bool = False
    thinking_token_budget: int | None = None
    watermarking: bool | None = None
    stream_interval: Annotated[int, Field(ge=1)] | None = None
    routed_experts_prompt_start: Annotated[int, Field(ge=0)] = 0
    repetition_detection: dict[str, Any] | None = None
    structured_outputs: dict[str, Any] | None = None
    response_format: dict[str, Any] | None = None
    echo: bool | None = False
    vllm_xargs: dict[str, Any] | None = None
    stream: bool | None = False
    stream_options: StreamOptions | None = None
    truncate_prompt_tokens: Annotated[int, Field(ge=-1, le=2**63 - 1)] | None = None
    truncation_side: Literal["left", "right"] | None = None
    return_token_offsets: bool | None = False
    cache_salt: Annotated[str, Field(min_length=1, max_length=1024)] | None = None
    priority: Int64 = 0
    kv_transfer_params: dict[str, Any] | None = None
    ec_transfer_params: dict[str, Any] | None = None

    @property
    def max_output(self) -> tuple[str, int | None]:
        """The field that limits the output, and its value."""
        return "max_tokens", self.max_tokens

    @property
    def n_logprobs(self) -> int | None:
        """How many log probabilities each id of the output gets."""
        return None

    @property
    def n_echoed_logprobs(self) -> int | None:
        """How many each id of the prompt gets when it is echoed."""
        return self.n_logprobs


class TextCompletion(Generation):
    """`/v1/completions`, without its prompt."""

    add_special_tokens: bool = True
    logprobs: int | None = None

    @property
    def max_output(self) -> tuple[str, int | None]:
        """See `Generation`; 16 where nothing is said."""
        return "max_tokens", 16 if self.max_tokens is None else self.max_tokens

    @property
    def n_logprobs(self) -> int | None:
        """See `Generation`."""
        return self.logprobs


class ChatCompletion(Generation):
    """`/v1/chat/completions`."""

    messages: list[Message]
    tools: list[Tool] | None = None
    tool_choice: str | dict[str, Any] | None = None
    reasoning_effort: str | None = None
    documents: list[dict[str, Any]] | None = None
    add_generation_prompt: bool = True
    continue_final_message: bool = False
    add_special_tokens: bool = False
    chat_template: str | None = None
    chat_template_kwargs: dict[str, Any] | None = None
    max_completion_tokens: int | None = None
    logprobs: bool | None = False
    top_logprobs: int | None = 0
    include_reasoning: bool = True

    @property
    def max_output(self) -> tuple[str, int | None]:
        """See `Generation`; the newer of two names wins."""
        if self.max_completion_tokens is not None:
            return "max_completion_tokens", self.max_completion_tokens
        return "max_tokens", self.max_tokens

    @property
    def n_logprobs(self) -> int | None:
        """See `Generation`."""
        return self.top_logprobs if self.logprobs else None

    @property
    def n_echoed_logprobs(self) -> int | None:
        """See `Generation`."""
        return self.top_logprobs


class LargeChatCompletion(ChatCompletion):
    """A conversation in a large body: the first mistake of a list is enough."""

    messages: Annotated[list[Message], Field(fail_fast=True)]
    tools: Annotated[list[Tool], Field(fail_fast=True)] | None = None


_TEXT: TypeAdapter[TextCompletion] = TypeAdapter(TextCompletion)
_CHAT: TypeAdapter[ChatCompletion] = TypeAdapter(ChatCompletion)
_LARGE_CHAT: TypeAdapter[ChatCompletion] = TypeAdapter(LargeChatCompletion)


def validate_chat(fields: Any, n_bytes: int) -> ChatCompletion:
    """A chat completion. Raises `Mistakes`."""
    return _validate(_CHAT if n_bytes <= LARGE_BODY_BYTES else _LARGE_CHAT, fields)


def chat_completion(fields: dict[str, Any]) -> ChatCompletion:
    """A chat completion from fields that another wire format was turned into. Raises `Mistakes`."""
    return _validate(_LARGE_CHAT, fields)


def validate_text(fields: Any, _n_bytes: int) -> TextCompletion:
    """A text completion, its prompt left aside. Raises `Mistakes`."""
    return _validate(_TEXT, fields)


def _validate(adapter: TypeAdapter[T], fields: Any) -> T:
    try:
        return adapter.validate_python(fields, from_attributes=True)
    except ValidationError as error:
        raise Mistakes(mistakes_of(error)) from None
