"""vLLM's render API: what gateways read from it, how a request's options are honoured, how it refuses."""

from __future__ import annotations

import re
from typing import Any

import orjson
import pytest

from service.dialects import dialect_endpoints
from service.dialects.vllm_render import ChatRender, TextRender
from service.options import DIALECTS
from service.registry import Registry
from tests.service.small_model import documents_of, head_of, registry_of, send, write_model

BOS, EOS = 256, 257
USER = {"role": "user", "content": "hi"}
PNG = {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}}
FLOATS = {
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "repetition_penalty": 1.0,
    "temperature": 1.0,
    "top_p": 1.0,
    "min_p": 0.0,
}
ALWAYS = {**FLOATS, "stop": [], "stop_token_ids": [], "bad_words": [], "output_kind": 2, "skip_clone": True}


@pytest.fixture(scope="module")
def registry(tmp_path_factory: pytest.TempPathFactory) -> Registry:
    """One small model; another whose generation_config.json has defaults."""
    folder = tmp_path_factory.mktemp("models")
    defaults = {"temperature": 0.6, "top_k": 20, "max_new_tokens": 50, "do_sample": True, "eos_token_id": 1}
    tuned = write_model(folder / "tuned", generation_config=defaults)
    return registry_of(f"small={write_model(folder / 'small')}", f"tuned={tuned}", alias=("other=small",))


def chat(registry: Registry, **fields: Any) -> Any:
    """The answer to a chat completion."""
    return answer_of(registry, "chat", {"messages": [USER], **fields})


def text(registry: Registry, **fields: Any) -> Any:
    """The answer to a completion."""
    return answer_of(registry, "text", fields)


def answer_of(registry: Registry, kind: str, fields: Any, status: int = 200, **options: Any) -> Any:
    """The answer of one of the endpoints as JSON."""
    endpoint = ChatRender(registry, **options) if kind == "chat" else TextRender(registry)
    answer = send(endpoint, fields, head_of(f"/v1/{kind}"))
    assert answer.status == status, answer.body
    return orjson.loads(answer.body)


def test_a_chat_is_one_object_a_completion_an_array(registry: Registry) -> None:
    """Also for one prompt; both names of the ids are there, and nothing multimodal."""
    one = chat(registry)
    assert list(one)[:6] == ["request_id", "token_ids", "input_ids", "token_offsets", "features", "content_parts"]
    assert one["token_ids"] == one["input_ids"]
    assert one["token_ids"][0] == BOS
    assert one["features"] is one["token_offsets"] is None
    assert re.fullmatch("chatcmpl-[0-9a-f]{16}", one["request_id"])
    assert one["model"] is None
    (only,) = text(registry, prompt="hi")
    assert re.fullmatch("cmpl-[0-9a-f]{16}", only["request_id"])
    assert [len(item["token_ids"]) for item in text(registry, prompt=["a", "bc"])] == [2, 3]


def test_request_ids_differ(registry: Registry) -> None:
    """Between requests, and by a number between the prompts of one."""
    first, second = (item["request_id"] for item in text(registry, prompt=["a", "b"]))
    assert (first[-2:], second[-2:]) == ("-0", "-1")
    assert first[:-2] == second[:-2]
    assert chat(registry)["request_id"] != chat(registry)["request_id"]


def test_prompts_that_are_ids_pass_through(registry: Registry) -> None:
    """One list or several; no special tokens, no offsets; truncated on the side that is asked for."""
    assert [item["token_ids"] for item in text(registry, prompt=[5, 4294967295])] == [[5, 4294967295]]
    assert [item["input_ids"] for item in text(registry, prompt=[[1, 2, 3], [4]])] == [[1, 2, 3], [4]]
    cut: dict[str, Any] = {"prompt": [[1, 2, 3], [4]], "truncate_prompt_tokens": 2, "return_token_offsets": True}
    assert [item["token_ids"] for item in text(registry, **cut)] == [[2, 3], [4]]
    assert text(registry, **cut)[0]["token_offsets"] is None
    assert [item["token_ids"] for item in text(registry, **cut, truncation_side="right")] == [[1, 2], [4]]


