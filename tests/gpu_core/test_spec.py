"""Promises of gpu_core.spec."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import pytest
from tokenizers import Tokenizer

from gpu_core.errors import TokenizerFileError
from gpu_core.spec import read_spec
from tests.data import EMBEDDED, families, tokenizer_json
from tests.synthetic import SYNTHETIC

FLAGS = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
BPE: dict[str, Any] = {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 2}, "merges": ["a b"]}

PREFIXED = {"continuing_subword_prefix": "##", "max_input_chars_per_word": 9}


def file_of(model: dict[str, Any], **members: Any) -> bytes:
    """A minimal tokenizer.json."""
    return json.dumps({"version": "1.0", "added_tokens": [], "model": model, **members}).encode()


@pytest.mark.parametrize("family", families())
def test_says_what_the_reference_says(family: str) -> None:
    """Model kind, vocabulary, largest id and every added token are what the reference library has after loading."""
    data = tokenizer_json(family)
    spec = read_spec(data)
    reference = Tokenizer.from_str(data.decode())
    assert spec.model_type == type(reference.model).__name__
    assert spec.vocab_size == reference.get_vocab_size(with_added_tokens=False)
    assert spec.max_id == max(reference.get_vocab(with_added_tokens=True).values())
    added = {
        i: (t.content, t.special, t.normalized, t.single_word, t.lstrip, t.rstrip)
        for i, t in reference.get_added_tokens_decoder().items()
    }
    assert added == {
        t.id: (t.content, t.special, t.normalized, t.single_word, t.lstrip, t.rstrip) for t in spec.added_tokens
    }


def test_embedded_facts() -> None:
    """The embedded file is recognised by its structure."""
    data = tokenizer_json(EMBEDDED)
    spec = read_spec(data)
    assert spec.digest == hashlib.sha256(data).hexdigest()
    assert (spec.model_type, spec.pattern_family, spec.normalizer) == ("BPE", "deepseek_v3", "none")
    assert (spec.vocab_size, spec.n_merges, spec.max_id) == (128_000, 127_741, 129_279)
    assert spec.byte_level
    assert not spec.byte_fallback
    assert not spec.ignore_merges
    assert spec.post_processors == ("ByteLevel",)


@pytest.mark.parametrize("family", SYNTHETIC)
def test_synthetic_families(family: str) -> None:
    """Splits and models are told apart by structure alone."""
    spec = read_spec(tokenizer_json(family))
    expected = {"split_bpe": "cl100k", "byte_bpe": "gpt2", "repeating": "gpt2", "overlapping": "gpt2"}
    assert spec.pattern_family == expected.get(family, "other")


def test_truncation_and_padding_are_noticed() -> None:
    """Settings that would be switched off are named."""
    left_in = read_spec(tokenizer_json("word_level"))
    assert (left_in.sets_truncation, left_in.sets_padding) == (True, True)
    absent = read_spec(tokenizer_json("byte_bpe"))
    assert (absent.sets_truncation, absent.sets_padding) == (False, False)


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ({"vocab": {"a": 0}, "merges": []}, "BPE"),
        ({"vocab": {"a": 0}, "unk_token": "a", **PREFIXED}, "WordPiece"),
        ({"vocab": {"a": 0}, "unk_token": "a"}, "WordLevel"),
        ({"vocab": [["a", 0.0]], "unk_id": 0}, "Unigram"),
    ],
)
def test_type_is_inferred_like_the_reference(fields: dict[str, Any], expected: str) -> None:
    """A model without a type is of the first kind that its fields fit."""
    data = file_of(fields)
    assert read_spec(data).model_type == type(Tokenizer.from_str(data.decode()).model).__name__ == expected


@pytest.mark.parametrize(
    ("ids", "expected"),
    [
        ([7], [3]),
        ([7, 3, 9], [3, 4, 5]),
        ([2], [3]),
    ],
)
def test_ids_of_added_tokens(ids: list[int], expected: list[int]) -> None:
    """Literals outside the vocabulary are numbered after it, whatever their entries say."""
    entries = [{"id": i, "content": f"<{n}>", **FLAGS} for n, i in enumerate(ids)]
    data = file_of(BPE, added_tokens=entries)
    spec = read_spec(data)
    reference = Tokenizer.from_str(data.decode()).get_added_tokens_decoder()
    assert [t.id for t in spec.added_tokens] == sorted(reference) == expected


def test_added_tokens_that_repeat_or_are_in_the_vocabulary() -> None:
    """A literal of the vocabulary keeps its id, a repeated one counts once, an empty one not at all."""
    contents = ["ab", "<x>", "", "<x>", "a"]
    entries = [{"id": i, "content": c, **FLAGS, "lstrip": i == 3} for i, c in enumerate(contents)]
    data = file_of(BPE, added_tokens=entries)
    reference = Tokenizer.from_str(data.decode()).get_added_tokens_decoder()
    assert [(t.id, t.content, t.lstrip) for t in read_spec(data).added_tokens] == [
        (i, t.content, t.lstrip) for i, t in sorted(reference.items())
    ]


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "the file is empty"),
        (b"  \n", "the file is empty"),
        (b"\xff\xfe{}", "invalid UTF-8 at byte 0"),
        (b"tokens", "invalid JSON at line 1 column 1"),
        (file_of(BPE)[:-20], "the file is cut off"),
        (file_of(BPE)[:60], "the file is cut off"),
        (b"[]", "not an object"),
        (b"[" * 100_000, "nested too deeply"),
        (b"{}", "'model' of the file is missing"),
        (b'{"model": 3}', "'model' of the file has the wrong type"),
        (file_of({"type": "BPE", "merges": []}), "'vocab' of the model is missing"),
        (file_of({"type": "BPE", "vocab": {"a": 0}}), "'merges' of the model is missing"),
        (file_of({"type": "Magic", "vocab": {}}), "none of BPE, Unigram, WordPiece, WordLevel"),
        (file_of({"vocab": {"a": 0}}), "fit none of BPE"),
        (file_of({**BPE, "vocab": {"a": -1, "b": 1, "ab": 2}}), "not an integer from 0"),
        (file_of({**BPE, "vocab": {"a": 1 << 32, "b": 1, "ab": 2}}), "not an integer from 0"),
        (file_of({**BPE, "merges": ["a b", "a c"]}), "merge 1 of the model joins or makes a token that the vocabulary"),
        (file_of({**BPE, "merges": ["b a"]}), "merge 0 of the model joins or makes"),
        (file_of({**BPE, "merges": ["a b c"]}), "merge 0 of the model is not a pair"),
        (file_of({**BPE, "merges": [["a", 1]]}), "merge 0 of the model is not a pair"),
        (file_of({"type": "Unigram", "vocab": [["a"]]}), "not a pair of text and score"),
        (file_of(BPE, added_tokens=[{"id": 1, "content": "x"}]), "added token 0 lacks"),
    ],
)
def test_broken_files_are_refused_with_the_reason(data: bytes, reason: str) -> None:
    """The message says what is wrong, so that the file can be repaired."""
    with pytest.raises(TokenizerFileError) as caught:
        read_spec(data)
    assert reason in str(caught.value)
    assert len(str(caught.value)) < 200


def test_merges_with_a_prefix_for_continuing_symbols() -> None:
    """The right part of a merge loses its prefix in the product, as in the reference."""
    model = {**BPE, "continuing_subword_prefix": "##", "vocab": {"a": 0, "##b": 1, "ab": 2}, "merges": [["a", "##b"]]}
    assert read_spec(file_of(model)).n_merges == 1
