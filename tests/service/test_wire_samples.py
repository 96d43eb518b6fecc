"""Every request that was recorded against a real vLLM render server, asked of this one, with the model that it had."""

from __future__ import annotations

import json
from typing import Any

import pytest

from service.dialects import OPERATIONS, dialect_endpoints
from service.registry import Registry
from tests.data import SHARED, tokenizer_json
from tests.fakes import FakeTokenizer
from tests.service.small_model import head_of, registry_of, send
from tests.service.wire_samples import MODEL, Sample, recorded_samples, write_cut_model
from tests.service_fakes import FakeRegistry, run, running

DEVIATIONS = {
    # Ids do not depend on a parser of the answer, so none is needed here.
    "render_tool_choice_auto_without_parser": 200,
}
"""Status of what is answered otherwise on purpose; docs/dialects.md says why."""

OWN_BODY = {"/health", "/version"}
"""Paths whose answers have the recorded status, and the service's own body."""
LEFT_OUT = {"parent", "permission"}
"""Fields of a listed model that say nothing here."""


@pytest.fixture(scope="module", params=["cut", "whole"] if (SHARED / "tokenizers" / MODEL).is_dir() else ["cut"])
def recorded(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Registry:
    """The model that the recorded server had: what these requests need of it, and all of it where its files are."""
    folder = tmp_path_factory.mktemp(MODEL)
    if request.param == "cut":
        write_cut_model(folder)
    else:
        (folder / "tokenizer.json").write_bytes(tokenizer_json(MODEL))
        for name in ("tokenizer_config.json", "config.json"):
            (folder / name).write_bytes((SHARED / "tokenizers" / MODEL / name).read_bytes())
    return registry_of(f"{MODEL}={folder}")


def comparable(answer: Any) -> Any:
    """An answer without what differs each time, and without what only this service adds."""
    if isinstance(answer, list):
        return [comparable(item) for item in answer]
    if not isinstance(answer, dict) or "request_id" not in answer:
        return answer
    return [(name, value) for name, value in answer.items() if name not in ("request_id", "input_ids")]


def check_control(sample: Sample) -> None:
    """The answer of the app to what is no hot request."""
    registry = FakeRegistry(qwen3=FakeTokenizer())
    registry.models()[0].max_model_len = 1_048_576
    path = sample.request["path"]

    async def test() -> None:
        async with running(registry) as it:
            answer = await it.call(path, sample.sent, method=sample.request["method"])
            assert answer.status == sample.status
            if path in OWN_BODY:
                return
            mine, theirs = json.loads(answer.body), sample.json
            if path == "/v1/models":
                assert set(theirs["data"][0]) - set(mine["data"][0]) == LEFT_OUT
                assert [model["id"] for model in mine["data"]] == [model["id"] for model in theirs["data"]]
                assert mine["data"][0]["max_model_len"] == theirs["data"][0]["max_model_len"]
            else:
                assert mine == theirs

    run(test())


def is_control(sample: Sample) -> bool:
    """Whether a request is none for tokens."""
    return sample.request["method"] != "POST" or sample.request["path"] not in OPERATIONS


def test_there_are_samples_of_every_kind() -> None:
    """Successes and errors, of each operation that was recorded."""
    samples = recorded_samples()
    assert len(samples) >= 57
    assert {sample.status for sample in samples} == {200, 400, 404, 405}
    assert {sample.request["path"] for sample in samples if not is_control(sample)} == {
        "/tokenize",
        "/detokenize",
        "/v1/chat/completions/render",
        "/v1/completions/render",
        "/v1/messages/render",
    }


@pytest.mark.parametrize(
    "sample", [sample for sample in recorded_samples() if is_control(sample)], ids=lambda sample: sample.name
)
def test_recorded_answers_of_the_app(sample: Sample) -> None:
    """Status and body of what needs no worker are the recorded ones."""
    check_control(sample)


@pytest.mark.parametrize(
    "sample", [sample for sample in recorded_samples() if not is_control(sample)], ids=lambda sample: sample.name
)
def test_recorded_answers(sample: Sample, recorded: Registry) -> None:
    """Status, fields and their order, ids, sampling parameters and error bodies are the recorded ones."""
    path, content_type = sample.request["path"], (sample.request["content_type"] or "").partition(";")[0]
    endpoint = dialect_endpoints(recorded, "vllm", trust_templates=False)[path]
    answer = send(endpoint, sample.sent, head_of(path, content_type.encode()))
    if sample.name in DEVIATIONS:
        assert answer.status == DEVIATIONS[sample.name] != sample.status
        return
    assert answer.status == sample.status, answer.body
    if "render" not in path or answer.status != 200:
        assert answer.body.decode() == sample.body
        return
    mine, theirs = json.loads(answer.body), sample.json
    assert comparable(mine) == comparable(theirs)
    for one, other in zip(*(value if isinstance(value, list) else [value] for value in (mine, theirs)), strict=True):
        assert one["input_ids"] == one["token_ids"]
        prefix = other["request_id"].rpartition("-")[0]
        assert one["request_id"].startswith(f"{prefix}-")
        assert len(one["request_id"]) == len(other["request_id"])
        assert list(one["sampling_params"]) == list(other["sampling_params"])
