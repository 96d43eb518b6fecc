"""vLLM's dialect: recorded answers byte for byte, conversations as templates see them, lenient fields."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest
from tokenizers import pre_tokenizers

from dispatcher.request import EncodedDocument, EncodeOptions
from service.dialects import vllm
from service.id_array import IDS_PER_PIECE
from service.registry import Registry
from tests.service.small_model import documents_of, head_of, registry_of, send, write_model

BOS = 256


def ids(text: str) -> list[int]:
    """The ids of text under the small tokenizer: the rank of each byte's symbol."""
    rank = {symbol: i for i, symbol in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    symbols = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False).pre_tokenize_str(text)
    return [rank[symbol] for symbol in (symbols[0][0] if symbols else "")]


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Registry:
    """One small model with a chat template."""
    return registry_of(f"small={write_model(tmp_path_factory.mktemp('small'))}", alias=("other=small",))


@pytest.fixture(scope="module")
def tokenize(registry: Registry) -> vllm.Tokenize:
    """The endpoint."""
    return vllm.Tokenize(registry)


@pytest.fixture(scope="module")
def detokenize(registry: Registry) -> vllm.Detokenize:
    """The endpoint."""
    return vllm.Detokenize(registry)


def test_a_prompt(tokenize: vllm.Tokenize) -> None:
    """Special tokens are added unless refused; strings come on request; keys stand in vLLM's order."""
    answer = send(tokenize, {"model": "small", "prompt": "é!"})
    expected = [BOS, *ids("é!")]
    assert answer.status == 200
    assert answer.body == orjson.dumps({"count": 4, "max_model_len": 1024, "tokens": expected, "token_strs": None})
    bare = orjson.loads(send(tokenize, {"prompt": "é!", "add_special_tokens": False, "return_token_strs": True}).body)
    assert bare == {"count": 3, "max_model_len": 1024, "tokens": expected[1:], "token_strs": ["Ã", "©", "!"]}


def test_the_embedded_model() -> None:
    """Ids and token strings of the embedded tokenizer; it has no chat template, and says so as vLLM does."""
    endpoint = vllm.Tokenize(registry_of())
    answer = orjson.loads(send(endpoint, {"prompt": "Hello, world!", "return_token_strs": True}).body)
    assert answer["tokens"] == [19923, 14, 2058, 3]
    assert answer["token_strs"] == ["Hello", ",", "Ġworld", "!"]
    assert answer["max_model_len"] == 1048576
    refused = send(endpoint, {"messages": [{"role": "user", "content": "x"}]})
    assert refused.status == 400
    assert orjson.loads(refused.body)["error"]["message"].startswith("As of transformers v4.44, default chat template")


def test_a_conversation(tokenize: vllm.Tokenize) -> None:
    """The template's text is encoded without special tokens unless they are asked for."""
    messages = [{"role": "user", "content": "hi"}]
    text = [*ids("[user]hi"), 257, *ids("[assistant]")]
    assert orjson.loads(send(tokenize, {"messages": messages}).body)["tokens"] == [BOS, *text]
    special = {"messages": messages, "add_special_tokens": True, "add_generation_prompt": False}
    assert orjson.loads(send(tokenize, special).body)["tokens"] == [BOS, BOS, *text[: -len("[assistant]")]]


@pytest.mark.parametrize(
    ("message", "expected"),
    [
        ({"role": "user"}, {"role": "user", "content": ""}),
        ({"role": "user", "content": None, "x": 1}, {"role": "user", "content": ""}),
        ({"content": ["a", {"type": "text", "text": "b"}], "role": "user"}, {"role": "user", "content": "a\nb"}),
        (
            {"role": "user", "content": [{"type": "text", "text": ""}, {"type": "refusal", "refusal": "b"}]},
            {"role": "user", "content": "b"},
        ),
        ({"role": "wizard", "content": "x", "name": "n"}, {"role": "wizard", "content": "x", "name": "n"}),
        ({"role": "tool", "content": "x", "tool_call_id": "1"}, {"role": "tool", "content": "x", "tool_call_id": "1"}),
        ({"role": "user", "content": "x", "tool_call_id": "1"}, {"role": "user", "content": "x"}),
        ({"role": "assistant", "content": "x", "tool_calls": []}, {"role": "assistant", "content": "x"}),
        (
            {"role": "assistant", "content": "x", "reasoning": "r", "reasoning_content": "dropped"},
            {"thinking": "r", "role": "assistant", "content": "x", "reasoning": "r", "reasoning_content": "r"},
        ),
        (
            {"role": "system", "content": "x-anthropic-billing-header: 1\nrest"},
            {"role": "system", "content": "rest"},
        ),
        (
            {
                "role": "assistant",
                "tool_calls": [{"type": "function", "function": {"name": "f", "arguments": '{"b":1}'}, "id": "1"}],
            },
            {
                "role": "assistant",
                "content": "",
                "tool_calls": [{"id": "1", "function": {"arguments": {"b": 1}, "name": "f"}, "type": "function"}],
            },
        ),
        (
            {"role": "assistant", "tool_calls": [{"id": "1", "function": {"name": "f", "arguments": "[1"}}]},
            {
                "role": "assistant",
                "content": "",
                "tool_calls": [{"id": "1", "function": {"arguments": {}, "name": "f"}}],
            },
        ),
        ({"role": "developer", "content": "x"}, {"role": "system", "content": "x"}),
    ],
)
def test_messages_as_templates_see_them(tmp_path: Path, message: Any, expected: Any) -> None:
    """Fields are picked, ordered and parsed as vLLM does it, also where a template prints a whole message."""
    template = "{% for m in messages %}{{ m | tojson }}{% endfor %}"
    folder = write_model(tmp_path / "m", tokenizer_config={"chat_template": template})
    endpoint = vllm.Tokenize(registry_of(f"m={folder}"))
    assert documents_of(endpoint, {"messages": [message]}) == [json.dumps(expected, ensure_ascii=False)]


