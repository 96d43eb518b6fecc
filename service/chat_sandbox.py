"""The sandbox in which chat templates run: what Hugging Face templates need, and bounds on what they may take.

Loops and calls count towards a budget of CPU time; operations that can multiply their operands are measured before
they are done, or right after where they can at most double. Nothing in a template is evaluated while it compiles.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterable
from datetime import datetime
from functools import wraps
from string import Formatter
from types import BuiltinMethodType
from typing import Any

from jinja2 import TemplateError, nodes
from jinja2.compiler import CodeGenerator
from jinja2.ext import Extension, loopcontrols
from jinja2.filters import do_format, do_trim
from jinja2.parser import Parser
from jinja2.runtime import LoopContext, str_join
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

from service.chat_codegen import DICT_ATTRIBUTES, TemplateGenerator
from service.chat_objects import PacedItems, TemplateNamespace
from service.chat_text import METHODS, Utf8Text, glued, joined, pieces_or_sum
from service.errors import ChatTemplateError

MAX_RENDERED_CHARS = 128 << 20
"""Characters that one rendering, or one value inside it, may have; a guard against templates that multiply."""
MAX_CPU_S = 5.0
"""CPU time of one rendering. 500 KB in 60 messages take some milliseconds."""
MAX_WIDTH = 4096
"""Largest number that pads, indents or groups."""
MAX_POWER_BITS = 4096
TICKS = 256
"""Loop rounds and calls between two looks at the clock."""

Clock = Callable[[], int]
"""CPU time of the calling thread in ns."""

_FORMATTER = Formatter()
_SIZED = (str, list, tuple)
_STR_METHODS = frozenset(name for name in dir(str) if name[0] != "_") - {"format", "format_map"}
"""What every `str` has that is safe to call; formatting has a sandbox of its own."""
_SCOPES = ("_loop_vars", "_block_vars")
"""Arguments of every call in a loop or block, for callables that take the context."""
_TESTS_OF_TEXT = ("string", "iterable", "sequence")
"""Those that a text passes, among those that would look at an object first."""
_PADDING = ("center", "ljust", "rjust", "zfill", "expandtabs")
_SIZED_FILTERS = ("center", "indent", "batch", "slice", "wordwrap", "tojson")


class Refusal(TemplateError):
    """Raised by a template through `raise_exception`."""


class Sandbox(ImmutableSandboxedEnvironment):
    """An environment for templates of one source. Shared by all threads; each has a budget of its own."""

    intercepted_binops = frozenset({"*", "**", "//", "%"})
    code_generator_class: type[CodeGenerator] = TemplateGenerator
    concat = staticmethod(lambda texts: joined([*texts]))  # type: ignore[assignment]

    def __init__(self, clock: Clock = time.thread_time_ns) -> None:
        super().__init__(trim_blocks=True, lstrip_blocks=True, extensions=[_GenerationBlock, loopcontrols])
        self.optimized = False
        self._clock = clock
        self._budget = _Budget()
        self.filters["tojson"] = _tojson
        for name in _SIZED_FILTERS:
            self.filters[name] = _with_small_numbers(self.filters[name])
        self.filters["replace"] = _bounded_replace(self.filters["replace"])
        self.filters["format"] = self._formatted
        self.filters["trim"] = _trim
        self.tests["divisibleby"] = self._is_divisible
        for name in _TESTS_OF_TEXT:
            self.tests[name] = _passed_by_text(self.tests[name])
        self.filters["_paced"] = self._paced
        self.filters["_bounded"] = bounded
        self.filters["_added"] = added
        self.filters["_holding"] = holding
        self.globals["namespace"] = TemplateNamespace
        self.globals["raise_exception"] = _raise_exception
        self.globals["strftime_now"] = _strftime_now

    def start(self) -> None:
        """Begin a rendering on this thread."""
        self._budget.end_ns = self._clock() + int(MAX_CPU_S * 1e9)
        self._budget.n_left = TICKS

    def getattr(self, obj: Any, attribute: str) -> Any:
        """A member, as the base class finds it; quicker for what templates read most."""
        kind = type(obj)
        if kind is dict and attribute not in DICT_ATTRIBUTES:
            return obj[attribute] if attribute in obj else self.undefined(obj=obj, name=attribute)
        if (kind is str and attribute in _STR_METHODS) or (kind is Utf8Text and attribute in METHODS):
            return getattr(obj, attribute)
        if (kind is TemplateNamespace or kind is LoopContext) and attribute[:1] != "_":
            try:
                return getattr(obj, attribute)
            except AttributeError:
                return self.undefined(obj=obj, name=attribute)
        return super().getattr(obj, attribute)

    @staticmethod
    def printed(value: Any) -> str | Utf8Text:
        """What an expression between braces leaves in the text."""
        return value if type(value) is Utf8Text else str(value)

    @staticmethod
    def concatenated(terms: tuple[Any, ...]) -> str | Utf8Text:
        """What `~` makes."""
        if Utf8Text not in map(type, terms):
            return str_join(terms)
        return glued([term if type(term) is Utf8Text else str(term) for term in terms])

    def call(self, __context: Any, __obj: Any, /, *args: Any, **kwargs: Any) -> Any:
        """Call something for a template, within the budget."""
        self._tick()
        owner = getattr(__obj, "__self__", None)
        if isinstance(owner, str):
            _check_method(owner, __obj.__name__, args, kwargs)
        if type(owner) is Utf8Text or (isinstance(owner, str) and type(__obj) is BuiltinMethodType):
            # What the base class would do, too, after a look at marks that no such method has.
            for scope in _SCOPES:
                kwargs.pop(scope, None)
            return __obj(*args, **kwargs)
        return super().call(__context, __obj, *args, **kwargs)

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        """An operation of a template, unless its result would be huge."""
        _check_whole(left, right)
        if operator == "*":
            _check_product(left, right)
        elif operator == "**":
            _check_power(left, right)
        elif operator == "%" and isinstance(left, str):
            _check_format(left)
        return bounded(self.binop_table[operator](left, right))

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        """`str.format`, which is not done if its pattern has a huge width."""
        formatter = super().wrap_str_format(value)
        if formatter is None:
            return None

        @wraps(formatter)
        def formatted(*args: Any, **kwargs: Any) -> str:
            _check_fields(value.__self__)
            return formatter(*args, **kwargs)

        return formatted

    def _generate(self, source: nodes.Template, *args: Any, **kwargs: Any) -> str:
        return super()._generate(_Guard().visit(source), *args, **kwargs)

    def _paced(self, items: Iterable[Any]) -> PacedItems:
        return PacedItems(items, self._tick, TICKS)

    def _formatted(self, pattern: Any, *args: Any, **kwargs: Any) -> Any:
        _check_format(str(pattern))
        return bounded(do_format(pattern, *args, **kwargs))

    def _is_divisible(self, value: Any, number: Any) -> bool:
        return bool(self.call_binop(None, "%", value, number) == 0)

    def _tick(self, n: int = 1) -> None:
        budget = self._budget
        budget.n_left -= n
        if budget.n_left < 0:
            budget.n_left = TICKS
            if self._clock() > budget.end_ns:
                raise ChatTemplateError(f"The chat template takes more than {MAX_CPU_S:g} s of CPU time.")


class _Budget(threading.local):
    """What a thread's rendering has left."""

    end_ns = 0
    n_left = 0


