"""A gateway's view of a running service: how llm-d's router and Dynamo's endpoint picker call it, and vendors' SDKs.

The checklist is what those clients do on the wire: HTTP/1.1 with keep-alive, no authorization, any 2xx is success,
`Content-Length` is looked at first, 5 s for text.
"""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import orjson
import pytest

from tests.end_to_end.harness import ServiceProcess, Wire, request, serving
from tests.service.small_model import CHAT_TEMPLATE, SPECIAL_TOKENS, tokenizer_json

CHAT, COMPLETION = "/v1/chat/completions/render", "/v1/completions/render"
MAX_ANSWER_BYTES = 16 << 20
TIMEOUT_S = 5.0
PIXEL = "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNkYPhfDwAChwGA60e6kgAAAABJRU5E"


@pytest.fixture(scope="module")
def gateway(home: Path) -> Iterator[ServiceProcess]:
    """A process with a chat model, also under the name that a gateway is configured with."""
    folder = home / "chat"
    folder.mkdir()
    (folder / "tokenizer.json").write_bytes(tokenizer_json())
    (folder / "config.json").write_text(json.dumps({"max_position_embeddings": 200_000}))
    (folder / "tokenizer_config.json").write_text(json.dumps({**SPECIAL_TOKENS, "chat_template": CHAT_TEMPLATE}))
    arguments = (f"--model=alias={folder}", "--alias=base/model=alias")
    with serving(home, *arguments, uds=home / "gw", cache_dir=home / "cache") as process:
        yield process


def chat(content: Any, **more: Any) -> dict[str, Any]:
    """A whole OpenAI body, as clients send it and gateways hand it on."""
    body = {"model": "base/model", "messages": [{"role": "user", "content": content}], "stream": True, "n": 1}
    return {**body, "logprobs": False, "user": "u", "metadata": {"a": "b"}, "temperature": 0.7, "max_tokens": 9, **more}


def ask(service: ServiceProcess, path: str, body: Any) -> httpx.Response:
    """One call as a gateway makes it."""
    with service.client() as client:
        return client.post(path, json=body, timeout=TIMEOUT_S)


def test_the_warm_up(gateway: ServiceProcess) -> None:
    """llm-d's first calls: a text, then an image, which fails at once and cleanly."""
    answer = ask(gateway, CHAT, chat("warmup"))
    assert answer.status_code == 200
    image = ask(gateway, CHAT, chat([{"type": "image_url", "image_url": {"url": PIXEL}}]))
    assert image.status_code == 400
    assert len(image.content) <= 1024
    assert set(image.json()["error"]) == {"message", "type", "param", "code"}


def test_what_gateways_read(gateway: ServiceProcess) -> None:
    """Ids that are not empty under both names, nothing multimodal, one object or an array; content as parts, too."""
    for content in ("hi é", [{"type": "text", "text": "hi é"}]):
        one = ask(gateway, CHAT, chat(content)).json()
        assert one["token_ids"] == one["input_ids"]
        assert one["features"] is None
        assert all(0 <= i < 1 << 32 for i in one["token_ids"])
    many = ask(gateway, COMPLETION, {"model": "alias", "prompt": "hi"}).json()
    assert isinstance(many, list)
    assert len(many) == 1
    assert ask(gateway, COMPLETION, {"prompt": [5, 6, 7]}).json()[0]["token_ids"] == [5, 6, 7]


def test_every_success_has_a_length(gateway: ServiceProcess) -> None:
    """On one connection that stays open; the length is exact, and there are no chunks."""
    wire = Wire(gateway.connect())
    for text in ("a", "b" * 100, "c" * 100_000):
        body = orjson.dumps(chat(text))
        answer = wire.ask(request(body, CHAT))
        assert answer.status == 200
        assert 0 < int(answer.headers["content-length"]) < MAX_ANSWER_BYTES
        assert len(orjson.loads(answer.body)["token_ids"]) > len(text)
        assert "transfer-encoding" not in answer.headers
        assert answer.headers.get("connection", "").lower() != "close"
    wire.close()


def test_probes(gateway: ServiceProcess) -> None:
    """Every path that some peer probes."""
    with gateway.client() as client:
        for path in ("/health", "/healthz", "/ready", "/readiness", "/liveness"):
            assert client.get(path).status_code == 200


def test_names(gateway: ServiceProcess) -> None:
    """A name with a slash, an alias, none at all; an unknown one is 404."""
    for name, status in (("base/model", 200), ("alias", 200), (None, 200), ("other", 404)):
        assert ask(gateway, CHAT, chat("x", model=name)).status_code == status


@pytest.mark.skipif(importlib.util.find_spec("anthropic") is None, reason="the SDK is not installed")
def test_the_anthropic_sdk(gateway: ServiceProcess) -> None:
    """Counting with the vendor's own client; its errors become its exceptions."""
    import anthropic

    client = anthropic.Anthropic(base_url=f"http://127.0.0.1:{gateway.port}", api_key="none", max_retries=0)
    messages: Any = [{"role": "user", "content": "hi"}]
    rendered = ask(gateway, "/v1/messages/render", {"model": "alias", "messages": messages, "max_tokens": 1}).json()
    found = client.messages.count_tokens(model="alias", messages=messages)
    assert found.input_tokens == len(rendered["token_ids"])
    with pytest.raises(anthropic.NotFoundError):
        client.messages.count_tokens(model="other", messages=messages)
    with pytest.raises(anthropic.BadRequestError):
        client.messages.count_tokens(model="alias", messages=[])


@pytest.mark.skipif(importlib.util.find_spec("openai") is None, reason="the SDK is not installed")
def test_the_openai_sdk(gateway: ServiceProcess) -> None:
    """Counting and models with the vendor's own client; its errors become its exceptions."""
    import openai

    client = openai.OpenAI(base_url=f"http://127.0.0.1:{gateway.port}/v1", api_key="none", max_retries=0)
    rendered = ask(gateway, "/v1/responses/render", {"input": "hi"}).json()
    assert client.responses.input_tokens.count(model="alias", input="hi").input_tokens == len(rendered["token_ids"])
    assert [model.id for model in client.models.list()] == ["alias"]
    with pytest.raises(openai.NotFoundError):
        client.responses.input_tokens.count(model="other", input="hi")
    with pytest.raises(openai.BadRequestError):
        client.responses.input_tokens.count(model="alias", input="hi", previous_response_id="x")
