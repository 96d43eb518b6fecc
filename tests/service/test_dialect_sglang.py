"""SGLang's dialect: its shapes, its defaults, its flat errors, its way with conversations, and no text in any error."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dispatcher.errors import EngineFault, TooBusy
from gpu_core.errors import SidetokError
from service.dialects import OPERATIONS, dialect_endpoints, sglang
from service.errors import ModelNotReady
from service.registry import Registry
from tests.service.small_model import documents_of, head_of, registry_of, send, write_model

MARKER = "TOPSECRET"
BOS, EOS = 256, 257


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Registry:
    """One small model with a chat template."""
    return registry_of(f"small={write_model(tmp_path_factory.mktemp('small'))}")


@pytest.fixture(scope="module")
def tokenize(registry: Registry) -> sglang.Tokenize:
    """The endpoint."""
    return sglang.Tokenize(registry)


@pytest.fixture(scope="module")
def detokenize(registry: Registry) -> sglang.Detokenize:
    """The endpoint."""
    return sglang.Detokenize(registry)


def ids(text: str, registry: Registry) -> list[int]:
    """The ids of text without special tokens."""
    body = {"prompt": text, "add_special_tokens": False}
    return list(orjson.loads(send(sglang.Tokenize(registry), body).body)["tokens"])


def test_a_prompt(tokenize: sglang.Tokenize, registry: Registry) -> None:
    """One prompt: ids, their number, and the length that the tokenizer's configuration names, in SGLang's order."""
    expected = [BOS, *ids("hé", registry)]
    answer = send(tokenize, {"prompt": "hé"})
    assert (answer.status, answer.body) == (200, orjson.dumps({"tokens": expected, "count": 4, "max_model_len": 512}))


def test_a_list_of_prompts(tokenize: sglang.Tokenize, registry: Registry) -> None:
    """A list gives lists, also one of one prompt, and an empty one."""
    answer = orjson.loads(send(tokenize, {"prompt": ["a", "", "bc"], "add_special_tokens": False}).body)
    expected = [ids("a", registry), [], ids("bc", registry)]
    assert (answer["tokens"], answer["count"]) == (expected, [1, 0, 2])
    one = orjson.loads(send(tokenize, {"prompt": ["a"]}).body)
    assert (one["tokens"], one["count"]) == ([[BOS, *expected[0]]], [2])
    assert orjson.loads(send(tokenize, {"prompt": []}).body) == {"tokens": [], "count": [], "max_model_len": 512}


def test_the_embedded_model() -> None:
    """Ids of the embedded tokenizer, and a clean refusal of a conversation: it has no chat template."""
    endpoint = sglang.Tokenize(registry_of())
    answer = orjson.loads(send(endpoint, {"model": "anything", "prompt": "Hello, world!"}).body)
    assert answer == {"tokens": [19923, 14, 2058, 3], "count": 4, "max_model_len": 1048576}
    refused = send(endpoint, {"messages": [{"role": "user", "content": "x"}]})
    assert refused.status == 400
    assert orjson.loads(refused.body)["object"] == "error"


@pytest.mark.parametrize(
    ("body", "text"),
    [
        ({"tokens": [BOS, 39, EOS]}, "H"),
        ({"tokens": [BOS, 39, EOS], "skip_special_tokens": False}, "<s>H</s>"),
        ({"tokens": [BOS, 39], "skip_special_tokens": "false", "model": "any"}, "<s>H"),
        ({"tokens": [[39], [BOS], [39, 39]]}, ["H", "", "HH"]),
        ({"tokens": [[]]}, [""]),
        ({"tokens": []}, ""),
        ({"tokens": ["39", 39.0]}, "HH"),
        ({"tokens": [39, 99999]}, "H"),
    ],
)
def test_detokenize(detokenize: sglang.Detokenize, body: Any, text: Any) -> None:
    """Special tokens go unless they are asked for; a list of lists gives a list; an empty list gives nothing."""
    answer = send(detokenize, body)
    assert (answer.status, answer.body) == (200, orjson.dumps({"text": text}))


def texts(endpoint: sglang.Tokenize, **body: Any) -> list[str]:
    """The documents that a conversation is encoded as."""
    return documents_of(endpoint, body)


USER = {"role": "user", "content": "q"}
LAST = {"role": "assistant", "content": "Hi Zo"}


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({"messages": [USER]}, ["<s>[user]q</s>[assistant]"]),
        ({"messages": [USER], "add_generation_prompt": False}, ["<s>[user]q</s>"]),
        ({"messages": [USER, LAST]}, ["<s>[user]q</s>[user]Hi Zo</s>[assistant]"]),
        ({"messages": [USER, LAST], "add_generation_prompt": False}, ["<s>[user]q</s>[assistant]Hi Zo</s>"]),
        ({"messages": [USER, LAST], "continue_final_message": True}, ["<s>[user]q</s>[assistant]", "Hi Zo"]),
        ({"messages": [USER], "continue_final_message": True}, ["<s>[user]q</s>[assistant]"]),
        ({"messages": [{"role": "SYSTEM"}], "add_generation_prompt": False}, ["<s>[system]</s>"]),
        (
            {"messages": [{"role": "user", "content": [{"type": "text", "text": t} for t in "ab"]}]},
            ["<s>[user]a b</s>[assistant]"],
        ),
        (
            {"messages": [{"role": "assistant", "content": [{"type": "thinking", "thinking": "t"}]}, USER]},
            ["<s>[assistant]</s>[user]q</s>[assistant]"],
        ),
    ],
)
def test_conversations(tokenize: sglang.Tokenize, body: Any, expected: list[str]) -> None:
    """Unlike a plain template, SGLang has the user say a final assistant message, unless it is to be continued."""
    assert texts(tokenize, **body) == expected


def test_a_continued_conversation_is_one_list_of_ids(tokenize: sglang.Tokenize, registry: Registry) -> None:
    """The parts that are encoded apart come back as one sequence."""
    answer = orjson.loads(send(tokenize, {"messages": [USER, LAST], "continue_final_message": True}).body)
    assert answer["count"] == len(answer["tokens"])
    assert answer["tokens"][-5:] == ids("Hi Zo", registry)


@pytest.mark.parametrize(
    ("fields", "n_bos"),
    [
        ({}, 1),
        ({"add_special_tokens": True}, 1),
        ({"add_generation_prompt": True}, 1),
        ({"add_generation_prompt": True, "add_special_tokens": True}, 2),
        ({"add_generation_prompt": True, "add_special_tokens": False}, 1),
    ],
)
def test_special_tokens_of_conversations(tokenize: sglang.Tokenize, fields: dict[str, Any], n_bos: int) -> None:
    """They are added only when asked for, and only together with `add_generation_prompt`."""
    answer = orjson.loads(send(tokenize, {"messages": [USER], **fields}).body)
    assert answer["tokens"].count(BOS) == n_bos


@pytest.fixture(scope="module")
def dumping(tmp_path_factory: pytest.TempPathFactory) -> sglang.Tokenize:
    """An endpoint whose template prints all that it sees."""
    template = (
        "{{ messages | tojson }}|{{ tools | tojson }}|{{ thinking }}|{{ enable_thinking }}|{{ reasoning_effort }}"
    )
    folder = write_model(tmp_path_factory.mktemp("dump"), tokenizer_config={"chat_template": template})
    return sglang.Tokenize(registry_of(f"dump={folder}"))


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        ({"chat_template_kwargs": {"thinking": True}}, "null|True||"),
        ({"reasoning_effort": "none"}, "null|False|False|none"),
        ({"reasoning_effort": 0.5, "chat_template_kwargs": {"thinking": False}}, "null|False|True|0.5"),
        (
            {"tools": [{"function": {"x": 1, "parameters": {"b": 1}, "name": "f"}}]},
            '[{"type": "function", "function": {"parameters": {"b": 1}, "name": "f", "description": null}, '
            '"defer_loading": null}]|||',
        ),
        ({"tools": [{"function": {"name": "f"}}], "tool_choice": "none"}, "null|||"),
        (
            {
                "tools": [{"function": {"name": n, "description": "", "parameters": {}}} for n in "fg"],
                "tool_choice": {"type": "function", "function": {"name": "g"}},
            },
            '[{"type": "function", "function": {"name": "g", "description": "", "parameters": {}}, '
            '"defer_loading": null}]|||',
        ),
    ],
)
def test_what_templates_see(dumping: sglang.Tokenize, body: Any, expected: str) -> None:
    """Variables, tools in the caller's order, and the switches that an effort implies."""
    (text,) = texts(dumping, messages=[USER], **body)
    assert text == '[{"role": "user", "content": "q"}]|' + expected


