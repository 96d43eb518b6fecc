"""Templates run within a budget: of CPU time, of characters, of what one operation may make."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from service import chat_sandbox
from service.chat import MAX_REQUEST_TEMPLATE_CHARS, ChatTemplate, request_template
from service.errors import ChatTemplateError

USER = [{"role": "user", "content": "hi"}]


def render(source: str, **options: Any) -> str:
    """Render one template."""
    return ChatTemplate({"default": source}, {}, **options).render(USER)


@pytest.mark.parametrize(
    "source",
    [
        "{% for i in range(90000) %}{% for j in range(90000) %}{% endfor %}{% endfor %}",
        "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(60) }}",
        "{% set x = range(90000) | list %}{% for i in x %}{% for j in x %}{{ loop.last }}{% endfor %}{% endfor %}",
    ],
)
def test_cpu_time_has_a_limit(source: str) -> None:
    """Loops and calls are stopped by the thread's CPU time, whatever they print."""
    seconds = itertools.count()
    with pytest.raises(ChatTemplateError, match="more than 5 s of CPU time"):
        render(source, clock=lambda: next(seconds) * 1_000_000_000)


def test_a_budget_is_for_one_rendering() -> None:
    """Each rendering starts anew: a template does not wear out."""
    now = [0]
    template = ChatTemplate({"default": "{% for i in range(999) %}{% endfor %}done"}, {}, clock=lambda: now[0])
    for _ in range(3):
        assert template.render(USER) == "done"
        now[0] += 9_000_000_000