def test_special_tokens(registry: Registry) -> None:
    """A completion has them unless refused, a chat only on request: its template has put its own."""
    assert text(registry, prompt="a")[0]["token_ids"][0] == BOS
    assert len(text(registry, prompt="a", add_special_tokens=False)[0]["token_ids"]) == 1
    assert chat(registry)["token_ids"].count(BOS) == 1
    assert chat(registry, add_special_tokens=True)["token_ids"].count(BOS) == 2


def test_offsets(registry: Registry) -> None:
    """In characters of the rendered prompt, one pair for each id."""
    (one,) = text(registry, prompt="é!", return_token_offsets=True)
    assert one["token_offsets"] == [[0, 0], [0, 1], [0, 1], [1, 2]]
    answer = chat(registry, return_token_offsets=True)
    assert len(answer["token_offsets"]) == len(answer["token_ids"])


def test_truncation(registry: Registry) -> None:
    """The start goes unless the end is to go; -1 is what the context leaves."""
    full = text(registry, prompt="abcdef")[0]["token_ids"]
    assert text(registry, prompt="abcdef", truncate_prompt_tokens=3)[0]["token_ids"] == [BOS, *full[-2:]]
    right = text(registry, prompt="abcdef", truncate_prompt_tokens=3, truncation_side="right")
    assert right[0]["token_ids"] == full[:3]
    long = text(registry, prompt="a" * 3000, truncate_prompt_tokens=-1, max_tokens=24)
    assert len(long[0]["token_ids"]) == 1000


def test_default_sampling(registry: Registry) -> None:
    """Real numbers and lists are always there; the continuation may fill the context, or 16 ids for a completion."""
    answer = chat(registry)
    left = 1024 - len(answer["token_ids"])
    assert answer["sampling_params"] == {**ALWAYS, "max_tokens": left, "skip_reading_prefix_cache": False}
    assert text(registry, prompt="a")[0]["sampling_params"]["max_tokens"] == 16


@pytest.mark.parametrize(
    ("fields", "changes"),
    [
        ({"temperature": 0.001}, {"temperature": 0.01}),
        ({"n": 3, "top_k": 4, "min_p": 0.1}, {"n": 3, "top_k": 4, "min_p": 0.1}),
        ({"seed": -1}, {}),
        ({"stop": "END"}, {"stop": ["END"], "output_text_buffer_length": 2}),
        ({"stop": ["a"]}, {"stop": ["a"]}),
        ({"stop": ["ab"], "include_stop_str_in_output": True}, {"stop": ["ab"], "include_stop_str_in_output": True}),
        ({"stop_token_ids": [7, 7, 8]}, {"stop_token_ids": [7, 8]}),
        ({"stream": True}, {"output_kind": 1}),
        ({"logprobs": True}, {"logprobs": 0}),
        ({"prompt_logprobs": 1}, {"prompt_logprobs": 1, "skip_reading_prefix_cache": True}),
        ({"echo": True}, {"prompt_logprobs": 0, "skip_reading_prefix_cache": True}),
        ({"max_tokens": 9, "max_completion_tokens": 7, "min_tokens": 2}, {"max_tokens": 7, "min_tokens": 2}),
        ({"logit_bias": {"5": 200, "6": -1}}, {"logit_bias": {"5": 100.0, "6": -1.0}}),
        ({"ignore_eos": True, "skip_special_tokens": False}, {"ignore_eos": True, "skip_special_tokens": False}),
        ({"response_format": {"type": "json_object"}}, {"structured_outputs": {"json_object": True}}),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {"a": 1}}}},
            {"structured_outputs": {"json": {"a": 1}}},
        ),
        (
            {"vllm_xargs": {"a": 1}, "kv_transfer_params": {"b": 2}},
            {"extra_args": {"a": 1, "kv_transfer_params": {"b": 2}}},
        ),
    ],
)
def test_sampling(fields: dict[str, Any], changes: dict[str, Any], registry: Registry) -> None:
    """What a request sets, as vLLM writes it down."""
    answer = chat(registry, **fields)
    expected = {**ALWAYS, "max_tokens": 1024 - len(answer["token_ids"]), "skip_reading_prefix_cache": False, **changes}
    assert answer["sampling_params"] == expected


def test_greedy_sampling(registry: Registry) -> None:
    """A temperature of 0 leaves out what would choose among ids."""
    params = chat(registry, temperature=0, top_k=5, top_p=0.5, min_p=0.1)["sampling_params"]
    assert params.keys() & {"temperature", "top_k", "top_p", "min_p"} == {"temperature"}
    assert params["temperature"] == 0.0