def test_messages_that_templates_see(dumping: sglang.Tokenize) -> None:
    """Known fields only; a call's arguments are an object."""
    call = {"function": {"name": "f", "arguments": '{"b": 1}'}, "x": 1}
    message = {"role": "assistant", "content": "c", "reasoning_content": "r", "tool_calls": [call], "x": 1}
    (text,) = texts(dumping, messages=[message, USER])
    function = {"name": "f", "arguments": {"b": 1}}
    assert json.loads(text.partition("|")[0])[0] == {
        "thinking": "r",
        "role": "assistant",
        "content": "c",
        "reasoning_content": "r",
        "tool_calls": [{"id": None, "index": None, "type": "function", "function": function}],
    }


def test_templates_that_take_bare_functions(tmp_path: Path) -> None:
    """A template that fails on wrapped tools gets the functions alone."""
    template = "{% for tool in tools %}{{ tool.name + '!' }}{% endfor %}"
    folder = write_model(tmp_path / "m", tokenizer_config={"chat_template": template})
    endpoint = sglang.Tokenize(registry_of(f"m={folder}"))
    assert texts(endpoint, messages=[USER], tools=[{"function": {"name": "f"}}]) == ["f!"]


def test_templates_that_take_parts(tmp_path: Path) -> None:
    """Lists stay lists for a template that loops over content; the result of a tool is text all the same."""
    template = (
        "{% for message in messages %}{{ message | tojson }}{% for c in message.content %}{% endfor %}{% endfor %}"
    )
    folder = write_model(tmp_path / "m", tokenizer_config={"chat_template": template})
    endpoint = sglang.Tokenize(registry_of(f"m={folder}"))
    parts = [{"type": "text", "text": "a", "x": 1}, {"type": "text", "text": "b"}]
    messages = [{"role": "system", "content": parts, "name": "n"}, {"role": "tool", "content": parts}]
    assert texts(endpoint, messages=messages) == [
        '{"role": "system", "name": "n", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}'
        '{"role": "tool", "content": "a b"}'
    ]


