"""Members that the code of a template reads in place are those that the sandbox would have found."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from typing import Any

import pytest
from jinja2.compiler import CodeGenerator
from jinja2.utils import Namespace

from service.chat_objects import PacedItems
from service.chat_sandbox import Sandbox
from service.errors import ChatTemplateError


class PlainSandbox(Sandbox):
    """The sandbox with Jinja's own code generator: every member is asked for."""

    code_generator_class = CodeGenerator


class Text(str):
    """A string that is no plain one."""

    shout = "loud"


class Record(dict[str, Any]):
    """A dict that is no plain one."""

    role = "attribute"


ADDRESS = re.compile(" at 0x[0-9a-f]+")
"""Differs between two renderings."""
NAMES = (
    "role", "content", "items", "get", "keys", "upper", "format", "format_map", "strip", "__class__", "_private",
    "index", "index0", "first", "last", "length", "depth", "previtem", "cycle", "changed", "shout", "nothing",
)  # fmt: skip
VALUES: tuple[Callable[[], Any], ...] = (
    lambda: {"role": "user", "content": "a\u00e9 ", "items": 3, "index": "i", "last": None},
    lambda: {"role": {"role": None, "first": 1}, "__class__": "c", "_private": "p", 0: "zero"},
    lambda: {},
    lambda: Record(role="item", content="c", index0=9),
    lambda: "some Text {0}",
    lambda: Text("other"),
    lambda: ["a", {"role": "x"}],
    lambda: None,
    lambda: 7,
    lambda: 2.5,
    lambda: True,
)
PLACES = (
    "{{{{ {} }}}}",
    "{{% if {} is defined %}}{{{{ {} is callable }}}}{{% else %}}none{{% endif %}}",
    "{{% for i in [1, 2] %}}{{{{ {} is none }}}}{{% endfor %}}",
    "{{% macro m(x) %}}{{{{ x }}}}{{% endmacro %}}{{{{ m({}) }}}}",
    "{{% set y = {} %}}{{{{ y }}}}",
    "{{% for z in [x] if {} %}}{{{{ z is string }}}}{{{{ {} }}}}{{% endfor %}}",
    "{{{{ [{}, {}] | length }}}}",
)


def outcome(environment: Sandbox, source: str, **variables: Any) -> Any:
    """What a template renders, or the kind and words of its failure."""
    environment.start()
    try:
        return ADDRESS.sub("", environment.from_string(source).render(**variables))
    except Exception as error:
        return type(error), str(error)


@pytest.mark.parametrize("make", VALUES)
def test_members_of_every_kind_of_value(make: Callable[[], Any]) -> None:
    """By attribute and by item, in every kind of place, of values that have the member, lack it, or hide it."""
    generated = random.Random(0)
    ours, plain = Sandbox(), PlainSandbox()
    for name in NAMES:
        for way in (f"x.{name}", f"x['{name}']", f"x.{name}.{name}", f"x['{name}'].role", f"x.role['{name}']"):
            place = generated.choice(PLACES)
            source = place.format(way, way)
            assert outcome(ours, source, x=make()) == outcome(plain, source, x=make()), source


@pytest.mark.parametrize("make", VALUES)
def test_members_that_are_only_asked_for(make: Callable[[], Any]) -> None:
    """In conditions, and in the question whether they are defined, where a member that is missing takes no object."""
    ours, plain = Sandbox(), PlainSandbox()
    for name in NAMES:
        by_name, by_key = f"x.{name}", f"x['{name}']"
        for source in (
            f"{{% if {by_name} %}}a{{% elif not {by_key} %}}b{{% else %}}c{{% endif %}}",
            f"{{% if {by_name} and x.role or not ({by_key} and x.role) %}}a{{% endif %}}{{{{ {by_name} or 'd' }}}}",
            f"{{% if {by_name} == 'c' or {by_key}.role %}}a{{% elif {by_key} %}}b{{% endif %}}",
            f"{{{{ {by_name} is defined }}}}{{{{ {by_key} is defined }}}}{{{{ {by_key} is not defined }}}}",
            f"{{% if {by_name} is defined and {by_key} is not none %}}a{{% endif %}}{{{{ {by_name}.role is none }}}}",
            f"{{% set y = {{'{name}': nothing}} %}}{{{{ y.{name} is defined }}}}{{% if y['{name}'] %}}a{{% endif %}}",
        ):
            assert outcome(ours, source, x=make()) == outcome(plain, source, x=make()), source


