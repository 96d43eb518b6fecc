"""Texts that stay UTF-8: whatever a template does with one, it gets what a `str` would give, or an exception."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
from jinja2 import Environment

from service.chat import ChatTemplate
from service.chat_sandbox import Sandbox
from service.chat_text import MAX_PIECES, NotOnUtf8, Utf8Text, glued, joined, str_of, utf8_of
from service.errors import ChatTemplateError
from tests.service.chat_matrix import OWN_TEMPLATES, cases, models_with_templates
from tests.service.small_model import SPECIAL_TOKENS

TEXTS = (
    "", "a", " a ", "\ta\n", "é", "\u00a0é\u00a0", "\u3000x", "x\u2003 ", "a\x1c", "\x85", "</think>", "a</think>b",
    "<think>\nhm\n</think>\n\nHi, Zoë 👋", "你好\n", "aa,bb,,cc", "<tool_response>é</tool_response>", "42", "5.5",
)  # fmt: skip
"""White space of every kind at both ends among them."""
WORDS = ("", "a", "é", "</think>", "\n", ",", "<tool_response>", "</tool_response>", "\u00a0", "👋", "你")
EXPRESSIONS = (
    "x", "x + 'é'", "'é' + x + '!'", "x ~ 1", "1 ~ x ~ none", "x + x ~ x", "(x + 'b').strip()", "x.strip()",
    "x.lstrip()", "x.rstrip()", "x | trim", "x | trim('a\n')", "x.strip('a')", "x.strip('aé')", "x.lstrip('\n')",
    "x.split('</think>')[-1]", "x.split('</think>')[0].rstrip('\n').split('<think>')[-1].lstrip('\n')",
    "x.split(',', 1) | length", "x.split()", "x.split('')",
    "'</think>' in x", "'a' in x", "x in ['a', 'é']", "x in 'a'",
    "x == 'é'", "x != 'a'", "x == x", "x == 1", "x and 'yes' or 'no'", "not x", "'y' if x else 'n'", "x is string",
    "x is iterable", "x is sequence", "x is mapping", "x is defined", "x is none", "x is number", "x is sameas(x)",
    "x | length", "x | upper", "x[0]", "x[:2]", "x[::-1]", "x.nothing is defined", "x.upper()", "x.replace('a', 'b')",
    "x | tojson", "x | string", "x | int", "x | float", "x | list", "x | first", "x | default('d', true)", "x * 2",
    "'%s' % x", "'%r' % x", "'{}'.format(x)", "','.join([x, x])", "[x, 'b'] | join(',')", "{x: 1}", "{'k': x}.k",
    "x.startswith('a')", "x.startswith(('a', 'é'))", "x.endswith('</tool_response>')", "x.startswith('')", "x < 'b'",
    "x.startswith('a', 1)", "x.format()", "x._pieces", "x.__class__", "range(x)", "x | e", "x | safe", "x | reverse",
    "[x, x] | unique | list | length", "[x, 'a'] | sort | first", "[x] | map('trim') | first", "[x] | select | first",
    "[{'c': x}] | selectattr('c', 'equalto', 'a') | list | length", "[x] | select('string') | list | length",
    "dict(k=x).k", "cycler(x, 'b').next()", "x | replace('a', '')", "x | indent", "x | truncate(3)", "x | urlencode",
    "raise_exception('no ' + x)", "(x ~ 'b').split('b') | length", "x is in(['a'])", "x | wordcount", "x is lower",
)  # fmt: skip
PLACES = (
    "{{ X }}",
    "{% for i in [1, 2] %}{{ X }}{{ loop.changed(x) }}{% endfor %}",
    "{% macro m(x) %}[{{ X }}]{% endmacro %}{{ m(x) ~ '|' }}{{ m(x) }}",
    "{% set y %}<{{ X }}>{% endset %}{{ y }}{{ y | trim }}",
    "{% filter trim %} {{ X }} {% endfilter %}",
    "{% generation %}{{ X }}{% endgeneration %}{% set ns = namespace(t='') %}{% set ns.t = ns.t + x %}{{ ns.t }}",
    "{% autoescape true %}{{ X }}{{ x ~ '<' }}{% endautoescape %}",
)


def rendered(template: ChatTemplate, content: Any, render: Callable[..., Any]) -> Any:
    """What a template makes of one message, or says."""
    try:
        text = render(template, [{"role": "user", "content": content}])
    except ChatTemplateError as error:
        return str(error)
    return text.decode() if isinstance(text, bytes) else text


@pytest.mark.parametrize("place", PLACES)
def test_a_template_sees_no_difference(place: str) -> None:
    """Every expression in every place renders the same text, or fails the same way, for both kinds of text."""
    for expression in EXPRESSIONS:
        source = "{% set x = messages[0].content %}" + place.replace("X", expression)
        template = ChatTemplate({"default": source}, {})
        for text in TEXTS:
            expected = rendered(template, text, ChatTemplate.render)
            assert rendered(template, Utf8Text(text.encode()), ChatTemplate.render_utf8) == expected, (source, text)


def test_filters_and_tests_of_jinja_see_no_difference() -> None:
    """All that Jinja brings, without arguments."""
    shown = [f"x | {name}" for name in Environment().filters if name not in ("random", "pprint")]
    shown += [f"x is {name}" for name in Environment().tests if name.isidentifier() and name not in ("in", "escaped")]
    for expression in shown:
        template = ChatTemplate({"default": "{% set x = messages[0].content %}{{ " + expression + " }}"}, {})
        for text in TEXTS:
            expected = rendered(template, text, ChatTemplate.render)
            if " object at 0x" not in expected:
                utf8 = Utf8Text(text.encode())
                assert rendered(template, utf8, ChatTemplate.render_utf8) == expected, (expression, text)


def test_every_template_at_hand(tmp_path_factory: pytest.TempPathFactory) -> None:
    """The matrix of conversations; plain ones are rendered without a `str`."""
    sources = {name: (source, SPECIAL_TOKENS) for name, source in OWN_TEMPLATES.items()}
    for name, files in models_with_templates(tmp_path_factory.mktemp("models")).items():
        sources[name] = files.chat_templates["default"], files.special_tokens
    for name, (source, special_tokens) in sources.items():
        template = ChatTemplate({"default": source}, special_tokens)
        for case in cases():
            options = {**case.options}
            if options.pop("continue_final_message", False):
                continue
            try:
                expected: str | None = template.render(case.messages, **options)
            except ChatTemplateError:
                expected = None
            try:
                found: Any = template.render_utf8([utf8_message(message) for message in case.messages], **options)
            except ChatTemplateError:
                found = None
            is_plain = case.name.startswith(("turns", "system", "long", "thoughts"))
            assert not is_plain or found is None or isinstance(found, bytes), f"{name}: {case.name}"
            assert (found.decode() if isinstance(found, bytes) else found) == expected, f"{name}: {case.name}"


def utf8_message(message: dict[str, Any]) -> dict[str, Any]:
    """A message with its texts as UTF-8."""
    content = message.get("content")
    if isinstance(content, list):
        return {**message, "content": [{**part, "text": Utf8Text(part["text"].encode())} for part in content]}
    return {**message, "content": Utf8Text(content.encode())} if isinstance(content, str) else message


def test_methods_are_those_of_text() -> None:
    """On random texts in random pieces, each gives what `str` gives, or an exception."""
    rng = random.Random(5)
    n_equal = 0
    for _ in range(3000):
        parts = [rng.choice(TEXTS + WORDS) for _ in range(rng.randrange(5))]
        text, utf8 = "".join(parts), Utf8Text(*[part.encode() if rng.random() < 0.7 else part for part in parts])
        word, name = rng.choice(WORDS), rng.choice(["strip", "lstrip", "rstrip", "split", "startswith", "endswith"])
        given = () if name.endswith("strip") and rng.random() < 0.5 else (word,)
        try:
            found = getattr(utf8, name)(*given)
        except NotOnUtf8:
            continue
        expected = getattr(text, name)(*given)
        assert ([*map(str_of, found)] if name == "split" else str_of(found)) == expected
        assert (word in utf8) == (word in text)
        assert (utf8 == word) == (text == word)
        assert bool(utf8) == bool(text)
        n_equal += 1
    assert n_equal > 2000


def test_texts_are_glued() -> None:
    """With and without separators, of both kinds; what is all `str` stays one; many pieces become one."""
    utf8 = Utf8Text("é".encode())
    assert joined(["a", "b"], "\n") == "a\nb"
    assert str_of(joined(["a", utf8, "b"], "\n")) == "a\né\nb"
    assert utf8_of(["a", utf8, glued([utf8, "!"])]) == "aéé!".encode()
    long = utf8
    for _ in range(3 * MAX_PIECES):
        long = glued([long, "x"])
    assert str_of(long) == "é" + "x" * 3 * MAX_PIECES
    with pytest.raises(NotOnUtf8):
        glued([utf8, 5])  # type: ignore[list-item]
    with pytest.raises(UnicodeEncodeError):
        utf8_of([utf8, "\ud800"])


def test_nothing_shows_it_by_accident() -> None:
    """It cannot be printed, hashed, counted or gone through: such code was written for `str`."""
    text = Utf8Text(b"secret")
    for use in (str, repr, len, iter, int, float, hash, "{}".format, list):
        with pytest.raises((NotOnUtf8, TypeError)):
            use(text)


def test_the_budget_is_one_for_both_tries() -> None:
    """A template that needs `str` late does not get its CPU time twice."""
    now = 0

    def clock() -> int:
        nonlocal now
        now += 400_000_000
        return now

    source = "{% for i in range(2000) %}{{ '' }}{% endfor %}{{ messages[0].content | upper }}"
    template = ChatTemplate({"default": source}, {}, clock)
    assert template.render([{"role": "user", "content": "a"}]) == "A"
    with pytest.raises(ChatTemplateError, match="CPU time"):
        template.render_utf8([{"role": "user", "content": Utf8Text(b"a")}])
    assert isinstance(Sandbox.printed(Utf8Text(b"a")), Utf8Text)