@pytest.mark.parametrize(
    ("body", "kind", "message"),
    [
        ({}, "Bad Request", "Exactly one of 'prompt' or 'messages' must be provided."),
        ({"prompt": "x", "messages": [USER]}, "Bad Request", "Exactly one of 'prompt' or 'messages'"),
        ({"prompt": 5}, "Bad Request", "'loc': ('body', 'prompt', 'str'), 'msg': 'Input should be a valid string'"),
        ({"prompt": ["a", 5]}, "Bad Request", "('body', 'prompt', 'list[str]', 1)"),
        ({"prompt": "x", "model": None}, "Bad Request", "('body', 'model')"),
        ({"messages": []}, "BadRequestError", "Messages cannot be empty."),
        ({"messages": [{"role": MARKER}]}, "BadRequestError", "'role' must be one of 'system'"),
        ({"messages": [USER], "chat_template_kwargs": {"chat_template": MARKER}}, "BadRequestError", "is not allowed"),
        (
            {"messages": [USER], "continue_final_message": True, "add_generation_prompt": False},
            "BadRequestError",
            "continue_final_message needs add_generation_prompt",
        ),
        (
            {
                "messages": [USER, LAST],
                "continue_final_message": True,
                "add_generation_prompt": True,
                "add_special_tokens": True,
            },
            "BadRequestError",
            "cannot be combined",
        ),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": MARKER}}]}]},
            "BadRequestError",
            "Model only supports text input; received unsupported content type 'image_url'.",
        ),
        ({"messages": [{"role": "user", "content": [{"type": [MARKER]}]}]}, "BadRequestError", "content part is text"),
        (
            {"messages": [{"role": "assistant", "tool_calls": [{"function": {"arguments": MARKER}}]}]},
            "BadRequestError",
            "must be valid JSON",
        ),
        (
            {"messages": [{"role": "assistant", "tool_calls": [{"function": {"arguments": "[1]"}}]}]},
            "BadRequestError",
            "must be a JSON object",
        ),
        ({"messages": [USER], "tool_choice": "required"}, "BadRequestError", "Tools cannot be empty"),
        ({"messages": [USER], "tools": [{"function": {"description": MARKER}}]}, "BadRequestError", "has no name"),
        (
            {
                "messages": [USER],
                "tools": [{"function": {"name": "f"}}],
                "tool_choice": {"function": {"name": MARKER}},
            },
            "BadRequestError",
            "is not in the tools list",
        ),
        (b'{"prompt":"TOPSECRET', "Bad Request", "JSON decode error"),
        (b'{"prompt":"\xff"}', "Bad Request", "There was an error parsing the body"),
        (b'{"prompt":"a\\ud800b"}', "BadRequestError", "lone surrogate"),
    ],
)
def test_errors(tokenize: sglang.Tokenize, body: Any, kind: str, message: str) -> None:
    """Errors are flat objects of status 400, and hold no text of the request."""
    answer = send(tokenize, body)
    error = orjson.loads(answer.body)
    assert answer.status == 400
    assert list(error) == ["object", "message", "type", "param", "code"]
    assert (error["object"], error["type"], error["param"], error["code"]) == ("error", kind, None, 400)
    assert message in error["message"]
    assert MARKER not in error["message"]