@pytest.mark.parametrize(
    "source",
    [
        "{{ 'x' * 10 ** 10 }}",
        "{{ 10 ** 10 * ['x'] }}",
        "{{ 9 ** 99999 }}",
        "{% set ns = namespace(x=7) %}{% for i in range(99) %}{% set ns.x = ns.x * ns.x %}{% endfor %}",
        "{% set x = ('f' * 9000) | int(base=16) %}{{ x // (x - 1) }}",
        "{% set x = ('f' * 9000) | int(base=16) %}{{ x is divisibleby(x - 1) }}",
        "{{ '%99999999d' is divisibleby(1) }}",
        "{{ '%99999999d' | format(1) }}",
        "{{ '%*d' | format(99999999, 1) }}",
        "{{ '{:{}}'.format(1, 99999999) }}",
        "{{ '{:*>99999999}'.format(1) }}",
        "{{ '%99999999d' % 1 }}",
        "{{ '%*d' % (99999999, 1) }}",
        "{{ '{:99999999}'.format(1) }}",
        "{{ 'x'.ljust(9999999999) }}",
        "{{ 'x' | center(9999999999) }}",
        "{{ [1] | batch(9999999999, 'x') | list }}",
        "{{ [1] | slice(9999999999) | list }}",
        "{{ [[1]] | tojson(indent=9999999999) }}",
        "{% set x = 'x' * 90000 %}{{ x.replace('', x).replace('x', x) }}",
        "{% set x = 'x' * 90000 %}{{ x | replace('x', x) | length }}",
        "{% set x = 'x' * 90000 %}{{ x.join(range(90000) | list) | length }}",
        "{% set ns = namespace(x='x' * 99) %}{% for i in range(99) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}",
        "{% set ns = namespace(x='x' * 99) %}{% for i in range(99) %}{% set ns.x = ns.x + ns.x %}{% endfor %}",
    ],
)
def test_what_multiplies_is_measured(source: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither at compile time nor at run time does an operation make more than the limit, or twice it for a moment."""
    monkeypatch.setattr(chat_sandbox, "MAX_RENDERED_CHARS", 1 << 20)
    with pytest.raises(ChatTemplateError):
        render(source)


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("{% for m in messages %}{{ loop.length }}{{ loop.last }}{{ loop.revindex }}{% endfor %}", "1True1"),
        ("{% for k, v in {'a': 1, 'b': 2}.items() %}{{ k }}{{ v }}{{ loop.length }}{% endfor %}", "a12b22"),
        ("{% for i in range(5) if i % 2 %}{{ i }}{{ loop.length }}{% else %}-{% endfor %}", "1232"),
        ("{% for x in nothing %}x{% else %}none{% endfor %}", "none"),
        ("{% for x in [1, [2, [3]]] recursive %}{{ loop(x) if x is sequence else x }}{% endfor %}", "123"),
        ("{% for c in 'abc' | map('upper') %}{{ c }}{{ loop.nextitem or '.' }}{% endfor %}", "ABBCC."),
        ("{{ '20260101 {:*>3}'.format(1) }}{{ 'x' if '{'.format }}", "20260101 **1x"),
        (
            "{{ 7 // 2 }}{{ 8 is divisibleby(4) }}{{ '%s-%02d' | format('a', 7) }}{{ '{:>3}{{}}'.format(1) }}",
            "3Truea-07  1{}",
        ),
        ("{{ 'a' ~ 1 ~ none ~ 'b' }}{{ 2 ** 8 }}{{ 7 % 4 }}{{ '%s-%02d' % ('a', 7) }}", "a1Noneb2563a-07"),
        (
            "{{ {'a': 1}.a }}{{ {'b': 2}.a is defined }}{{ {'items': 3}.items is callable }}{{ {'x': none}.x }}",
            "1FalseTrueNone",
        ),
        ("{% set ns = namespace(a=1) %}{{ ns.a }}{{ ns.b is defined }}{{ ns.__class__ is defined }}", "1FalseFalse"),
        (
            "{% for i in 'ab' %}{{ loop.index }}{{ loop.none is defined }}{{ loop.cycle('x', 'y') }}{% endfor %}",
            "1Falsex2Falsey",
        ),
        ("{{ {}.__class__ is defined }}{{ messages.append is defined }}{{ 'a'.upper() }}", "FalseFalseA"),
        ("{{ 'abcab' | replace('ab', 'x') }}{{ 'aaa'.replace('a', 'bb', 1) }}{{ 'a' | center(3) }}.", "xcxbbaa a ."),
        ("{{ '{}-{:>3}'.format(1, 2) }}{{ [1, 2] + [3] }}{{ 'x' * 3 }}", "1-  2[1, 2, 3]xxx"),
    ],
)
def test_what_the_hooks_leave_as_it_is(source: str, expected: str) -> None:
    """Loops, operators and filters mean what they mean without the hooks."""
    assert render(source) == expected


def test_templates_of_requests() -> None:
    """They are compiled once, and a long one is refused before that."""
    first = request_template("{{ bos_token }}{{ messages[0].content }}", {"bos_token": "<s>"})
    assert first.render(USER) == "<s>hi"
    assert request_template("{{ bos_token }}{{ messages[0].content }}", {"bos_token": "<s>"}) is first
    assert request_template("{{ bos_token }}{{ messages[0].content }}", {"bos_token": "<b>"}).render(USER) == "<b>hi"
    with pytest.raises(ChatTemplateError, match="at most"):
        request_template("x" * (MAX_REQUEST_TEMPLATE_CHARS + 1), {})


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("{{ 'a' + messages[0].content + 'b' + 'c' }}", "ahibc"),
        ("{{ 1 + 2 + 3.5 }}", "6.5"),
        ("{{ 'a' + ('b' + 'c') + 'd' }}", "abcd"),
        ("{{ 10 - (1 + 2) + 4 }}", "11"),
        ("{{ [1] + [2] + [3] }}", "[1, 2, 3]"),
        ("{{ ('a' + 'b') * 2 + 'c' ~ 1 + 'd' }}", "ababc1d"),
        ("{{ ['a', 'b'] | join('-') + 'c' }}", "a-bc"),
    ],
)
def test_sums(source: str, expected: str) -> None:
    """A chain of `+` is what it is in Python, from left to right."""
    assert render(source) == expected


@pytest.mark.parametrize("source", ["{{ 'a' + 1 + 'b' }}", "{{ 'a' + 'b' + none }}", "{{ 'a' + messages[0].x + 'b' }}"])
def test_sums_that_fail(source: str) -> None:
    """What cannot be added is an error, also where all else is text."""
    with pytest.raises(ChatTemplateError, match="at line 1"):
        render(source)


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        (
            "{{ 'hi' in messages[0].content }}{{ 'ha' in messages[0].content }}{{ '' in 'a' }}{{ 'h' in 'hi' }}",
            "TrueFalseTrueTrue",
        ),
        ("{{ 'ih' in 'hi' }}{{ 'hi' not in 'hi' }}{{ 'xy' not in 'hi' }}{{ not 'hi' in 'hi' }}", "FalseFalseTrueFalse"),
        (
            "{{ 'ab' in ['a', 'ab'] }}{{ 'ab' in ['abc'] }}{{ 'ab' in {'ab': 1} }}{{ 'ab' not in ('cd',) }}",
            "TrueFalseTrueTrue",
        ),
        (
            "{{ 'ab' in nothing }}{{ 'ab' in range(3) }}{{ 1 in [1] }}{{ '</\u00e9' in 'x</\u00e9' }}",
            "FalseFalseTrueTrue",
        ),
        ("{{ 'ab' in 'cab' in ['cab'] }}{{ 'ab' in ('c' ~ 'ab') | upper }}{{ ('ab' in 'ab') | int }}", "TrueFalse1"),
        ("{% for x in ['ab', 'cd'] if 'ab' in x %}{{ x }}{% endfor %}{{ 'y' if 'cd' in 'abcd' else 'n' }}", "aby"),
    ],
)
def test_membership(source: str, expected: str) -> None:
    """What is in what is Python's, for text, lists, objects, chains, and what is not there."""
    assert render(source) == expected


@pytest.mark.parametrize("source", ["{{ 'ab' in none }}", "{{ 'ab' in 3 }}", "{{ 'ab' not in true }}"])
def test_membership_that_fails(source: str) -> None:
    """It does so with its line, as ever."""
    with pytest.raises(ChatTemplateError, match="failed at line 1: TypeError"):
        render(source)
