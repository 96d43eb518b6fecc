"""Chat templates render what Hugging Face's `apply_chat_template` does, and fail without quoting the conversation."""

from __future__ import annotations

import re
import threading
from typing import Any

import pytest

from service import chat
from service.chat import ChatTemplate
from service.errors import ChatTemplateError

USER = {"role": "user", "content": "Zoë says \"hi\" & <b>'bye'</b>"}


def render(source: str, messages: list[dict[str, Any]] | None = None, **options: Any) -> str:
    """Render one template with a few special tokens."""
    template = ChatTemplate({"default": source}, {"bos_token": "<s>", "eos_token": "</s>"})
    return template.render([USER] if messages is None else messages, **options)


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("{{ bos_token }}{{ messages[0].role }}{{ eos_token }}", "<s>user</s>"),
        ("{{ messages[0]['content'] }}", USER["content"]),
        ("  {% if true %}\nx\n  {% endif %}\ny", "x\ny"),
        ("a {%- if true -%} b {%- endif -%} c", "abc"),
        ("{% for i in range(9) %}{% if i == 3 %}{% break %}{% endif %}{{ i }}{% endfor %}", "012"),
        ("{% for i in range(4) %}{% if i == 1 %}{% continue %}{% endif %}{{ i }}{% endfor %}", "023"),
        ("{% set ns = namespace(n=1) %}{% for i in [1] %}{% set ns.n = 5 %}{% endfor %}{{ ns.n }}", "5"),
        ("a{% generation %}b{{ messages[0].role }}{% endgeneration %}c", "abuserc"),
        ("{% set x = 1 %}{% generation %}{% set x = 2 %}{% endgeneration %}{{ x }}", "1"),
        ("{{ nothing }}|{{ nothing is defined }}|{{ tools }}|{{ documents }}", "|False|None|None"),
        ("{{ messages[0].content | upper | trim | length > 3 }}", "True"),
        ("{{ 'x' * 3 + 'y' }}{{ 'a,b'.split(',')[1] }}{{ ' z '.strip() }}", "xxxybz"),
    ],
)
def test_the_language(source: str, expected: str) -> None:
    """Trimmed blocks, loop controls, namespaces, generation blocks, string methods, undefined as nothing."""
    assert render(source) == expected


@pytest.mark.parametrize(
    ("filtered", "expected"),
    [
        ("x | tojson", '{"b": "é<&>\'", "a": [1, 2.5, null, true]}'),
        ("x | tojson(ensure_ascii=True)", '{"b": "\\u00e9<&>\'", "a": [1, 2.5, null, true]}'),
        ("x | tojson(sort_keys=true)", '{"a": [1, 2.5, null, true], "b": "é<&>\'"}'),
        ("x.a | tojson(indent=2)", "[\n  1,\n  2.5,\n  null,\n  true\n]"),
        ("x | tojson(separators=(',', ':'))", '{"b":"é<&>\'","a":[1,2.5,null,true]}'),
    ],
)
def test_tojson(filtered: str, expected: str) -> None:
    """JSON as Python's `json` writes it: nothing is escaped for HTML, and its own options work."""
    value = {"b": "é<&>'", "a": [1, 2.5, None, True]}
    assert render("{{ " + filtered + " }}", variables={"x": value}) == expected


def test_strftime_now() -> None:
    """Templates can print today's date."""
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", render("{{ strftime_now('%Y-%m-%d') }}"))


def test_variables() -> None:
    """Variables reach the template and win over special tokens; names with a field of their own cannot be set."""
    source = "{{ bos_token }}|{{ thinking }}|{{ messages | length }}|{{ add_generation_prompt }}"
    variables = {
        "bos_token": "B",
        "thinking": False,
        "messages": [],
        "add_generation_prompt": "no",
        "chat_template": "x",
    }
    assert render(source, add_generation_prompt=True, variables=variables) == "B|False|1|True"


def test_tools_and_documents() -> None:
    """Tools and documents are variables, and a template named `tool_use` is taken whenever there are tools."""
    template = ChatTemplate({"default": "D{{ documents }}", "tool_use": "T{{ tools | tojson }}"}, {})
    assert template.render([USER], documents=[1]) == "D[1]"
    assert template.render([USER], tools=[{"a": 1}]) == 'T[{"a": 1}]'
    assert template.render([USER], tools=[]) == "T[]"


def test_no_default_template() -> None:
    """Named templates without a default serve only what they are named for; the error lists them."""
    template = ChatTemplate({"tool_use": "T", "rag": "R"}, {})
    assert template.render([USER], tools=[]) == "T"
    with pytest.raises(ChatTemplateError, match=r"\['rag', 'tool_use'\]"):
        template.render([USER])