@pytest.mark.parametrize("tokens", [[-1], [2**32], [[1], [-1]]])
def test_ids_out_of_range(detokenize: sglang.Detokenize, tokens: Any) -> None:
    """Ids that cannot be decoded are the caller's fault."""
    answer = send(detokenize, {"tokens": tokens})
    assert answer.status == 400
    assert orjson.loads(answer.body)["type"] == "DecodeError"


@pytest.mark.parametrize(
    "body", [{}, {"tokens": None}, {"tokens": [1, [2]]}, {"tokens": ["x"]}, {"tokens": [2**80]}, []]
)
def test_what_is_no_list_of_ids(detokenize: sglang.Detokenize, body: Any) -> None:
    """Anything but numbers, or lists of numbers, is refused."""
    answer = send(detokenize, body)
    assert answer.status == 400
    assert orjson.loads(answer.body)["object"] == "error"


def test_the_content_type(tokenize: sglang.Tokenize) -> None:
    """Bodies that do not claim to be JSON are refused with 400, as there."""
    answer = send(tokenize, {"prompt": "x"}, head_of(content_type=b"text/plain"))
    assert answer.status == 400
    assert orjson.loads(answer.body)["message"] == "Unsupported Media Type: Only 'application/json' is allowed"


@pytest.mark.parametrize(
    ("error", "status"),
    [(ModelNotReady("loading"), 503), (TooBusy("full", "bytes"), 429), (EngineFault("broken"), 500)],
)
def test_errors_of_the_service(tokenize: sglang.Tokenize, error: SidetokError, status: int) -> None:
    """What SGLang has no word for has its shape."""
    answer = tokenize.fail(head_of(), error)
    assert answer.status == status
    assert orjson.loads(answer.body)["code"] == status


def test_model_names(tmp_path: Path) -> None:
    """The name is ignored where there is one model; where there are several, an unknown one is an error."""
    a, b = write_model(tmp_path / "a"), write_model(tmp_path / "b", tokenizer_config={"model_max_length": 7})
    one, two = sglang.Tokenize(registry_of(f"a={a}")), sglang.Tokenize(registry_of(f"a={a}", f"b={b}"))
    assert send(one, {"model": "nosuch", "prompt": "x"}).status == 200
    assert orjson.loads(send(two, {"model": "b", "prompt": "x"}).body)["max_model_len"] == 7
    assert orjson.loads(send(two, {"prompt": "x"}).body)["max_model_len"] == 512
    unknown = send(two, {"model": "nosuch", "prompt": "x"})
    assert (unknown.status, orjson.loads(unknown.body)["param"]) == (404, "model")


