"""Promises of dispatcher.special_tokens."""

from __future__ import annotations

import numpy as np
import pytest

from dispatcher.engines.reference_engine import ReferenceEngine
from dispatcher.special_tokens import SpecialTokens, learn_special_tokens
from gpu_core.spec import read_spec
from tests.data import tokenizer_json


@pytest.mark.parametrize(
    ("family", "before", "after"),
    [
        ("byte_bpe", ["<s>"], ["</s>", "</s>"]),
        ("split_bpe", [], []),
        ("word_piece", ["[CLS]"], ["[SEP]"]),
        ("unigram", [], ["</s>"]),
        ("embedded", [], []),
    ],
)
def test_prefix_and_suffix_are_learned(family: str, before: list[str], after: list[str]) -> None:
    """The ids around a document are found without knowing the post-processor."""
    data = tokenizer_json(family)
    reference = ReferenceEngine(data.decode())

    def packed(tokens: list[str]) -> bytes:
        ids = [reference.tokenizer.token_to_id(token) for token in tokens]
        return np.array(ids, dtype="<u4").tobytes()

    learned = learn_special_tokens(reference, read_spec(data))
    assert learned == SpecialTokens(packed(before), packed(after))
    assert learned.n_tokens == len(before) + len(after)


def test_anything_else_is_left_to_the_reference() -> None:
    """A template that repeats the document is no prefix and suffix."""
    data = tokenizer_json("repeating")
    assert learn_special_tokens(ReferenceEngine(data.decode()), read_spec(data)) is None
