"""Requests that were recorded against a real vLLM render server, with its answers, and the model that it had.

`wire_samples.json` holds them and a cut of the tokenizer; `scripts/make_wire_samples.py` writes it.
"""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from tokenizers import Tokenizer

FILE = Path(__file__).with_name("wire_samples.json")
MODEL = "qwen3"

CONVERSATION = (
    "{% for m in messages if m.role in ['system', 'user', 'assistant'] %}"
    "<|im_start|>{{ m.role }}\n{{ thought if m.role == 'assistant' }}{{ m.content or '' }}"
    "{% if m.role == 'system' and tools %}{{ before }}{% for t in tools %}{{ t | tojson }}{% endfor %}{{ after }}"
    "{% endif %}"
    "<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{{ thought if enable_thinking is false }}{% endif %}"
)


class Sample(NamedTuple):
    """One request and its answer."""

    name: str
    request: dict[str, Any]
    status: int
    body: str

    @property
    def sent(self) -> bytes:
        """The body of the request."""
        if "raw_body_latin1" in self.request:
            return bytes(self.request["raw_body_latin1"], "latin-1")
        return b"" if self.request["json"] is None else json.dumps(self.request["json"]).encode()

    @property
    def json(self) -> Any:
        """The answer as JSON."""
        return json.loads(self.body)


@cache
def recorded_samples() -> tuple[Sample, ...]:
    """All of them."""
    rows = json.loads(FILE.read_bytes())["samples"]
    return tuple(Sample(name, row["request"], row["status"], row["body"]) for name, row in rows.items())


def write_cut_model(folder: Path) -> None:
    """The files of a model that gives the recorded ids for the recorded requests."""
    tokenizer = json.dumps(json.loads(FILE.read_bytes())["tokenizer"])
    (folder / "tokenizer.json").write_text(tokenizer)
    config = {"chat_template": chat_template(Tokenizer.from_str(tokenizer)), "eos_token": "<|im_end|>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    (folder / "config.json").write_text(json.dumps({"max_position_embeddings": 1 << 20}))


def chat_template(tokenizer: Tokenizer) -> str:
    """What the recorded conversations are rendered with; the texts around tools are those of a recorded answer."""
    (sample,) = (sample for sample in recorded_samples() if sample.name == "tokenize_chat_tools")
    text = tokenizer.decode(sample.json["tokens"], skip_special_tokens=False)
    system = sample.request["json"]["messages"][0]["content"]
    before, rest = text.split(system, 1)[1].split('{"type"', 1)
    after = rest[rest.index("\n</tools>") :].split("<|im_end|>", 1)[0]
    texts = {"before": before, "after": after, "thought": "<think>\n\n</think>\n\n"}
    return "".join(f"{{% set {name} = {json.dumps(value)} %}}" for name, value in texts.items()) + CONVERSATION
