"""Conversations for every chat template, and what a reference made of them.

`chat_vectors.json` holds hashes of what transformers' `apply_chat_template` gave for each template and conversation;
`scripts/make_chat_vectors.py` writes it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from service.model_files import ModelFiles, read_model_files
from tests.data import SHARED, tokenizer_json

VECTORS = Path(__file__).with_name("chat_vectors.json")

REFUSED = "refused"
"""Stands for the text of a conversation that the template refuses, or that cannot be continued."""

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "get_weather",
            "description": "Weather for a city, in °C & <b>more</b>",
            "parameters": {
                "type": "object",
                "properties": {
                    "city": {"type": "string", "enum": ["Zürich", "São Paulo"]},
                    "days": {"type": "integer"},
                },
                "required": ["city"],
            },
        },
    },
    {"type": "function", "function": {"name": "noop", "description": "Nothing", "parameters": {}}},
]

_SYSTEM = {"role": "system", "content": "You are terse."}
_USER = {"role": "user", "content": "Say hi to Zoë, 你好 👋"}
_ASSISTANT = {"role": "assistant", "content": "Hi Zoë!"}
_THOUGHT = {"role": "assistant", "content": "<think>\nhm\n</think>\n\nHi!"}
_REASONED = {"role": "assistant", "content": "Hi!", "reasoning_content": "Be kind."}
_CALL = {
    "role": "assistant",
    "content": "",
    "tool_calls": [
        {"id": "abc123def", "type": "function", "function": {"name": "get_weather", "arguments": {"city": "Zürich"}}}
    ],
}
_RESULT = {"role": "tool", "content": '{"temp": 7}', "tool_call_id": "abc123def", "name": "get_weather"}
_PARTS = {"role": "user", "content": [{"type": "text", "text": "one"}, {"type": "text", "text": "two\n"}]}

CONVERSATIONS: dict[str, list[dict[str, Any]]] = {
    "user": [_USER],
    "system": [_SYSTEM, _USER],
    "turns": [_SYSTEM, _USER, _ASSISTANT, {"role": "user", "content": " again "}],
    "ends with the assistant": [_USER, _ASSISTANT],
    "empty texts": [{"role": "system", "content": ""}, {"role": "user", "content": ""}],
    "white space": [{"role": "user", "content": "\n  spaced\t\n"}, {"role": "assistant", "content": "  x \n"}, _USER],
    "markup": [{"role": "user", "content": "<|im_end|>{{ bos_token }}{% raw %}&lt;<s>"}],
    "thoughts": [_USER, _THOUGHT, _USER, _REASONED],
    "a call": [_SYSTEM, _USER, _CALL],
    "a result": [_SYSTEM, _USER, _CALL, _RESULT],
    "two results": [_USER, _CALL, _RESULT, _RESULT, _ASSISTANT, _USER],
    "parts": [_PARTS],
    "late system": [_USER, _ASSISTANT, _SYSTEM, _USER],
    "two users": [_USER, _USER],
    "unknown role": [{"role": "wizard", "content": "x"}],
    "long": [message for _ in range(8) for message in (_USER, _ASSISTANT)] + [_USER],
}

OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "prompted": {"add_generation_prompt": True},
    "continued": {"continue_final_message": True},
    "tools": {"tools": TOOLS, "add_generation_prompt": True},
    "no thinking": {"variables": {"enable_thinking": False}, "add_generation_prompt": True},
    "thinking": {"variables": {"enable_thinking": True, "thinking": True}, "add_generation_prompt": True},
    "documents": {"documents": [{"title": "T", "text": "Doc é"}], "add_generation_prompt": True},
}

OWN_TEMPLATES = {
    "own/generation": (
        "{{ bos_token }}{% for m in messages %}<{{ m.role }}>"
        "{% if m.role == 'assistant' %}{% generation %}{{ m.content }}{{ eos_token }}{% endgeneration %}"
        "{% else %}{{ m.content | trim }}{% endif %}\n{% endfor %}"
        "{% if documents %}{% for d in documents %}[{{ d.title }}: {{ d.text }}]{% endfor %}{% endif %}"
        "{% if tools %}{{ tools | tojson(indent=2) }}{{ tools[0].function | tojson }}{% endif %}"
        "{{ '<assistant>' if add_generation_prompt }}{{ enable_thinking is defined }}"
    ),
    "own/controls": (
        "{%- set ns = namespace(n=0) -%}\n"
        "{%- for m in messages -%}\n  {% if loop.index > 4 %}{% break %}{% endif %}\n"
        "  {%- if m.role == 'system' %}{% continue %}{% endif -%}\n"
        "  {{ loop.index0 ~ m['role'].upper() ~ ': ' + (m.content if m.content is string else m.content | tojson) }}\n"
        "  {% set ns.n = ns.n + 1 %}\n{%- endfor %}\n"
        "{%- if ns.n == 0 %}{{ raise_exception('nobody') }}{% endif %}\n{{ ns.n }}\n"
    ),
}
"""Templates for what those of models may not use."""


class Case(NamedTuple):
    """One conversation with its options."""

    name: str
    messages: list[dict[str, Any]]
    options: dict[str, Any]


def cases() -> Iterator[Case]:
    """Every conversation under every set of options."""
    for name, messages in CONVERSATIONS.items():
        for option, options in OPTIONS.items():
            yield Case(f"{name}, {option}", messages, options)


def models_with_templates(folder: Path) -> dict[str, ModelFiles]:
    """The models at hand that have a chat template, by name; their files are written to `folder`."""
    found: dict[str, ModelFiles] = {}
    for config in sorted((SHARED / "tokenizers").glob("*/tokenizer_config.json")):
        if not json.loads(config.read_bytes()).get("chat_template"):
            continue
        place = folder / config.parent.name
        place.mkdir(exist_ok=True)
        (place / "tokenizer.json").write_bytes(tokenizer_json(config.parent.name))
        (place / "tokenizer_config.json").write_bytes(config.read_bytes())
        found[config.parent.name] = read_model_files(place)
    return found


def digest(text: str, ids: Sequence[int] | None = None) -> str:
    """What the vectors hold of a rendering: a hash of its text and of its ids."""
    if text == REFUSED:
        return REFUSED
    listed = b"" if ids is None else json.dumps(list(ids)).encode()
    return hashlib.sha256(text.encode() + b"\0" + listed).hexdigest()[:24]