def test_defaults_of_the_model(registry: Registry) -> None:
    """Those of generation_config.json stand where the request says nothing."""
    params = chat(registry, model="tuned")["sampling_params"]
    assert (params["temperature"], params["top_k"], params["max_tokens"]) == (0.6, 20, 50)
    params = chat(registry, model="tuned", temperature=1, top_k=0, max_tokens=60)["sampling_params"]
    assert (params["temperature"], params.get("top_k"), params["max_tokens"]) == (1.0, None, 60)


def test_what_is_handed_on(registry: Registry) -> None:
    """Salt, priority, stream and the model's name as the client wrote it; unknown fields are ignored."""
    answer = chat(
        registry, model="other", cache_salt="s", priority=-3, stream=True, stream_options={"include_usage": True}, x=1
    )
    assert answer["model"] == "other"
    assert (answer["cache_salt"], answer["priority"], answer["stream"]) == ("s", -3, True)
    assert answer["stream_options"] == {"include_usage": True, "continuous_usage_stats": False}
    assert answer["reasoning_ended"] is None
    assert chat(registry, include_reasoning=False)["reasoning_ended"] is True
    assert text(registry, prompt="a", include_reasoning=False)[0]["reasoning_ended"] is None


def test_ids_as_other_numbers(registry: Registry) -> None:
    """Whole numbers with a point are ids, as in pydantic's lax mode; others are none."""
    assert text(registry, prompt=[1.0, 2, True])[0]["token_ids"] == [1, 2, 1]
    assert "prompt is text" in answer_of(registry, "text", {"prompt": [1.5]}, 400)["error"]["message"]


@pytest.mark.parametrize(
    ("kind", "fields", "message", "param"),
    [
        ("text", {}, "Either prompt or prompt_embeds must be provided and non-empty. (parameter=prompt)", "prompt"),
        ("text", {"prompt": ""}, "Either prompt", "prompt"),
        ("text", {"prompt": []}, "Either prompt", "prompt"),
        ("text", {"prompt": [[]]}, "No token_ids rendered", None),
        ("text", {"prompt": "", "truncate_prompt_tokens": 0}, "Either prompt", "prompt"),
        ("text", {"prompt": "a", "truncate_prompt_tokens": 0}, "No token_ids rendered", None),
        ("text", {"prompt": [1 << 32]}, "number too large to fit in target type", None),
        ("text", {"prompt": "a", "use_beam_search": True}, "Beam search is not supported", None),
        ("text", {"prompt": "a", "max_tokens": 0}, "max_tokens must be at least 1, got 0.", "max_tokens"),
        ("text", {"prompt": "a", "max_tokens": 2000}, "max_tokens=2000 cannot be greater than", "max_tokens"),
        ("text", {"prompt": "a" * 1023}, "You passed 1024 input tokens and requested 16 output", "input_tokens"),
        (
            "text",
            {"prompt": "a", "truncate_prompt_tokens": 1020},
            "truncate_prompt_tokens=1020 cannot",
            "truncate_prompt_tokens",
        ),
        ("text", {"prompt": "a", "stream_options": {}}, "Stream options can only be defined when", "stream_options"),
        ("text", {"prompt": "a", "temperature": 2.5}, "temperature must be in [0, 2], got 2.5.", "temperature"),
        ("text", {"prompt": "a", "top_p": 0}, "top_p must be in (0, 1], got 0.0.", "top_p"),
        ("text", {"prompt": "a", "stop": [""]}, "stop cannot contain an empty string.", None),
        ("text", {"prompt": "a", "temperature": -1}, "temperature must be non-negative, got -1.0.", "temperature"),
        ("text", {"prompt": "a", "min_p": 2}, "min_p must be in [0, 1], got 2.0.", None),
        ("text", {"prompt": "a", "n": 0}, "n must be at least 1, got 0.", None),
        ("text", {"prompt": "a", "n": 2, "temperature": 0}, "n must be 1 when using greedy", None),
        ("chat", {"messages": []}, "Cannot apply chat template to an empty conversation.", None),
        ("chat", {"messages": [{"role": "user", "content": [PNG]}]}, "This service takes text only", None),
        (
            "chat",
            {"messages": [USER], "response_format": {"type": "json_schema"}},
            "When response_format",
            "response_format",
        ),
    ],
)
def test_refusals(kind: str, fields: Any, message: str, param: str | None, registry: Registry) -> None:
    """400 in vLLM's error object, its words and its `param`."""
    error = answer_of(registry, kind, fields, status=400)["error"]
    assert error["message"].startswith(message)
    assert (error["type"], error["code"]) == ("BadRequestError", 400)
    assert error["param"] == param


