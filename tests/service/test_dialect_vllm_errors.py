"""What vLLM's dialect refuses: validation as pydantic does it, hostile bodies, and no text in any error."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dispatcher.errors import DeadlineExceeded, EngineFault, TooBusy
from gpu_core.errors import SidetokError
from service.dialects import vllm
from service.errors import BodyTooLarge, InvalidBody, ModelNotReady
from tests.service.small_model import head_of, send
from tests.service.test_dialect_vllm import detokenize as detokenize
from tests.service.test_dialect_vllm import registry as registry
from tests.service.test_dialect_vllm import tokenize as tokenize

MARKER = "TOPSECRET"


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
