"""Promises of gpu_core.pattern."""

from __future__ import annotations

from typing import Any

import pytest

from gpu_core.pattern import branches_of, pattern_family
from gpu_core.spec import read_spec
from tests.data import families, tokenizer_json
from tests.synthetic import CL100K

BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "use_regex": False}
REAL = {
    "deepseek_v3": "deepseek_v3",
    "embedded": "deepseek_v3",
    "gemma3": "sentencepiece",
    "gpt2": "gpt2",
    "gpt35turbo": "cl100k",
    "gpt_neox_20b": "gpt2",
    "gptoss": "o200k",
    "llama2": "sentencepiece",
    "llama3_1": "cl100k",
    "mistral_nemo_tekken": "tekken",
    "qwen2_5": "qwen2",
    "qwen3": "qwen2",
    "qwen3_5": "qwen3_5",
    "starcoder": "digits_gpt2",
    "synthetic_kimi_k2": "kimi_k2",
}


def split(regex: str, behavior: str = "Isolated", invert: bool = False) -> dict[str, Any]:
    """A Split component."""
    return {"type": "Split", "pattern": {"Regex": regex}, "behavior": behavior, "invert": invert}


@pytest.mark.parametrize("family", [name for name in families() if name in REAL])
def test_real_files(family: str) -> None:
    """Published files fall into the family that their model card names."""
    assert read_spec(tokenizer_json(family)).pattern_family == REAL[family]


@pytest.mark.parametrize(
    "step",
    [
        split(CL100K),
        split(CL100K, "Removed", True),
        split(CL100K.replace("(?i:'s|'t|'re|'ve|'m|'ll|'d)", "'(?i:[sdmt]|ll|ve|re)")),
        split(CL100K.replace(r"\r\n", "\r\n")),
    ],
)
def test_spellings_of_one_rule(step: dict[str, Any]) -> None:
    """Spellings that match the same text are the same family."""
    assert pattern_family([step, BYTE_LEVEL], byte_level=True) == "cl100k"


@pytest.mark.parametrize(
    "steps",
    [
        [split(CL100K, "MergedWithNext"), BYTE_LEVEL],
        [split(CL100K, "Isolated", True), BYTE_LEVEL],
        [split(CL100K.replace("{1,3}", "{1,4}")), BYTE_LEVEL],
        [split(CL100K + "|x"), BYTE_LEVEL],
        [split(CL100K.replace("{1,3}", "{1,3}+")), BYTE_LEVEL],
        [split(CL100K), split(r"\p{N}{1,3}"), BYTE_LEVEL],
        [split(CL100K), {**BYTE_LEVEL, "use_regex": True}],
        [split(CL100K), {**BYTE_LEVEL, "add_prefix_space": True}],
        [{"type": "Split", "pattern": {"String": " "}, "behavior": "Isolated", "invert": False}, BYTE_LEVEL],
        [{"type": "Digits", "individual_digits": False}, {"type": "ByteLevel", "add_prefix_space": False}],
        [{"type": "Punctuation"}, BYTE_LEVEL],
        [BYTE_LEVEL],
        [],
    ],
)
def test_almost_a_family_is_other(steps: list[dict[str, Any]]) -> None:
    """One rule that differs is enough: a kernel for the family would not be exact."""
    assert pattern_family(steps, byte_level=True) == "other"


@pytest.mark.parametrize(
    ("steps", "expected"),
    [
        ([], "sentencepiece"),
        ([{"type": "Split", "pattern": {"String": " "}, "behavior": "MergedWithPrevious"}], "sentencepiece"),
        ([{"type": "Metaspace"}], "other"),
    ],
)
def test_without_bytes(steps: list[dict[str, Any]], expected: str) -> None:
    """A model over characters sees all text between added tokens as one word, unless something splits it."""
    assert pattern_family(steps, byte_level=False) == expected


@pytest.mark.parametrize(
    ("regex", "expected"),
    [
        ("a|b", ["a", "b"]),
        ("(a|b)|c", ["(a|b)", "c"]),
        (r"[|]|\||x", ["[|]", r"\|", "x"]),
        (r"[a&&[^b|c]]+|d", [r"[a&&[^b|c]]+", "d"]),
        (r"[\]|]|e", [r"[\]|]", "e"]),
        ("", [""]),
    ],
)
def test_branches(regex: str, expected: list[str]) -> None:
    """A `|` inside a group, a class or an escape separates nothing."""
    assert branches_of(regex) == expected
