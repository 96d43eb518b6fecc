"""Every request that was recorded against a real vLLM render server, asked of this one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from service.dialects import OPERATIONS, dialect_endpoints
from service.registry import Registry
from tests.data import SHARED, tokenizer_json
from tests.fakes import FakeTokenizer
from tests.service.small_model import head_of, registry_of, send
from tests.service_fakes import FakeRegistry, run, running

SAMPLES = sorted((SHARED / "wire-samples").glob("[!_]*.json"))
SAMPLES = [path for path in SAMPLES if path.stem != "openapi"]

DEVIATIONS = {
    # Ids do not depend on a parser of the answer, so none is needed here.
    "render_tool_choice_auto_without_parser": 200,
}
"""Status of what is answered otherwise on purpose; docs/dialects.md says why."""

OWN_BODY = {"/health", "/version"}
"""Paths whose answers have the recorded status, and the service's own body."""
LEFT_OUT = {"parent", "permission"}
"""Fields of a listed model that say nothing here."""


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Registry:
    """The model that the recorded server had."""
    folder = tmp_path_factory.mktemp("qwen3")
    source = SHARED / "tokenizers" / "qwen3"
    (folder / "tokenizer.json").write_bytes(tokenizer_json("qwen3"))
    for name in ("tokenizer_config.json", "config.json"):
        (folder / name).write_bytes((source / name).read_bytes())
    return registry_of(f"qwen3={folder}")


def comparable(answer: Any) -> Any:
    """An answer without what differs each time, and without what only this service adds."""
    if isinstance(answer, list):
        return [comparable(item) for item in answer]
    if not isinstance(answer, dict) or "request_id" not in answer:
        return answer
    return [(name, value) for name, value in answer.items() if name not in ("request_id", "input_ids")]


def check_control(request: Any, response: Any) -> None:
    """The answer of the app to what is no hot request."""
    registry = FakeRegistry(qwen3=FakeTokenizer())
    registry.models()[0].max_model_len = 1_048_576

    async def test() -> None:
        async with running(registry) as it:
            body = json.dumps(request["json"]).encode() if request["json"] is not None else b""
            answer = await it.call(request["path"], body, method=request["method"])
            assert answer.status == response["status"]
            if request["path"] in OWN_BODY:
                return
            mine, theirs = json.loads(answer.body), response["json"]
            if request["path"] == "/v1/models":
                assert set(theirs["data"][0]) - set(mine["data"][0]) == LEFT_OUT
                assert [model["id"] for model in mine["data"]] == [model["id"] for model in theirs["data"]]
                assert mine["data"][0]["max_model_len"] == theirs["data"][0]["max_model_len"]
            else:
                assert mine == theirs

    run(test())


@pytest.mark.parametrize("path", SAMPLES, ids=lambda path: path.stem)
def test_recorded_answers(path: Path, recorded: Registry) -> None:
    """Status, fields and their order, ids, sampling parameters and error bodies are the recorded ones."""
    sample = json.loads(path.read_bytes())
    request, response = sample["request"], sample["response"]
    if request["method"] != "POST" or request["path"] not in OPERATIONS:
        check_control(request, response)
        return
    raw = request["raw_body_latin1"]
    body = json.dumps(request["json"]).encode() if raw is None else raw.encode("latin-1")
    head = head_of(request["path"], (request["content_type"] or "").partition(";")[0].encode())
    endpoint = dialect_endpoints(recorded, "vllm", trust_templates=False)[request["path"]]
    answer = send(endpoint, body, head)
    if path.stem in DEVIATIONS:
        assert answer.status == DEVIATIONS[path.stem] != response["status"]
        return
    assert answer.status == response["status"], answer.body
    if "render" not in path.stem or answer.status != 200:
        assert answer.body.decode() == response["raw_body"]
        return
    mine, theirs = json.loads(answer.body), response["json"]
    assert comparable(mine) == comparable(theirs)
    for one, other in zip(*(value if isinstance(value, list) else [value] for value in (mine, theirs)), strict=True):
        assert one["input_ids"] == one["token_ids"]
        prefix = other["request_id"].rpartition("-")[0]
        assert one["request_id"].startswith(f"{prefix}-")
        assert len(one["request_id"]) == len(other["request_id"])
        assert list(one["sampling_params"]) == list(other["sampling_params"])
