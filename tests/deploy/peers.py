"""The peers' side of an exchange: how llm-d and Dynamo read their configuration and call, and what engines take.

Each does what the peer's own sources do, and nothing that would help us: names and limits come from the files in
`deploy/`.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import httpx

CHAT, COMPLETION = "/v1/chat/completions/render", "/v1/completions/render"


class TokenProducer:
    """llm-d's plugin `token-producer` with the backend `vllm`."""

    def __init__(self, parameters: Mapping[str, Any], port: int) -> None:
        assert parameters.keys() <= {"backend", "modelName", "vllm", "udsTokenizerConfig"}
        assert parameters["backend"] == "vllm"
        backend = parameters["vllm"]
        assert backend.keys() <= {"url", "timeout", "mmTimeout"}
        self._model = parameters["modelName"]
        self._timeout_s = float(backend.get("timeout", "5s").removesuffix("s"))
        self._base = str(httpx.URL(backend["url"].rstrip("/")).copy_with(host="127.0.0.1", port=port)).rstrip("/")
        self._client = httpx.Client(http2=False)

    def warm_up(self) -> int:
        """Its first call, and the status of the second one, an image."""
        assert self.chat({"messages": [{"role": "user", "content": "warmup"}]})
        pixel = {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}}
        body = {"model": self._model, "messages": [{"role": "user", "content": [pixel]}]}
        return self._client.post(self._base + CHAT, json=body, timeout=30.0).status_code

    def chat(self, payload: Mapping[str, Any]) -> list[int]:
        """Ids of a conversation; the client's body with the configured model."""
        return self._ids(self._post(CHAT, payload))

    def complete(self, payload: Mapping[str, Any]) -> list[int]:
        """Ids of a prompt."""
        answers = self._post(COMPLETION, payload)
        assert isinstance(answers, list)
        return self._ids(answers[0])

    def close(self) -> None:
        """Close its connections."""
        self._client.close()

    def _post(self, path: str, payload: Mapping[str, Any]) -> Any:
        answer = self._client.post(self._base + path, json={**payload, "model": self._model}, timeout=self._timeout_s)
        assert answer.is_success, answer.text
        return answer.json()

    @staticmethod
    def _ids(answer: Mapping[str, Any]) -> list[int]:
        ids: list[int] = answer["token_ids"]
        features = answer.get("features")
        assert not features or not (features["mm_hashes"] or features["mm_placeholders"])
        assert all(isinstance(token, int) and 0 <= token < 1 << 32 for token in ids)
        return ids


class EndpointPicker:
    """Dynamo's standalone endpoint picker: its environment, and its call to a tokenizer."""

    FIELDS = {"vllm-render": "token_ids", "sglang-renderer": "input_ids"}  # noqa: RUF012

    def __init__(self, environ: Mapping[str, str], port: int) -> None:
        assert environ["DYN_EPP_MODE"] == "standalone"
        self._field = self.FIELDS[environ["DYN_EPP_TOKENIZER_PROTOCOL"]]
        url = httpx.URL(environ["DYN_EPP_TOKENIZER_SERVICE_URL"])
        assert url.scheme in ("http", "https")
        assert url.host
        self._url = url.copy_with(host="127.0.0.1", port=port, path=url.path.rstrip("/") + CHAT)
        self._timeout_s = int(environ.get("DYN_EPP_TOKENIZATION_TIMEOUT_MS", "5000")) / 1000
        self._limit = int(environ.get("DYN_EPP_TOKENIZER_MAX_RESPONSE_BYTES", str(16 << 20)))
        self.model = environ["DYN_MODEL_NAME"]
        self.block_size = int(environ["DYN_KV_CACHE_BLOCK_SIZE"])
        assert min(self._timeout_s, self._limit, self.block_size) > 0

    def pick(self, body: bytes) -> list[int]:
        """Ids of a client's body, which goes on byte by byte as it came."""
        headers = {"content-type": "application/json"}
        with httpx.Client() as client, client.stream("POST", self._url, content=body, headers=headers) as answer:
            assert answer.is_success, answer.read()
            assert int(answer.headers["content-length"]) <= self._limit
            received = answer.read()
        assert len(received) <= self._limit
        ids: list[int] = json.loads(received)[self._field]
        assert all(isinstance(token, int) and 0 <= token < 1 << 32 for token in ids)
        return ids


Handle = Callable[[str, Any], tuple[int, Any]]
"""Status and answer by path and body."""


@contextmanager
def serving(handle: Handle) -> Iterator[str]:
    """An HTTP server with one function behind it; its address."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            status, answer = handle(self.path, json.loads(body))
            data = json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("content-length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


class IdsInIdsOut:
    """An engine without a tokenizer: answers every prompt with the ids that it is made with, and keeps what it saw."""

    def __init__(self, answer: list[int]) -> None:
        self.answer = answer
        self.seen: list[Any] = []

    def sglang(self, path: str, body: Any) -> tuple[int, Any]:
        """SGLang with `--skip-tokenizer-init`."""
        if path != "/generate" or "text" in body or not _is_ids(body.get("input_ids")):
            return 400, {"error": {"message": "skip_tokenizer_init: only input_ids are accepted"}}
        known = {
            *("max_new_tokens", "temperature", "top_p", "top_k", "min_p", "stop_token_ids", "ignore_eos"),
            *("frequency_penalty", "presence_penalty", "repetition_penalty", "skip_special_tokens"),
        }
        if not body.get("sampling_params", {}).keys() <= known:
            return 400, {"error": {"message": "unknown sampling parameter"}}
        self.seen.append(body)
        return 200, {"output_ids": self.answer, "meta_info": {"prompt_tokens": len(body["input_ids"])}}

    def vllm(self, path: str, body: Any) -> tuple[int, Any]:
        """vLLM with `--tokens-only`: the body is a GenerateRequest, of which unknown fields are ignored."""
        if path != "/inference/v1/generate" or not _is_ids(body.get("token_ids")):
            return 400, {"error": {"message": "token_ids"}}
        if not isinstance(body.get("sampling_params"), dict):
            return 400, {"error": {"message": "sampling_params"}}
        self.seen.append(body)
        choice = {"index": 0, "finish_reason": "stop", "token_ids": self.answer}
        return 200, {"request_id": body["request_id"], "choices": [choice]}

    def completions(self, path: str, body: Any) -> tuple[int, Any]:
        """`/v1/completions` of any OpenAI server that takes a prompt of ids."""
        if path != "/v1/completions" or not _is_ids(body.get("prompt")):
            return 400, {"error": {"message": "prompt"}}
        self.seen.append(body)
        return 200, {"choices": [{"index": 0, "text": "answered", "finish_reason": "stop"}]}

    def dynamo(self, path: str, body: Any) -> tuple[int, Any]:
        """A frontend of Dynamo: tokenizes nothing when `nvext.token_data` is there."""
        if path != "/v1/chat/completions" or not _is_ids(body.get("nvext", {}).get("token_data")):
            return 400, {"error": {"message": "nvext.token_data"}}
        assert body["messages"]
        self.seen.append(body)
        return 200, {"choices": [{"index": 0, "message": {"role": "assistant", "content": "answered"}}]}


def _is_ids(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(type(token) is int and token >= 0 for token in value)