def test_keys_without_a_value_are_left_out() -> None:
    """A key whose value is None is not there for the template, as for transformers."""
    source = "{{ messages[0].tool_calls is defined }}{{ messages[0] | tojson }}"
    assert (
        render(source, [{"role": "user", "tool_calls": None, "content": ""}]) == 'False{"role": "user", "content": ""}'
    )


@pytest.mark.parametrize("name", ["reasoning", "reasoning_content", "thinking"])
def test_reasoning_has_the_names_that_templates_read(name: str) -> None:
    """However a caller names a message's reasoning, `reasoning_content` and `thinking` hold it."""
    source = "{{ messages[0].reasoning_content }}{{ messages[0].thinking }}"
    assert render(source, [{"role": "assistant", "content": "x", name: "R"}]) == "RR"


def test_messages_are_not_changed() -> None:
    """Rendering leaves the caller's messages as they were, also when the last one is continued."""
    messages = [{"role": "assistant", "content": [{"type": "text", "text": "x"}], "reasoning": "r"}]
    render("{{ messages[0].content[0].text }}", messages, continue_final_message=True)
    assert messages == [{"role": "assistant", "content": [{"type": "text", "text": "x"}], "reasoning": "r"}]


CONTINUED = "{% for m in messages %}<{{ m.role }}>{{ m.content }}</{{ m.role }}>{% endfor %}"
TRIMMED = "{% for m in messages %}<{{ m.role }}>{{ m.content | trim }}</{{ m.role }}>{% endfor %}"
PARTS = (
    "{% for m in messages %}<{{ m.role }}>{% for c in m.content %}{{ c.text }}{% endfor %}</{{ m.role }}>{% endfor %}"
)


@pytest.mark.parametrize(
    ("source", "content", "expected"),
    [
        (CONTINUED, "Hi Zo", "<user>q</user><assistant>Hi Zo"),
        (CONTINUED, "Hi Zo ", "<user>q</user><assistant>Hi Zo "),
        (TRIMMED, " Hi Zo ", "<user>q</user><assistant>Hi Zo"),
        (CONTINUED, "", "<user>q</user><assistant>"),
        (CONTINUED, "q", "<user>q</user><assistant>q"),
        (CONTINUED, "</assistant>", "<user>q</user><assistant></assistant>"),
        (PARTS, [{"text": "a"}, {"text": "b"}, {"type": "image"}], "<user></user><assistant>ab"),
    ],
)
def test_the_final_message_is_continued(source: str, content: Any, expected: str) -> None:
    """The text ends where the final message ends; space that the template trims is cut."""
    messages = [{"role": "user", "content": "q"}, {"role": "assistant", "content": content}]
    assert render(source, messages, continue_final_message=True) == expected


@pytest.mark.parametrize(
    ("source", "message", "reason"),
    [
        ("x", {"role": "a", "content": "hello"}, "drops the final message"),
        ("{{ messages[0].content | upper }}", {"role": "a", "content": "hello"}, "drops the final message"),
        ("x", {"role": "a"}, "no text to continue"),
        ("x", {"role": "a", "content": [{"type": "image"}]}, "no text to continue"),
    ],
)
def test_what_cannot_be_continued(source: str, message: dict[str, Any], reason: str) -> None:
    """A template that loses the final message, or a message without text, is refused; the text is not quoted."""
    with pytest.raises(ChatTemplateError, match=reason) as caught:
        render(source, [message], continue_final_message=True)
    assert "hello" not in str(caught.value).lower()


def test_both_flags() -> None:
    """A message cannot be continued and answered at once."""
    with pytest.raises(ChatTemplateError, match="Cannot set both"):
        render("x", continue_final_message=True, add_generation_prompt=True)


def test_an_empty_conversation() -> None:
    """There is nothing to render without messages."""
    with pytest.raises(ChatTemplateError, match="empty conversation"):
        render("x", [])


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("{{ raise_exception('Roles must alternate!') }}", "Roles must alternate!"),
        ("{{ raise_exception('Unknown role: ' + messages[0].content) }}", "Unknown role: ..."),
        ("{{ raise_exception(messages[0].content) }}", "The chat template refuses the conversation."),
        ("\n{{ messages[0].content.nothing.more }}", "The chat template failed at line 2: UndefinedError."),
        ("{{ nothing | tojson }}", "The chat template failed at line 1: TypeError."),
        ("{{ messages[0].content + 1 }}", "The chat template failed at line 1: TypeError."),
        ("{{ {}[messages[0].content].x }}", "The chat template failed at line 1: UndefinedError."),
        ("{{ messages.append(1) }}", "The chat template failed at line 1: SecurityError."),
        ("{{ messages.__class__.__mro__ }}", "The chat template failed at line 1: SecurityError."),
        ("{{ range(1000000) | list }}", "The chat template failed at line 1: OverflowError."),
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "The conversation is nested too deeply"),
    ],
)
def test_failures_never_quote_the_conversation(source: str, reason: str) -> None:
    """The template's own words come through, and the kind and line of a failure; the conversation does not."""
    with pytest.raises(ChatTemplateError) as caught:
        render(source, [{"role": "user", "content": "SECRET"}])
    assert str(caught.value).startswith(reason)
    assert "SECRET" not in str(caught.value)


