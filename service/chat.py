"""Chat templates: compiled once per model, rendered in a sandbox, as Hugging Face's `apply_chat_template` does."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

from jinja2 import Template, TemplateError, TemplateSyntaxError

from service.chat_ast import loops_over_content, loops_over_named_content, string_constants
from service.chat_sandbox import MAX_RENDERED_CHARS, Clock, Refusal, Sandbox
from service.chat_text import str_of, utf8_of
from service.errors import ChatTemplateError

MAX_REQUEST_TEMPLATE_CHARS = 1 << 17
"""Characters of a template that comes with a request; the longest of a model that we know has 22,000."""

EMPTY_CONVERSATION = "Cannot apply chat template to an empty conversation. Provide at least one message."

RESERVED_VARIABLES = frozenset(
    {
        "messages",
        "tools",
        "documents",
        "add_generation_prompt",
        "continue_final_message",
        "conversation",
        "chat_template",
    }
)
"""Names that a request cannot set as template variables; they have fields of their own, or none."""

MEDIA_WORDS = ("image", "audio", "video", "vision")

REASONING_FIELDS = ("reasoning_content", "thinking", "reasoning")
"""Names of a message's reasoning, the first being the one that most templates read."""

_REASONING = frozenset(REASONING_FIELDS)
_FINAL_TAG = "CONTINUE_FINAL_MESSAGE_TAG "
"""Glued to the end of the message to continue. It ends in a space, so that a template that trims shows itself. It is
the reference's own: a template that prints the message twice leaves the first tag in the prompt, there as here."""

Message = dict[str, Any]


class _Compiled:
    """One template and what its source says about it."""

    def __init__(self, name: str, source: str, clock: Clock) -> None:
        self.sandbox = Sandbox(clock)
        try:
            tree = self.sandbox.parse(source)
            self.template: Template = self.sandbox.from_string(source)
        except TemplateSyntaxError as error:
            raise ChatTemplateError(f"chat template {name!r}, line {error.lineno}: {error.message}") from None
        except (RecursionError, MemoryError, TemplateError, SyntaxError, ValueError) as error:
            # What is nested too deeply for Python's parser is no memory to it.
            raise ChatTemplateError(f"chat template {name!r} does not compile ({type(error).__name__})") from None
        self.source = source
        self.wants_parts = loops_over_content(tree)
        self.wants_media_parts = loops_over_named_content(tree) or any(word in source for word in MEDIA_WORDS)
        self.constants = string_constants(tree)


class ChatTemplate:
    """The chat templates of one model (most have one, named `default`). Immutable; shared by all worker threads."""

    def __init__(
        self, sources: Mapping[str, str], special_tokens: Mapping[str, str], clock: Clock = time.thread_time_ns
    ) -> None:
        """Compile every template. Raises `ChatTemplateError` that names the template and the line.

        `clock` is the one that the budget of a rendering is measured by.
        """
        self._templates = {name: _Compiled(name, source, clock) for name, source in sources.items()}
        self._special_tokens = dict(special_tokens)

    def wants_parts(self, tools: Sequence[Any] | None = None) -> bool:
        """Whether the template loops over a message's content, so that content goes in as a list of parts."""
        return self._select(tools).wants_parts

    def wants_media_parts(self, tools: Sequence[Any] | None = None) -> bool:
        """The same by SGLang's rule, which also takes every template that mentions media for one that does."""
        return self._select(tools).wants_media_parts

    def knows_role(self, role: str, tools: Sequence[Any] | None = None) -> bool:
        """Whether the template names a role in quotes."""
        source = self._select(tools).source
        return f'"{role}"' in source or f"'{role}'" in source

    def render(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Any] | None = None,
        documents: Sequence[Any] | None = None,
        add_generation_prompt: bool = False,
        continue_final_message: bool = False,
        variables: Mapping[str, Any] | None = None,
    ) -> str:
        """The prompt of a conversation, to be encoded without special tokens: the template has put them in.

        Keys of a message whose value is None are left out, as the reference does. `variables` win over special tokens
        of the same name. Raises `ChatTemplateError`, whose message holds text of the template but never of the
        conversation.
        """
        if not messages:
            raise ChatTemplateError(EMPTY_CONVERSATION)
        if continue_final_message and add_generation_prompt:
            raise ChatTemplateError("Cannot set both `continue_final_message` and `add_generation_prompt` to True.")
        compiled = self._select(tools)
        conversation = [_seen(message) for message in messages]
        if continue_final_message:
            final = _tag_final_message(conversation)
        context = self._context(conversation, tools, documents, add_generation_prompt, variables)
        compiled.sandbox.start()
        text = _run(compiled, context)
        return _cut_after_final_message(text, final) if continue_final_message else text

    def render_utf8(
        self,
        messages: Sequence[Message],
        *,
        tools: Sequence[Any] | None = None,
        documents: Sequence[Any] | None = None,
        add_generation_prompt: bool = False,
        variables: Mapping[str, Any] | None = None,
    ) -> bytes | str:
        """`render` of messages with `Utf8Text` in them: the same prompt, as UTF-8 where the template lets it be."""
        if not messages:
            raise ChatTemplateError(EMPTY_CONVERSATION)
        compiled = self._select(tools)
        conversation = [_seen(message) for message in messages]
        context = self._context(conversation, tools, documents, add_generation_prompt, variables)
        compiled.sandbox.start()
        try:
            return utf8_of(compiled.template.generate(context))
        except Exception:
            # What the failure was, if it is one, the rendering from `str` says, in what is left of the budget.
            context["messages"] = [with_str(message) for message in conversation]
            return _run(compiled, context)

    def _context(
        self,
        conversation: Sequence[Message],
        tools: Sequence[Any] | None,
        documents: Sequence[Any] | None,
        add_generation_prompt: bool,
        variables: Mapping[str, Any] | None,
    ) -> dict[str, Any]:
        context = {**self._special_tokens, **_plain_variables(variables)}
        context |= {"messages": conversation, "tools": tools, "documents": documents}
        context["add_generation_prompt"] = add_generation_prompt
        return context

    def _select(self, tools: Sequence[Any] | None) -> _Compiled:
        name = "tool_use" if tools is not None and "tool_use" in self._templates else "default"
        compiled = self._templates.get(name)
        if compiled is None:
            raise ChatTemplateError(f"The model has chat templates, but none named default: {sorted(self._templates)}.")
        return compiled


