"""Tokenizers and texts for tests: the embedded tokenizer and small synthetic ones always, real files where present.

Real data lie in `../shared/data` beside the repository. Nothing needs them; with them the same tests cover more.
`SIDETOK_TEST_FULL=1` makes tests take more texts.
"""

from __future__ import annotations

import json
import lzma
import os
import random
from functools import cache
from pathlib import Path
from typing import NamedTuple

from dispatcher.embedded import embedded_tokenizer_json
from dispatcher.proof_cases import real_text
from tests.synthetic import SYNTHETIC

SHARED = Path(__file__).resolve().parents[2] / "shared" / "data"
FULL = os.environ.get("SIDETOK_TEST_FULL", "") not in {"", "0"}
EMBEDDED = "embedded"
NEAR_COPIES = {"deepseek_v3", "qwen2_5"}


class Sample(NamedTuple):
    """A text and what it is for."""

    id: str
    text: str


def families() -> list[str]:
    """Names of every tokenizer that is available, cheap ones first; near copies of others only in full tests."""
    folder = SHARED / "tokenizers"
    real = {path.parent.name for path in folder.glob("*/tokenizer.json.xz")}
    return [*SYNTHETIC, EMBEDDED, *sorted(real if FULL else real - NEAR_COPIES)]


@cache
def tokenizer_json(family: str) -> bytes:
    """The file of one of `families()`."""
    if family in SYNTHETIC:
        return SYNTHETIC[family]()
    if family == EMBEDDED:
        return embedded_tokenizer_json()
    return lzma.decompress((SHARED / "tokenizers" / family / "tokenizer.json.xz").read_bytes())


@cache
def adversarial() -> tuple[Sample, ...]:
    """Small tricky inputs: the shared collection, or a handful of our own."""
    path = SHARED / "corpora" / "adversarial.jsonl"
    if path.is_file():
        rows = map(json.loads, path.read_text(encoding="utf-8").splitlines())
        return tuple(Sample(row["id"], row["text"]) for row in rows)
    own = (
        "",
        " ",
        "\0",
        "a\0b",
        "\n\n\t x",
        "it's we'LL o'\u017f",
        "e\u0301\u0323",
        "\U0001f468\u200d\U0001f469",
        "123456",
    )
    return tuple(Sample(f"own-{i}", text) for i, text in enumerate(own))


@cache
def corpora() -> dict[str, str]:
    """Whole texts by name: the shared corpora, or the paragraphs that the proof uses."""
    names = ("books.txt", "code.txt", "multilingual.txt", "agentic.jsonl")
    found = {name: SHARED / "corpora" / name for name in names if (SHARED / "corpora" / name).is_file()}
    if not found:
        return {"own": "\n\n".join(real_text())}
    return {name: _contents(path) for name, path in found.items()}


def corpus_windows(n_windows: int, n_chars: int, seed: int = 0) -> list[Sample]:
    """Windows of `n_chars` at random places, `n_windows` of each corpus. The same arguments give the same windows."""
    rng = random.Random(f"{seed} {n_chars}")
    samples = []
    for name, text in corpora().items():
        for _ in range(n_windows):
            start = rng.randrange(max(1, len(text) - n_chars))
            samples.append(Sample(f"{name}:{start}+{n_chars}", text[start : start + n_chars]))
    return samples


def unique_words(n_chars: int, seed: int = 0) -> str:
    """Random words that no cache has seen, about `n_chars` of ASCII in all."""
    rng = random.Random(seed)
    letters = bytearray(97 + b % 26 for b in rng.randbytes(n_chars))
    position = 0
    while (position := position + rng.randrange(4, 15)) < n_chars:
        letters[position] = 0x20
    return letters.decode("ascii")


def _contents(path: Path) -> str:
    text = path.read_text(encoding="utf-8")
    if path.suffix != ".jsonl":
        return text
    conversations = map(json.loads, text.splitlines())
    return "\n".join(
        message["content"]
        for conversation in conversations
        for message in conversation["messages"]
        if isinstance(message.get("content"), str)
    )
