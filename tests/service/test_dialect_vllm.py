"""vLLM's dialect: recorded answers byte for byte, validation as pydantic does it, and no text in any error."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import pre_tokenizers

from dispatcher.errors import DeadlineExceeded, EngineFault, TooBusy
from dispatcher.request import EncodedDocument, EncodeOptions
from gpu_core.errors import SidetokError
from service.codecs import IDS_PER_PIECE
from service.dialects import vllm
from service.errors import BodyTooLarge, InvalidBody, ModelNotReady
from service.registry import Registry
from tests.service.small_model import documents_of, head_of, registry_of, send, write_model

BOS = 256
MARKER = "TOPSECRET"


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


def mistake(kind: str, loc: str, text: str, value: str, **ctx: str) -> str:
    """One line of a validation error."""
    fields = {"type": kind, "loc": loc, "msg": text, "input": value}
    return f"\n  {fields | ({'ctx': ctx} if ctx else {})}"


NO_PROMPT = mistake("missing", "body.prompt", "Field required", "<dict of 2 items>")
NO_MESSAGES = mistake("missing", "body.messages", "Field required", "<dict of 2 items>")
NO_BOOLEAN = mistake(
    "bool_parsing",
    "body.add_special_tokens",
    "Input should be a valid boolean, unable to interpret input",
    "2",
)
NO_FUNCTION = mistake("missing", "body.tools.0.function", "Field required", "<dict of 0 items>")
EXTRA_DATA = mistake("json_invalid", "body.15", "JSON decode error", "<dict of 0 items>", error="Extra data")


@pytest.mark.parametrize(
    ("body", "message", "param"),
    [
        (
            {"prompt": "x", "add_special_tokens": 2},
            f"3 validation errors:{NO_BOOLEAN}{NO_MESSAGES}{NO_BOOLEAN}",
            "body.add_special_tokens",
        ),
        (
            {"messages": [{"role": "user", "content": "x"}], "tools": [{}]},
            f"2 validation errors:{NO_PROMPT}{NO_FUNCTION}",
            "body.prompt",
        ),
        (b'{"prompt":"x"} y', f"1 validation error:{EXTRA_DATA}", "body.15"),
    ],
)
def test_validation_errors(tokenize: vllm.Tokenize, body: Any, message: str, param: str) -> None:
    """The whole text of an error, as the released server writes it."""
    answer = send(tokenize, body)
    assert answer.status == 400
    error = {"message": message, "type": "Bad Request", "param": param, "code": 400}
    assert answer.body == orjson.dumps({"error": error})


def test_text_is_shown_by_its_length(tokenize: vllm.Tokenize) -> None:
    """Where vLLM echoes text that was sent for another type, only its length is shown."""
    answer = send(tokenize, {"prompt": "x", "add_special_tokens": MARKER})
    assert b"'input': '<str of 9 characters>'" in answer.body
    assert MARKER.encode() not in answer.body


def test_many_errors_are_cut(detokenize: vllm.Detokenize) -> None:
    """At most ten mistakes are listed, and long numbers are cut, however many were sent."""
    answer = send(detokenize, {"tokens": [-1] * 1000})
    message = orjson.loads(answer.body)["error"]["message"]
    assert message.startswith("1000 validation errors:")
    assert message.endswith("\n  ...and 990 more errors")
    assert len(message.splitlines()) == 12
    assert len(send(detokenize, {"tokens": [10**4000]}).body) < 1000


@pytest.mark.parametrize("wrong", ["1", "-1", '"x"', "[1]", "{}"])
def test_large_bodies_stop_at_the_first_mistake(
    tokenize: vllm.Tokenize, detokenize: vllm.Detokenize, wrong: str
) -> None:
    """A mistake takes more memory than its bytes, so that a large body full of them gets one complaint for a list."""
    many = ",".join([wrong] * 100_000).encode()
    chat = orjson.loads(send(tokenize, b'{"messages":[%b],"tools":[%b]}' % (many, many)).body)["error"]
    assert chat["message"].startswith("3 validation errors:")
    answer = send(detokenize, b'{"tokens":[%b]}' % many)
    assert answer.status == (200 if wrong == "1" else 400)
    assert wrong == "1" or b"1 validation error:" in answer.body


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


@pytest.mark.parametrize(
    ("body", "kind", "message"),
    [
        ({"tokens": [2**32]}, "BadRequestError", "number too large to fit in target type"),
        ({"tokens": [2**63 - 1]}, "BadRequestError", "number too large to fit in target type"),
        ({"tokens": [2**63]}, "Bad Request", "less than or equal to 9223372036854775807"),
        ({"tokens": [2**80]}, "Bad Request", f"'input': '{2**80}'"),
        ({"tokens": [1.5]}, "Bad Request", "got a number with a fractional part"),
        ({"tokens": "1"}, "Bad Request", "Input should be a valid list"),
        ({"tokens": [[1]]}, "Bad Request", "<list of 1 items>"),
    ],
)
def test_ids_out_of_range(detokenize: vllm.Detokenize, body: Any, kind: str, message: str) -> None:
    """Ids outside 64 and 32 bits fail as they do there."""
    answer = send(detokenize, body)
    error = orjson.loads(answer.body)["error"]
    assert answer.status == 400
    assert error["type"] == kind
    assert message in error["message"]


@pytest.mark.parametrize(
    "body",
    [
        b"[" * 100_000,
        b'{"prompt":"x","y":' + b"[" * 900 + b"]" * 900 + b"}",
        b'{"messages":' + b"[" * 900 + b"]" * 900 + b"}",
        b'{"messages":[{"role":"user","content":"x"}],"chat_template_kwargs":' + b'{"a":' * 900 + b"1" + b"}" * 901,
        b'{"prompt":' + b"1" * 5000 + b"}",
        b'{"prompt":"\xff"}',
        b'{"prompt":NaN}',
        b'{"tokens":[NaN],"prompt":Infinity}',
        b'{"prompt":"a\\ud800b"}',
        b'{"model":"a\\ud800b","prompt":"x"}',
        b'{"\\ud800":1}',
        b'{"messages":[{"role":"\\ud800","content":"\\udfff"}]}',
        b'{"messages":[{"role":"user","content":"x"}],"media_io_kwargs":{"\\ud800TOPSECRET":1}}',
        b'{"messages":[{"role":["user"],"content":"x"}]}',
        b'{"messages":[{"role":"assistant","tool_calls":[{"function":{"arguments":"' + b"[" * 5000 + b'"}}]}]}',
        b"\x00",
        b"null",
        b"",
    ],
)
def test_hostile_bodies(tokenize: vllm.Tokenize, detokenize: vllm.Detokenize, body: bytes) -> None:
    """Whatever is sent, the answer is JSON and blames the caller or works; nothing is our fault."""
    for endpoint in (tokenize, detokenize):
        answer = send(endpoint, body)
        assert answer.status < 500
        assert isinstance(orjson.loads(answer.body), dict)
        assert MARKER.encode() not in answer.body


def test_other_encodings_of_json(tokenize: vllm.Tokenize) -> None:
    """UTF-16 and a byte order mark are read, as Python's JSON parser does."""
    text = '{"prompt":"é"}'
    expected = send(tokenize, text.encode()).body
    assert send(tokenize, text.encode("utf-16")).body == expected
    assert send(tokenize, text.encode("utf-8-sig")).body == expected