def test_parts_and_tools_as_templates_see_them(tmp_path: Path) -> None:
    """A template that loops over content gets parts, with what else they carry; tools have known fields only."""
    template = (
        "{% for m in messages %}{% for c in m.content %}{{ c | tojson }}{% endfor %}{% endfor %}{{ tools | tojson }}"
    )
    folder = write_model(tmp_path / "m", tokenizer_config={"chat_template": template})
    endpoint = vllm.Tokenize(registry_of(f"m={folder}"))
    body = {
        "messages": [{"role": "user", "content": ["a", {"type": "text", "text": "", "cache_control": 1}]}],
        "tools": [{"function": {"x": 1, "strict": True, "name": "f"}}],
    }
    tools = [{"type": "function", "function": {"name": "f", "description": None, "parameters": None, "strict": True}}]
    assert documents_of(endpoint, body) == [
        '{"type": "text", "text": "a"}{"type": "text", "text": "", "cache_control": 1}' + json.dumps(tools)
    ]


def test_developer_messages_join_the_system_message(tmp_path: Path) -> None:
    """A template that knows no developer gets one system message in front, with the texts of all."""
    template = "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}"
    folder = write_model(tmp_path / "m", tokenizer_config={"chat_template": template})
    endpoint = vllm.Tokenize(registry_of(f"m={folder}"))
    roles = ["system", "user", "developer", "system"]
    body = {"messages": [{"role": role, "content": role[0] + str(i)} for i, role in enumerate(roles)]}
    assert documents_of(endpoint, body) == ["[system]s0\n\nd2\n\ns3[user]u1"]


@pytest.mark.parametrize(
    ("fields", "n_tokens"),
    [
        ({"add_special_tokens": "false"}, 1),
        ({"add_special_tokens": 0}, 1),
        ({"add_special_tokens": 1.0}, 2),
        ({"add_special_tokens": "on", "return_token_strs": None}, 2),
        ({"messages": 5}, 2),
        ({"truncate_prompt_tokens": 1, "nosuchfield": {}}, 2),
        ({"continue_final_message": True}, 2),
    ],
)
def test_lenient_fields(tokenize: vllm.Tokenize, fields: dict[str, Any], n_tokens: int) -> None:
    """Values that pydantic converts are converted, and fields of no meaning are ignored."""
    answer = send(tokenize, {"prompt": "x", **fields})
    assert answer.status == 200
    assert orjson.loads(answer.body)["count"] == n_tokens


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ({"tokens": ids("hi")}, "hi"),
        ({"model": "other", "tokens": [BOS, *ids("h"), 257, 258, 9999]}, "<s>h</s>"),
        ({"tokens": ids("é")[:1]}, "�"),
        ({"tokens": [str(ids("h")[0]), float(ids("i")[0])]}, "hi"),
        ({"tokens": []}, ""),
    ],
)
def test_detokenize(detokenize: vllm.Detokenize, body: Any, text: str) -> None:
    """Special tokens stay, unknown ids go, broken UTF-8 is replaced, numbers in other clothes are numbers."""
    answer = send(detokenize, body)
    assert (answer.status, answer.body) == (200, orjson.dumps({"prompt": text}))


@pytest.mark.parametrize("n", [0, 1, IDS_PER_PIECE - 1, IDS_PER_PIECE, IDS_PER_PIECE + 1, 2 * IDS_PER_PIECE + 1])
def test_long_answers(tokenize: vllm.Tokenize, registry: Registry, n: int) -> None:
    """Answers that are written in pieces are the same JSON."""
    model = registry.resolve(None)
    request = vllm.TokenizeRequest(
        model.name, model.ready_tokenizer, [""], EncodeOptions(), max_model_len=9, return_token_strs=True
    )
    values = np.arange(n, dtype="<u4") % 256
    answer = tokenize.write(head_of(), request, [EncodedDocument(values.tobytes(), n)])
    assert orjson.loads(answer.whole) == {
        "count": n,
        "max_model_len": 9,
        "tokens": values.tolist(),
        "token_strs": request.tokenizer.tokens_of(values),
    }