def test_the_dialect_is_chosen_by_header_or_default(registry: Registry) -> None:
    """A request names its dialect; one that names none gets the server's."""
    for default, other in (("vllm", "sglang"), ("sglang", "vllm")):
        keys = {"vllm": "token_strs", "sglang": "tokens"}
        first = {"vllm": "count", "sglang": "tokens"}
        endpoint = dialect_endpoints(registry, default, False)["/tokenize"]
        assert next(iter(orjson.loads(send(endpoint, {"prompt": "x"}).body))) == first[default]
        answer = send(endpoint, {"prompt": "x"}, head_of(dialect=other.encode()))
        assert next(iter(orjson.loads(answer.body))) == first[other]
        assert keys[other] in orjson.loads(answer.body)
        back = dialect_endpoints(registry, default, False)["/detokenize"]
        assert list(orjson.loads(send(back, {"tokens": []}).body)) == [{"vllm": "prompt", "sglang": "text"}[default]]
        refused = send(back, {"tokens": 5}, head_of(dialect=other.encode()))
        assert ("object" in orjson.loads(refused.body)) is (other == "sglang")


def test_schemas_describe_the_answers(registry: Registry) -> None:
    """Each form's required keys in the OpenAPI schema are those of real answers."""
    for dialect in ("vllm", "sglang"):
        endpoints = dialect_endpoints(registry, dialect, False)
        answer = orjson.loads(send(endpoints["/tokenize"], {"prompt": "x"}).body)
        assert list(answer) in [form.get("required") for form in OPERATIONS["/tokenize"][2]["anyOf"]]
        text = orjson.loads(send(endpoints["/detokenize"], {"tokens": [39]}).body)
        assert list(text) in [form.get("required") for form in OPERATIONS["/detokenize"][2]["anyOf"]]


SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.just(MARKER) | st.just("\ud800")
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.just(MARKER), inner), max_leaves=6
)
PARTS = st.fixed_dictionaries({}, optional={"type": st.sampled_from(["text", "image_url"]) | VALUES, "text": VALUES})
CHATS = st.fixed_dictionaries(
    {
        "messages": st.lists(
            st.fixed_dictionaries(
                {"role": st.sampled_from(["user", "assistant", "tool", "Developer"])},
                optional={
                    "content": st.just(MARKER) | st.lists(PARTS, max_size=3),
                    "tool_calls": st.lists(st.fixed_dictionaries({"function": VALUES}), max_size=2),
                },
            ),
            max_size=3,
        )
    },
    optional={
        "chat_template_kwargs": st.dictionaries(st.sampled_from(["tools", "x", "bos_token"]), VALUES),
        "continue_final_message": st.booleans(),
        "tools": st.lists(st.fixed_dictionaries({"function": VALUES | st.just({"name": "f"})}), max_size=2),
        "tool_choice": VALUES | st.just("auto"),
        "reasoning_effort": VALUES,
    },
)
BODIES = st.fixed_dictionaries(
    {}, optional={"prompt": VALUES, "messages": VALUES, "tokens": VALUES | st.lists(st.integers()), "tools": VALUES}
)


@settings(max_examples=400, deadline=None)
@given(body=CHATS | BODIES | VALUES)
def test_any_json(tokenize: sglang.Tokenize, detokenize: sglang.Detokenize, body: Any) -> None:
    """Every JSON value gets an answer that is not our fault, and an error never holds the text that was sent."""
    for endpoint in (tokenize, detokenize):
        answer = send(endpoint, body)
        assert answer.status < 500
        assert isinstance(orjson.loads(answer.body), dict)
        if answer.status != 200:
            assert MARKER.encode() not in answer.body