def request_template(source: str, special_tokens: Mapping[str, str]) -> ChatTemplate:
    """A template that came with a request, compiled unless it was lately. Raises `ChatTemplateError`."""
    if len(source) > MAX_REQUEST_TEMPLATE_CHARS:
        raise ChatTemplateError(f"A chat template in a request has at most {MAX_REQUEST_TEMPLATE_CHARS} characters.")
    return _request_template(source, tuple(special_tokens.items()))


@lru_cache(maxsize=16)
def _request_template(source: str, special_tokens: tuple[tuple[str, str], ...]) -> ChatTemplate:
    return ChatTemplate({"default": source}, dict(special_tokens))


def with_str(message: Message) -> Message:
    """A message with a `str` in the place of each `Utf8Text`, in its content's parts, too."""
    content = message.get("content")
    if isinstance(content, list):
        content = [
            {**part, "text": str_of(part["text"])} if isinstance(part, dict) and "text" in part else part
            for part in content
        ]
    return {**message, "content": str_of(content)} if "content" in message else message


def _plain_variables(variables: Mapping[str, Any] | None) -> Mapping[str, Any]:
    return {name: value for name, value in (variables or {}).items() if name not in RESERVED_VARIABLES}


def _seen(message: Message) -> Message:
    """A message as templates see it: without keys that have no value, its reasoning under the names that they know."""
    if len(message) == 2 and message.get("content") is not None and message.get("role") is not None:
        return message
    if None in message.values():
        message = {key: value for key, value in message.items() if value is not None}
    if _REASONING.isdisjoint(message):
        return message
    reasoning = next(message[name] for name in REASONING_FIELDS if name in message)
    return {"thinking": reasoning, **message, "reasoning_content": reasoning}


def _tag_final_message(conversation: list[Message]) -> str:
    """Tag the end of the last message's text; returns that text."""
    message = conversation[-1]
    content = message.get("content")
    if isinstance(content, str):
        conversation[-1] = {**message, "content": content + _FINAL_TAG}
        return content
    if isinstance(content, list):
        for i in reversed(range(len(content))):
            part = content[i]
            if isinstance(part, dict) and isinstance(text := part.get("text"), str):
                tagged = [*content[:i], {**part, "text": text + _FINAL_TAG}, *content[i + 1 :]]
                conversation[-1] = {**message, "content": tagged}
                return text
    raise ChatTemplateError("continue_final_message is set, but the final message has no text to continue.")


def _cut_after_final_message(text: str, final: str) -> str:
    """The rendered text up to the end of the final message; trailing space goes when the template trims it."""
    end = text.rfind(_FINAL_TAG.strip())
    if end < 0 or final.strip() not in text:
        raise ChatTemplateError("continue_final_message is set, but the template changes or drops the final message.")
    return text[:end] if text.startswith(_FINAL_TAG, end) else text[:end].rstrip()


def _run(compiled: _Compiled, context: dict[str, Any]) -> str:
    """Render, counting characters; every failure becomes a `ChatTemplateError`."""
    pieces: list[str] = []
    n_chars = 0
    try:
        for piece in compiled.template.generate(context):
            n_chars += len(piece)
            if n_chars > MAX_RENDERED_CHARS:
                raise ChatTemplateError(f"The rendered conversation is over {MAX_RENDERED_CHARS} characters.")
            pieces.append(piece)
    except ChatTemplateError:
        raise
    except Refusal as error:
        raise ChatTemplateError(_public_reason(str(error), compiled.constants)) from None
    except MemoryError:
        raise ChatTemplateError("The chat template asks for more memory than there is.") from None
    except RecursionError:
        raise ChatTemplateError("The conversation is nested too deeply for the chat template.") from None
    except Exception as error:
        # The message of a foreign error may quote the conversation, so only its kind and its place are told.
        raise ChatTemplateError(f"The chat template failed{_line_of(error)}: {type(error).__name__}.") from None
    return "".join(pieces)


def _public_reason(message: str, constants: frozenset[str]) -> str:
    """What a template said through `raise_exception`, as far as the words are its own and not the conversation's."""
    if message in constants:
        return message
    prefix = max((constant for constant in constants if message.startswith(constant)), key=len, default="")
    return f"{prefix}..." if prefix.strip() else "The chat template refuses the conversation."


def _line_of(error: BaseException) -> str:
    """` at line N` of the template, when the traceback goes through it."""
    line, trace = 0, error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == "<template>":
            line = trace.tb_lineno
        trace = trace.tb_next
    return f" at line {line}" if line else ""