class _Guard(NodeTransformer):
    """Puts the hooks into a template's syntax tree."""

    def visit_For(self, node: nodes.For) -> nodes.For:
        """Loops tick."""
        self.generic_visit(node)
        node.iter = _filtered(node.iter, "_paced")
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Filter:
        """What `~` makes is measured."""
        self.generic_visit(node)
        return _filtered(node, "_bounded")

    def visit_Add(self, node: nodes.Add) -> nodes.Filter:
        """A chain of `+` is one call: templates glue text together, and each step would copy all before it."""
        terms: list[nodes.Expr] = []
        first: nodes.Expr = node
        while isinstance(first, nodes.Add):
            terms.append(self.visit(first.right))
            first = first.left
        added = _filtered(self.visit(first), "_added")
        added.args = terms[::-1]
        return added

    def visit_Compare(self, node: nodes.Compare) -> nodes.Expr:
        """`'</think>' in content` is a call, too: templates look for such marks in every message."""
        self.generic_visit(node)
        needle, (first, *others) = node.expr, node.ops
        if others or first.op not in ("in", "notin") or not isinstance(needle, nodes.Const):
            return node
        if type(needle.value) is not str or len(needle.value) < 2:
            return node
        found = _filtered(first.expr, "_holding")
        found.args = [needle]
        return found if first.op == "in" else nodes.Not(found, lineno=node.lineno)


class _GenerationBlock(Extension):
    """`{% generation %}...{% endgeneration %}` marks what a model wrote; its text is rendered as it stands."""

    tags = {"generation"}  # noqa: RUF012 - the base class declares it so

    def parse(self, parser: Parser) -> nodes.Node:
        """The block as a call block, which gives its body a scope of its own."""
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("_text"), [], [], body).set_lineno(line)

    def _text(self, caller: Callable[[], str]) -> str:
        return caller()


def bounded(value: Any) -> Any:
    """The value, unless it is text or a list of more than `MAX_RENDERED_CHARS`."""
    if isinstance(value, _SIZED) and len(value) > MAX_RENDERED_CHARS:
        raise _too_large()
    return value


def added(*terms: Any) -> Any:
    """The sum of all, from left to right, unless it or a part of it is larger than `MAX_RENDERED_CHARS`."""
    texts = pieces_or_sum(terms)
    if type(texts) is list:
        if sum(map(len, texts)) > MAX_RENDERED_CHARS:
            raise _too_large()
        return "".join(texts)
    if texts is not None:
        return texts
    first, *others = terms
    for other in others:
        first = bounded(first + other)
    return first