@pytest.mark.parametrize(
    ("kind", "fields", "param"),
    [
        ("chat", {}, "body.messages"),
        ("chat", {"messages": [{"content": "x"}]}, "body.messages.0.role"),
        ("chat", {"messages": [USER], "truncate_prompt_tokens": -2}, "body.truncate_prompt_tokens"),
        ("chat", {"messages": [USER], "cache_salt": ""}, "body.cache_salt"),
        ("text", {"prompt": "a", "temperature": "hot"}, "body.temperature"),
        ("text", {"prompt": {"a": 1}}, "body.prompt"),
        ("text", {"prompt": [1, "a"]}, "body.prompt"),
        ("text", {"prompt": [[1], 2]}, "body.prompt"),
        ("text", [], "body"),
    ],
)
def test_what_does_not_fit_the_schema(kind: str, fields: Any, param: str, registry: Registry) -> None:
    """400 that names the place, as for every body that vLLM's models refuse."""
    error = answer_of(registry, kind, fields, status=400)["error"]
    assert (error["type"], error["param"]) == ("Bad Request", param)


def test_templates_of_requests(registry: Registry) -> None:
    """Refused unless the service was told to trust them; then rendered with the model's special tokens."""
    fields = {"messages": [USER], "chat_template": "{{ bos_token }}{{ messages[0].content | upper }}"}
    assert "--trust-request-chat-template" in answer_of(registry, "chat", fields, status=400)["error"]["message"]
    answer = answer_of(registry, "chat", fields, trust_templates=True)
    assert answer["token_ids"] == [BOS, *text(registry, prompt="HI", add_special_tokens=False)[0]["token_ids"]]
    inside = {"messages": [USER], "chat_template_kwargs": {"chat_template": "x"}}
    assert len(answer_of(registry, "chat", inside, trust_templates=True)["token_ids"]) == 1


def test_what_templates_see(tmp_path: Any) -> None:
    """Documents, an effort and what it switches, reasoning by its older name, and the variables of the request."""
    template = (
        "{{ documents | tojson }}{{ reasoning_effort }}{{ enable_thinking }}{{ x }}{{ messages[0].reasoning_content }}"
    )
    folder = write_model(tmp_path / "m", tokenizer_config={"chat_template": template})
    endpoint = ChatRender(registry_of(f"m={folder}"))
    body = {
        "messages": [{"role": "assistant", "content": "a", "reasoning_content": "why"}],
        "documents": [{"title": "t"}],
        "reasoning_effort": "none",
        "chat_template_kwargs": {"x": 5},
    }
    assert documents_of(endpoint, body) == ['[{"title": "t"}]noneFalse5why']
    kept = {**body, "chat_template_kwargs": {"enable_thinking": True}}
    assert "noneTrue" in documents_of(endpoint, kept)[0]


def test_every_dialect_hands_on_the_route(registry: Registry) -> None:
    """`X-Sidetok-Route` reaches the request of every endpoint that encodes."""
    bodies: dict[str, dict[str, Any]] = {
        "/tokenize": {"prompt": "a", "content": "a", "inputs": "a"},
        "/v1/chat/completions/render": {"messages": [USER]},
        "/v1/completions/render": {"prompt": "a"},
        "/v1/messages/render": {"model": "small", "messages": [USER], "max_tokens": 1},
        "/v1/messages/count_tokens": {"model": "small", "messages": [USER]},
        "/v1/responses/render": {"input": "a"},
        "/v1/responses/input_tokens": {"input": "a"},
        "/v1/chat/completions/input_tokens": {"messages": [USER]},
    }
    for dialect in DIALECTS:
        endpoints = dialect_endpoints(registry, dialect, trust_templates=False)
        for path, body in bodies.items():
            head = head_of(path)
            head.route = b"gpu"
            assert endpoints[path].read(head, orjson.dumps(body)).route == "gpu", (dialect, path)
