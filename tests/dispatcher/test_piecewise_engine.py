"""Documents with very long pre-tokens: the ids of the whole, from pieces."""

from __future__ import annotations

import json
import random
import string

import pytest

from dispatcher.engines.certain_borders import STEP
from dispatcher.engines.piecewise_engine import MANY, PIECE_STEP, SAMPLE_EVERY, PiecewiseEngine
from dispatcher.engines.reference_engine import ReferenceEngine
from gpu_core.spec import read_spec
from tests.data import FULL, families, tokenizer_json
from tests.synthetic import split_bpe

LETTERS = "abcdefghijklmnopqrstuvwxyz"
SOME = {"byte_bpe", "split_bpe", "embedded", "llama2", "qwen3", "starcoder", "synthetic_kimi_k2"}
FAMILIES = families() if FULL else [family for family in families() if family in SOME]
every_family = pytest.mark.parametrize("family", FAMILIES)


class CountingEngine:
    """The reference, the length of the longest document that it was asked for, and how many there were."""

    name, version, guard_digest = "counting", "1", ""

    def __init__(self, text: str) -> None:
        self._reference = ReferenceEngine(text)
        self.longest = self.n_documents = 0

    def encode(self, document: str) -> bytes:
        """See `CpuEngine`."""
        self.longest = max(self.longest, len(document))
        self.n_documents += 1
        return self._reference.encode(document)

    def encode_many(self, documents: list[str]) -> list[bytes]:
        """See `CpuEngine`."""
        return [self.encode(document) for document in documents]

    def guard(self, document: str) -> str | None:
        """See `CpuEngine`."""
        return None


def engines(family: str) -> tuple[CountingEngine, PiecewiseEngine]:
    """One tokenizer as a whole and in pieces."""
    data = tokenizer_json(family)
    inner = CountingEngine(data.decode())
    return inner, PiecewiseEngine(inner, read_spec(data), data)


def runs(rng: random.Random, n: int) -> list[str]:
    """Long runs of every kind."""
    return [
        "".join(rng.choices(LETTERS, k=n)),
        "".join(rng.choices(string.ascii_letters, k=n)),
        "".join(rng.choices(string.digits, k=n)),
        "".join(rng.choices(string.punctuation, k=n)),
        "".join(rng.choices(LETTERS, k=n // 2)) + "a" * (n // 2),
        " ".join("".join(rng.choices(LETTERS, k=500)) for _ in range(n // 500)),
        rng.choice(LETTERS) * n,
        "".join(rng.choices("éèабв", k=n)),
        "=" * n,
        "".join(rng.choices("+-*/=", k=n)),
        " " * n,
        "\n" * n,
        "\n " * (n // 2),
        "".join(rng.choices("中文字符", k=n)),
        "7" * n,
        "e\u0301" * (n // 2),
    ]


@every_family
def test_ids_are_those_of_the_whole(family: str) -> None:
    """Whatever stands beside a run, and whether the tokenizer can be cut or not."""
    inner, engine = engines(family)
    rng = random.Random(4)
    tokens = [token.content for token in read_spec(tokenizer_json(family)).added_tokens][:3]
    beside = ["", " ", "x", "'s", "!", "word ", "\n", *tokens]
    documents = [rng.choice(beside) + run + rng.choice(beside) for run in runs(rng, 2 * SAMPLE_EVERY + 700)]
    for document in [*documents, documents[0] + " and " + documents[3]]:
        assert engine.encode(document) == inner.encode(document), repr(document[:40])
    assert engine.encode_many(["a", documents[0], ""]) == [inner.encode(text) for text in ("a", documents[0], "")]


@pytest.mark.parametrize("family", ["embedded", *(f for f in FAMILIES if f == "byte_bpe")])
def test_long_runs_are_taken_in_pieces(family: str) -> None:
    """The engine never sees letters of a long run as a whole; a document without one stays whole."""
    inner, engine = engines(family)
    letters = "".join(random.Random(2).choices(LETTERS, k=5 * SAMPLE_EVERY))
    expected = inner.encode(letters)
    inner.longest = 0
    assert engine.encode(letters) == expected
    assert inner.longest < 2 * PIECE_STEP
    text = "some words " * SAMPLE_EVERY
    assert engine.encode(text) == inner.encode(text)
    assert inner.longest == len(text)
    assert engine.encode_many([text, "x"]) == [inner.encode(text), inner.encode("x")]


def test_added_tokens_of_letters_are_found_in_long_runs() -> None:
    """A run of letters is not cut where a token of letters may lie across."""
    file = json.loads(tokenizer_json("embedded"))
    flags = dict.fromkeys(("special", "normalized", "single_word", "lstrip", "rstrip"), False)
    file["added_tokens"].append({"id": 200_000, "content": "qzj", **flags})
    data = json.dumps(file).encode()
    inner = CountingEngine(data.decode())
    letters = "".join(random.Random(3).choices("qzjxe", k=5 * SAMPLE_EVERY))
    assert letters.count("qzj") > 100
    assert PiecewiseEngine(inner, read_spec(data), data).encode(letters) == inner.encode(letters)


def test_entries_as_long_as_a_part_are_not_met() -> None:
    """An entry that only a whole pre-token gets, where merges do not count: it may begin with any sign."""
    file = json.loads(split_bpe())
    file["normalizer"] = None
    text = "\u2014" + "".join(random.Random(6).choices(LETTERS, k=3 * SAMPLE_EVERY))
    sign = "\u00e2\u0122\u0136"
    for n_letters in range(48, 3 * STEP):
        file["model"]["vocab"][sign + text[1 : 1 + n_letters]] = 10_000 + n_letters
    data = json.dumps(file).encode()
    inner = CountingEngine(data.decode())
    assert inner.encode(text[:91]) == (10_090).to_bytes(4, "little")
    assert PiecewiseEngine(inner, read_spec(data), data).encode(text) == inner.encode(text)


def test_equal_documents_are_encoded_once() -> None:
    """A batch of the same few documents; others are passed on as they are."""
    inner, engine = engines("byte_bpe")
    documents = ["one", "two", "one "] * MANY
    expected = [inner.encode(document) for document in documents]
    inner.n_documents = 0
    assert engine.encode_many(documents) == expected
    assert inner.n_documents == 3
    different = [str(i) for i in range(MANY)]
    assert engine.encode_many(different) == [inner.encode(document) for document in different]