def test_deep_values_are_refused_not_fatal() -> None:
    """A value nested deeper than the template's filters can walk is the caller's fault."""
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(ChatTemplateError, match="nested too deeply"):
        render("{{ x | tojson }}", variables={"x": deep})


def test_output_has_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """A template that multiplies its input is stopped while it renders."""
    source = "{% for i in range(1000) %}{{ messages[0].content }}{% endfor %}"
    message = [{"role": "user", "content": "x" * 1000}]
    assert len(render(source, message)) == 1_000_000
    monkeypatch.setattr(chat, "MAX_RENDERED_CHARS", 999_999)
    with pytest.raises(ChatTemplateError, match="over 999999 characters"):
        render(source, message)


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("\n{% if %}", "'default', line 2"),
        ("{{ x", "line 1"),
        ("{% nosuch %}", "line 1"),
        ("{{ x | nosuch }}", "line 1"),
        ("{% if a %}" + "{% elif a %}" * 6000 + "{% endif %}", "'default' does not compile"),
    ],
)
def test_broken_templates_are_found_at_load(source: str, reason: str) -> None:
    """A template that does not compile names itself and the line."""
    with pytest.raises(ChatTemplateError, match=reason):
        ChatTemplate({"default": source}, {})


LOOP = "{{% for m in {} %}}{{% for c in {} %}}{{{{ c }}}}{{% endfor %}}{{% endfor %}}"
MACRO = "{% macro f(x) %}{% for c in x %}{{ c }}{% endfor %}{% endmacro %}"


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("{% for m in messages %}{{ m.content }}{% endfor %}", False),
        ("{% for m in messages %}{% for c in m.content %}{{ c }}{% endfor %}{% endfor %}", True),
        ("{% for m in messages %}{% for c in m['content'] %}{{ c }}{% endfor %}{% endfor %}", True),
        ("{% for m in messages[1:] %}{% for c in m.content | list %}{{ c }}{% endfor %}{% endfor %}", True),
        ("{% set rest = messages[1:] %}{% for m in rest %}{% for c in m.content %}{% endfor %}{% endfor %}", True),
        (
            "{% set ns = namespace(r=messages) %}{% for m in ns.r %}{% for c in m.content %}{% endfor %}{% endfor %}",
            True,
        ),
        ("{% set n = namespace() %}{% set n.r = messages %}" + LOOP.format("n.r", "m.content"), True),
        ("{% for m in messages %}{% set content = m.content %}{% for c in content %}{% endfor %}{% endfor %}", True),
        (MACRO + "{% for m in messages %}{{ f(m.content) }}{% endfor %}", True),
        (MACRO + "{% for m in messages %}{{ f(x=m.content) }}{% endfor %}", True),
        (MACRO + "{% for m in messages %}{{ f(m.role) }}{% endfor %}", False),
        ("{% macro f(content) %}{% for c in content %}{% endfor %}{% endmacro %}{{ f(tools) }}", False),
        ("{% for m in other %}{% for c in m.content %}{% endfor %}{% endfor %}", False),
        ("{% for m in messages %}{% for c in m.tool_calls %}{% endfor %}{% endfor %}", False),
    ],
)
def test_which_templates_take_parts(source: str, expected: bool) -> None:
    """A template takes content as parts when it loops over it, directly, through a variable or in a macro."""
    assert ChatTemplate({"default": source}, {}).wants_parts() is expected


def test_one_template_serves_many_threads() -> None:
    """Renderings at the same time do not mix."""
    template = ChatTemplate({"default": "{% for m in messages %}{{ m.content }}{% endfor %}"}, {})
    wrong: list[str] = []

    def work(name: str) -> None:
        for _ in range(200):
            if (text := template.render([{"role": "user", "content": name}] * 5)) != name * 5:
                wrong.append(text)

    threads = [threading.Thread(target=work, args=(str(i),)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