def test_namespaces_are_as_jinjas() -> None:
    """Made of mappings, pairs and names, read, set and shown."""
    ours, plain = Sandbox(), Sandbox()
    plain.globals["namespace"] = Namespace
    for source in (
        "{% set n = namespace() %}{% set n.a = 1 %}{% set n.a = n.a + 1 %}{{ n.a }}{{ n.b is defined }}{{ n }}",
        "{% set n = namespace({'a': 1, 2: 3}, b='x') %}{{ n.a }}{{ n.b }}{{ n['a'] }}{{ n.items is defined }}{{ n }}",
        "{% set n = namespace([('a', 5)]) %}{{ n.a }}{% if n.c %}c{% endif %}{{ n is mapping }}{{ n | length }}",
        "{% set n = namespace(1) %}",
        "{% set n = namespace(a=[]) %}{% for i in [1, 2] %}{% set n.a = n.a + [i] %}{% endfor %}{{ n.a }}",
        "{{ namespace() | tojson }}",
    ):
        said = str(outcome(ours, source)).replace("TemplateNamespace", "Namespace")
        assert said == str(outcome(plain, source)), source


def test_loops_of_every_length_are_paced() -> None:
    """Each round counts, those of a short list before the first one; nothing else of the loop changes."""
    ticks: list[int] = []
    for n in (0, 1, 4, 5):
        paced = PacedItems([*range(n)], ticks.append, 4)
        assert [*paced] == [*range(n)]
        assert len(paced) == n
    assert ticks == [0, 1, 4, *[1] * 5]
    assert [*PacedItems({"a": 1}, ticks.append, 4)] == ["a"]
    assert ticks[-1] == 1


@pytest.mark.parametrize("key", ["{}", "{0}", "%s", "it's", '"', "\\", "a\nb", "\u00e9", "\U0001f600", "", " ", "t_1"])
def test_keys_of_every_kind(key: str) -> None:
    """A key is a key, whatever it would mean elsewhere."""
    ours, plain = Sandbox(), PlainSandbox()
    for x in ({key: "there", "a": {key: 1}}, {}, [key], key):
        for source in (
            f"{{{{ x[{key!r}] }}}}",
            f"{{{{ x.a[{key!r}] is defined }}}}",
            f"{{{{ {{{key!r}: 5}}[{key!r}] }}}}",
        ):
            assert outcome(ours, source, x=x) == outcome(plain, source, x=x), source
    assert outcome(ours, f"{{{{ x[{key!r}] }}}}", x={key: "there"}) == "there"


@pytest.mark.parametrize("name", NAMES)
def test_members_of_loops_and_namespaces(name: str) -> None:
    """The loop's own variables, in nested loops too, and a variable that is called like them."""
    ours, plain = Sandbox(), PlainSandbox()
    for source in (
        f"{{% for x in 'abc' %}}{{{{ loop.{name} }}}}{{{{ loop['{name}'] }}}}{{% endfor %}}",
        f"{{% for x in 'ab' %}}{{% for y in x %}}{{{{ loop.{name} is defined }}}}{{% endfor %}}{{% endfor %}}",
        f"{{% for x in 'ab' %}}{{% set outer = loop %}}{{% for y in 'cd' %}}{{{{ outer.{name} is callable }}}}"
        "{% endfor %}{% endfor %}",
        f"{{% set loop = {{'{name}': 1}} %}}{{{{ loop.{name} }}}}",
        f"{{% set ns = namespace(role=1, index=2) %}}{{{{ ns.{name} }}}}{{{{ ns['{name}'] }}}}",
        f"{{{{ nothing.{name} }}}}",
        f"{{{{ nothing['{name}'] }}}}",
    ):
        assert outcome(ours, source) == outcome(plain, source), source


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("{{ ' a '.strip() }}{{ 'ab'.startswith('a') }}{{ 'a,b'.split(',') }}", "aTrue['a', 'b']"),
        ("{% for i in [1] %}{{ 'aXb'.lower().replace('x', '-') }}{% endfor %}", "a-b"),
        ("{% block b %}{{ ','.join(['a', 'b']) }}{% endblock %}", "a,b"),
        ("{{ x.upper() }}{{ x.shout }}", "ABloud"),
        ("{{ 'a{}'.format(1) }}{{ '{a}'.format_map({'a': 2}) }}", "a12"),
    ],
)
def test_methods_of_text(source: str, expected: str) -> None:
    """They are called as ever, with what loops and blocks hand on left out."""
    assert outcome(Sandbox(), source, x=Text("ab")) == expected


def test_methods_of_text_are_measured() -> None:
    """As before: a method is no way around the limits."""
    kind, words = outcome(Sandbox(), "{% set f = 'x'.ljust %}{{ f(99999) }}")
    assert kind is ChatTemplateError
    assert "pads" in words
