"""Members that the code of a template reads in place are those that the sandbox would have found."""

from __future__ import annotations

import random
import re
from collections.abc import Callable
from typing import Any

import pytest
from jinja2.compiler import CodeGenerator

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