@pytest.mark.parametrize(
    "part",
    [
        {"type": "image_url", "image_url": {"url": f"data:{MARKER}"}},
        {"type": "input_audio", "input_audio": {"data": MARKER}},
        {"image_url": MARKER},
        {"type": MARKER},
        {"type": "text", "text": 5},
        {"type": ["text"]},
        5,
    ],
)
def test_parts_that_are_no_text(tokenize: vllm.Tokenize, part: Any) -> None:
    """Images, audio and unknown parts are refused at once, and not quoted."""
    answer = send(tokenize, {"messages": [{"role": "user", "content": [part]}]})
    assert answer.status == 400
    assert orjson.loads(answer.body)["error"]["type"] == "BadRequestError"
    assert MARKER.encode() not in answer.body


@pytest.mark.parametrize(
    ("error", "status", "kind"),
    [
        (ModelNotReady("loading"), 503, "ServiceUnavailableError"),
        (DeadlineExceeded("late"), 504, "TimeoutError"),
        (TooBusy("full", "bytes"), 429, "RateLimitError"),
        (BodyTooLarge("large"), 413, "BadRequestError"),
        (EngineFault("broken"), 500, "InternalServerError"),
        (InvalidBody("no", "x"), 400, "Bad Request"),
    ],
)
def test_errors_of_the_service(tokenize: vllm.Tokenize, error: SidetokError, status: int, kind: str) -> None:
    """What vLLM has no word for has its shape; a model that loads says when to come again."""
    answer = tokenize.fail(head_of(), error)
    param = "x" if isinstance(error, InvalidBody) else None
    assert answer.status == status
    assert orjson.loads(answer.body) == {"error": {"message": str(error), "type": kind, "param": param, "code": status}}
    assert ((b"retry-after", b"1") in answer.headers) is (status in (503, 504))


