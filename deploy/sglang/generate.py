"""Text to SGLang and back, with no tokenizer in the engine: python -m deploy.sglang.generate "Who are you?"."""

from __future__ import annotations

from typing import Any

from deploy.exchange import Peer, conversation, parse_peers

NAMES = {
    "max_tokens": "max_new_tokens",
    "ignore_eos": "ignore_eos",
    **{name: name for name in ("temperature", "top_p", "top_k", "min_p", "stop_token_ids", "skip_special_tokens")},
    **{name: name for name in ("frequency_penalty", "presence_penalty", "repetition_penalty")},
}
"""SGLang's names of sampling parameters by those of the render API; others need text or have no counterpart."""


def generate(tokenizer: Peer, engine: Peer, body: dict[str, Any]) -> str:
    """The engine's answer to the body of a chat completion."""
    rendered = tokenizer.post("/v1/chat/completions/render", body)
    sampling = {NAMES[name]: value for name, value in rendered["sampling_params"].items() if name in NAMES}
    answer = engine.post("/generate", {"input_ids": rendered["input_ids"], "sampling_params": sampling})
    decoded = tokenizer.post("/v1/decode", {"model": body["model"], "ids": answer["output_ids"]})
    return str(decoded["text"])


def main() -> None:
    """The command line."""
    given = parse_peers("deploy.sglang.generate", "http://127.0.0.1:30000")
    print(generate(Peer(given.tokenizer), Peer(given.engine), conversation(given.model, given.text, given.max_tokens)))


if __name__ == "__main__":
    main()