def holding(value: Any, needle: str) -> bool:
    """Whether `needle`, of two characters at least, is in a value.

    Text that has a character outside ASCII is searched twenty times as fast for one character as for several.
    """
    if type(value) is str and needle[0] not in value:
        return False
    return needle in value


def _filtered(node: nodes.Node, name: str) -> nodes.Filter:
    filtered = nodes.Filter(node, name, [], [], None, None)
    filtered.set_lineno(node.lineno)
    return filtered


def _too_large() -> ChatTemplateError:
    return ChatTemplateError(f"The chat template makes something larger than {MAX_RENDERED_CHARS} characters or items.")


def _check_product(left: Any, right: Any) -> None:
    for value, times in ((left, right), (right, left)):
        if isinstance(value, str | list | tuple) and isinstance(times, int) and len(value) * times > MAX_RENDERED_CHARS:
            raise _too_large()


def _check_whole(left: Any, right: Any) -> None:
    """Whole numbers of millions of digits: to multiply or divide them takes hours, and the interpreter's lock."""
    are_whole = isinstance(left, int) and isinstance(right, int)
    if are_whole and max(left.bit_length(), right.bit_length()) > MAX_POWER_BITS:
        raise _too_large()


def _check_power(base: Any, exponent: Any) -> None:
    is_whole = isinstance(base, int) and isinstance(exponent, int)
    if is_whole and exponent > 0 and base.bit_length() * exponent > MAX_POWER_BITS:
        raise _too_large()


def _check_format(pattern: str) -> None:
    """Widths in a `%` pattern: a long run of digits, or a star."""
    digits = 0
    for char in pattern:
        digits = digits + 1 if char.isdigit() else 0
        if digits > 4:
            raise _too_large()
    if "*" in pattern:
        raise ChatTemplateError("The chat template formats with a width that it computes.")


def _check_fields(pattern: str) -> None:
    """The same in a pattern of `str.format`."""
    for _, _, spec, _ in _FORMATTER.parse(pattern):
        # A star fills there, and a field in a field is a width that comes with the values.
        _check_format((spec or "").replace("*", "").replace("{", "*"))


def _check_method(text: str, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    if name in _PADDING:
        _check_numbers(args, kwargs)
    elif name == "replace":
        _check_replace(text, *(args[:2] if len(args) > 1 else ("x", "")))
    elif name == "join" and args and isinstance(args[0], list | tuple):
        _check_product(text, len(args[0]))


def _check_numbers(args: Iterable[Any], kwargs: dict[str, Any]) -> None:
    if any(isinstance(value, int) and value > MAX_WIDTH for value in (*args, *kwargs.values())):
        raise ChatTemplateError(f"The chat template pads, indents or groups by more than {MAX_WIDTH}.")


def _check_replace(text: Any, old: Any, new: Any) -> None:
    if isinstance(text, str) and isinstance(old, str) and isinstance(new, str) and len(new) > len(old):
        n_places = (len(text) + 1) // max(1, len(old)) if len(old) < 2 else text.count(old)
        if len(text) + n_places * len(new) > MAX_RENDERED_CHARS:
            raise _too_large()


def _trim(value: Any, chars: str | None = None) -> Any:
    return value.strip(chars) if type(value) is Utf8Text else do_trim(value, chars)


def _passed_by_text(test: Any) -> Callable[[Any], bool]:
    return lambda value: type(value) is Utf8Text or bool(test(value))


def _with_small_numbers(filter_: Callable[..., Any]) -> Callable[..., Any]:
    def checked(value: Any, *args: Any, **kwargs: Any) -> Any:
        _check_numbers(args, kwargs)
        return filter_(value, *args, **kwargs)

    return _passing_like(filter_, checked)


def _bounded_replace(filter_: Callable[..., Any]) -> Callable[..., Any]:
    def checked(first: Any, value: Any, old: Any = "", new: Any = "", *args: Any, **kwargs: Any) -> Any:
        _check_replace(value, old, new)
        return filter_(first, value, old, new, *args, **kwargs)

    return _passing_like(filter_, checked)


def _passing_like(original: Callable[..., Any], wrapper: Callable[..., Any]) -> Callable[..., Any]:
    """Mark the wrapper as Jinja marks the original: whether the environment or a context is passed first."""
    mark = getattr(original, "jinja_pass_arg", None)
    if mark is not None:
        wrapper.jinja_pass_arg = mark  # type: ignore[attr-defined]
    return wrapper


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _raise_exception(message: Any) -> None:
    raise Refusal(str(message))


def _strftime_now(format: str) -> str:
    # Templates want the date of the user's calendar, as the reference gives it: local time, no zone.
    return datetime.now().strftime(format)