@pytest.mark.parametrize("n", [0, 1, IDS_PER_PIECE - 1, IDS_PER_PIECE, IDS_PER_PIECE + 1, 2 * IDS_PER_PIECE + 1])
def test_long_answers(tokenize: vllm.Tokenize, registry: Registry, n: int) -> None:
    """Answers that are written in pieces are the same JSON."""
    model = registry.resolve(None)
    request = vllm.TokenizeRequest(
        model.name, model.ready_tokenizer, [""], EncodeOptions(), max_model_len=9, return_token_strs=True
    )
    values = np.arange(n, dtype="<u4") % 256
    answer = tokenize.write(head_of(), request, [EncodedDocument(values.tobytes(), n)])
    assert orjson.loads(answer.body) == {
        "count": n,
        "max_model_len": 9,
        "tokens": values.tolist(),
        "token_strs": request.tokenizer.tokens_of(values),
    }


SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.just(MARKER) | st.just("\ud800")
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.just(MARKER), inner), max_leaves=6
)
PARTS = st.fixed_dictionaries(
    {}, optional={"type": st.sampled_from(["text", "image_url", "x"]) | VALUES, "text": VALUES}
)
MESSAGES = st.fixed_dictionaries(
    {"role": st.sampled_from(["user", "assistant", "tool", "developer"]) | VALUES},
    optional={
        "content": st.just(MARKER) | VALUES | st.lists(PARTS, max_size=3),
        "tool_calls": VALUES | st.lists(st.fixed_dictionaries({"function": VALUES}), max_size=2),
        "reasoning": VALUES,
        "name": VALUES,
    },
)
BODIES = st.fixed_dictionaries(
    {},
    optional={
        "prompt": VALUES,
        "messages": st.lists(MESSAGES, max_size=3) | VALUES,
        "tokens": VALUES | st.lists(st.integers()),
        "add_special_tokens": VALUES,
        "return_token_strs": VALUES,
        "continue_final_message": VALUES,
        "add_generation_prompt": VALUES,
        "tools": VALUES | st.lists(st.fixed_dictionaries({"function": VALUES}), max_size=2),
        "chat_template_kwargs": VALUES,
    },
)


CHATS = st.fixed_dictionaries(
    {
        "messages": st.lists(
            st.fixed_dictionaries(
                {"role": st.sampled_from(["user", "assistant", "tool", "developer", "system"])},
                optional={
                    "content": st.just(MARKER) | st.lists(PARTS | VALUES, max_size=3),
                    "tool_calls": st.lists(st.fixed_dictionaries({"function": VALUES}) | VALUES, max_size=2),
                    "reasoning": st.just(MARKER) | st.none(),
                },
            ),
            min_size=1,
            max_size=3,
        )
    },
    optional={
        "chat_template_kwargs": st.dictionaries(st.sampled_from(["tools", "documents", "x", "bos_token"]), VALUES),
        "continue_final_message": st.booleans(),
        "tools": st.lists(
            st.fixed_dictionaries({"function": st.fixed_dictionaries({"name": st.just("f")})}), max_size=1
        ),
    },
)


@settings(max_examples=400, deadline=None)
@given(body=CHATS | BODIES | VALUES)
def test_any_json(tokenize: vllm.Tokenize, detokenize: vllm.Detokenize, body: Any) -> None:
    """Every JSON value gets an answer that is not our fault, and an error never holds the text that was sent."""
    for endpoint in (tokenize, detokenize):
        answer = send(endpoint, body)
        assert answer.status < 500
        assert isinstance(orjson.loads(answer.body), dict)
        if answer.status != 200:
            assert MARKER.encode() not in answer.body
