"""Text to vLLM and back, with no tokenizer in the engine: python -m deploy.vllm.generate "Who are you?"."""

from __future__ import annotations

from typing import Any

from deploy.exchange import Peer, conversation, parse_peers


def generate(tokenizer: Peer, engine: Peer, body: dict[str, Any]) -> str:
    """The engine's answer to the body of a chat completion: what is rendered is what the engine takes."""
    rendered = tokenizer.post("/v1/chat/completions/render", body)
    (choice,) = engine.post("/inference/v1/generate", rendered)["choices"]
    return str(tokenizer.post("/v1/decode", {"model": body["model"], "ids": choice["token_ids"]})["text"])


def complete(tokenizer: Peer, engine: Peer, body: dict[str, Any]) -> str:
    """The same through `/v1/completions`, which every vLLM has and which answers with text."""
    rendered = tokenizer.post("/v1/chat/completions/render", body)
    asked = {"model": body["model"], "prompt": rendered["token_ids"], "max_tokens": body["max_tokens"]}
    return str(engine.post("/v1/completions", asked)["choices"][0]["text"])


def main() -> None:
    """The command line."""
    given = parse_peers("deploy.vllm.generate", "http://127.0.0.1:8000")
    print(generate(Peer(given.tokenizer), Peer(given.engine), conversation(given.model, given.text, given.max_tokens)))


if __name__ == "__main__":
    main()
