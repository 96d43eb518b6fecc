"""Random Unicode text with added tokens spliced in: every engine against the reference."""

from __future__ import annotations

from functools import cache

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dispatcher.engines.choice import choose_engine
from dispatcher.engines.reference_engine import ReferenceEngine
from dispatcher.proof import ProofCache
from dispatcher.request import EncodeOptions
from dispatcher.tokenizer import Tokenizer
from gpu_core.spec import read_spec
from tests.data import EMBEDDED, FULL, families, tokenizer_json

REAL = ("llama3_1", "qwen3", "llama2")
FAMILIES = [EMBEDDED, "split_bpe", "byte_bpe", *(name for name in REAL if name in families())]
TRICKY = [
    *("'s", "'t", "'re", "'ve", "'m", "'ll", "'d", "'\u017f", "\u2019s", "\u017f", "\u212a", "\u0130", "\u00df", "K"),
    *("\r\n", "\n\n", " \n", "\t", "  ", "\u00a0", "\u3000", "\u2028", "\x85", "\x0b", "\0", "\u200b", "\ufeff"),
    *(
        "e\u0301",
        "\u0338",
        "\u0323\u0301",
        "\u1100\u1161\u11a8",
        "\u30ab\u3099",
        "\u0e33",
        "\u0cdc",
        "\u08d3",
        "\U000113c5",
    ),
    *("\u6f22\u5b57", "\U0001f468\u200d\U0001f469", "\U000323b1", "\u01c5", "\u02b0", "\u0120", "\u2581"),
    *("123", "1234567", "\u0661\u0662", "\u00b2", "\u2167", "==", "--", "...", "//", "<|", "|>", "</s>", "<0x41>"),
]


@cache
def parts_of(family: str) -> tuple[ReferenceEngine, tuple[Tokenizer, Tokenizer], list[str]]:
    """The reference, the tokenizer with `auto` and with gigatoken, and some added tokens."""
    data = tokenizer_json(family)
    text, spec = data.decode(), read_spec(data)
    reference = ReferenceEngine(text)
    cache = ProofCache(None)
    choices = [choose_engine(wanted, text, spec, reference, cache) for wanted in ("auto", "gigatoken")]
    tokenizers = [Tokenizer(spec, reference, choice.engine, choice.reason) for choice in choices]
    literals = [token.content for token in (*spec.added_tokens[:40], *spec.added_tokens[-10:])]
    return reference, (tokenizers[0], tokenizers[1]), literals


def texts(literals: list[str]) -> st.SearchStrategy[str]:
    """Up to a few dozen pieces: characters of all kinds, runs of one, tricky units, added tokens whole and broken."""
    character = st.characters(exclude_categories=["Cs"])
    literal = st.sampled_from(literals or [""])
    piece = st.one_of(
        character,
        st.text(character, max_size=12),
        st.text(st.characters(max_codepoint=0x7F), max_size=20),
        st.sampled_from(TRICKY),
        literal,
        st.builds(lambda token, n: token[:n], literal, st.integers(1, 8)),
        st.builds(lambda unit, n: unit * n, st.one_of(character, st.sampled_from(TRICKY)), st.integers(2, 70)),
    )
    return st.lists(piece, max_size=24).map("".join)


@pytest.mark.parametrize("family", FAMILIES)
def test_ids_are_the_reference_ids(family: str) -> None:
    """No text makes an engine answer other ids than the reference, whoever of the two answers."""
    reference, tokenizers, literals = parts_of(family)

    @settings(
        max_examples=20_000 if FULL else 250,
        derandomize=True,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )
    @given(texts(literals))
    def check(text: str) -> None:
        expected = reference.encode(text)
        for tokenizer in tokenizers:
            (document,) = tokenizer.encode([text], EncodeOptions(add_special_tokens=False))
            assert document.ids == expected, tokenizer.engine

    check()
    assert all(tokenizer.counters().engine_faults == 0 for tokenizer in tokenizers)


@pytest.mark.parametrize("family", FAMILIES[:2])
def test_round_trip(family: str) -> None:
    """Byte-level ids lose nothing: their text is the normalized document."""
    reference, (tokenizer, _), literals = parts_of(family)
    normalizer = reference.tokenizer.normalizer

    @settings(max_examples=300, derandomize=True, database=None, deadline=None, suppress_health_check=list(HealthCheck))
    @given(texts([]))
    def check(text: str) -> None:
        if any(literal in text for literal in literals):
            return
        (document,) = tokenizer.encode([text], EncodeOptions(add_special_tokens=False))
        (decoded,) = tokenizer.decode([np.frombuffer(document.ids, "<u4")], False)
        assert decoded == (normalizer.normalize_str(text) if normalizer is not None else text)

    check()
