"""A chat completion whose ids are made here, not by Dynamo's frontend: python -m deploy.dynamo.chat "Who are you?"."""

from __future__ import annotations

from typing import Any

from deploy.exchange import Peer, conversation, parse_peers


def chat(tokenizer: Peer, frontend: Peer, body: dict[str, Any]) -> str:
    """The answer to the body of a chat completion, which the frontend gets together with its ids."""
    rendered = tokenizer.post("/v1/chat/completions/render", body)
    nvext = {**body.get("nvext", {}), "token_data": rendered["token_ids"]}
    answer = frontend.post("/v1/chat/completions", {**body, "nvext": nvext})
    return str(answer["choices"][0]["message"]["content"])


def main() -> None:
    """The command line."""
    given = parse_peers("deploy.dynamo.chat", "http://127.0.0.1:8000")
    print(chat(Peer(given.tokenizer), Peer(given.engine), conversation(given.model, given.text, given.max_tokens)))


if __name__ == "__main__":
    main()
