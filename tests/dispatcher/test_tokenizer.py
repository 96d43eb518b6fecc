"""Promises of dispatcher.tokenizer: what a request gets, whatever engine is behind it."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import Literal

import numpy as np
import pytest
from tokenizers import Tokenizer as Reference

from dispatcher.engines.reference_engine import IDS_PER_PIECE, ReferenceEngine
from dispatcher.errors import InvalidOption, InvalidText
from dispatcher.request import EncodedDocument, EncodeOptions
from dispatcher.tokenizer import Tokenizer, load_tokenizer
from gpu_core.spec import read_spec
from tests.data import EMBEDDED, adversarial, corpus_windows, tokenizer_json
from tests.synthetic import SYNTHETIC

PLAIN = EncodeOptions(add_special_tokens=False)


EVERYTHING = EncodeOptions(char_offsets=True, byte_offsets=True, token_strings=True, special_tokens_mask=True)


TEXT = "  It's \u00e9t\u00e9 <mask> in Tokyo (\u6771\u4eac), \U0001f600!\n\nword 12345 "


Side = Literal["left", "right"]


all_synthetic = pytest.mark.parametrize("synthetic", SYNTHETIC, indirect=True)


def ids_of(document: EncodedDocument) -> list[int]:
    """Unpacked ids."""
    return [int(i) for i in np.frombuffer(document.ids, "<u4")]


def reference_of(tokenizer: Tokenizer | str) -> Reference:
    """A fresh instance of the reference library, without truncation and padding."""
    name = tokenizer if isinstance(tokenizer, str) else family_of(tokenizer)
    reference = Reference.from_str(tokenizer_json(name).decode())
    reference.no_truncation()
    reference.no_padding()
    return reference


def family_of(tokenizer: Tokenizer) -> str:
    """The family that a loaded tokenizer is of."""
    names = (*SYNTHETIC, EMBEDDED)
    return next(name for name in names if read_spec(tokenizer_json(name)).digest == tokenizer.spec.digest)


def assert_equal(document: EncodedDocument, expected: EncodedDocument) -> None:
    """All that was asked for is the same."""
    assert (ids_of(document), document.n_tokens) == (ids_of(expected), expected.n_tokens)
    for name in ("char_offsets", "byte_offsets", "special_tokens_mask"):
        np.testing.assert_array_equal(getattr(document, name), getattr(expected, name))
    assert document.token_strings == expected.token_strings


@all_synthetic
@pytest.mark.parametrize("add_special_tokens", [True, False])
def test_everything_equals_the_reference(synthetic: Tokenizer, add_special_tokens: bool) -> None:
    """Ids, character offsets, strings and the mask are those of the library's `encode`."""
    reference = reference_of(synthetic)
    options = replace(EVERYTHING, add_special_tokens=add_special_tokens)
    texts = [TEXT, *(sample.text for sample in (*adversarial()[::25], *corpus_windows(2, 400)))]
    for text, document in zip(texts, synthetic.encode(texts, options), strict=True):
        expected = reference.encode(text, add_special_tokens=add_special_tokens)
        assert ids_of(document) == expected.ids
        assert document.n_tokens == len(expected.ids)
        assert document.token_strings == expected.tokens
        assert document.char_offsets is not None
        assert [tuple(row) for row in document.char_offsets.tolist()] == expected.offsets
        assert document.special_tokens_mask is not None
        assert document.special_tokens_mask.tolist() == expected.special_tokens_mask


@all_synthetic
def test_ids_with_special_tokens(synthetic: Tokenizer) -> None:
    """The fast path around learned special tokens gives what the post-processor gives."""
    reference = reference_of(synthetic)
    texts = ["", " ", TEXT, *(sample.text for sample in adversarial()[::10])]
    documents = synthetic.encode(texts, EncodeOptions())
    assert [ids_of(document) for document in documents] == [reference.encode(text).ids for text in texts]


@all_synthetic
@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("add_special_tokens", [True, False])
def test_truncation_equals_the_reference(synthetic: Tokenizer, side: Side, add_special_tokens: bool) -> None:
    """`max_tokens` cuts as `enable_truncation(max_length, direction=...)` does, for ids alone and for everything."""
    reference = reference_of(synthetic)
    n_special = reference.num_special_tokens_to_add(False) if add_special_tokens else 0
    n_all = len(reference.encode(TEXT, add_special_tokens=add_special_tokens).ids)
    for max_tokens in (n_special, n_special + 1, n_special + 2, n_all // 2, n_all - 1, n_all, n_all + 1):
        reference.enable_truncation(max(max_tokens, 1), direction=side)
        expected = reference.encode(TEXT, add_special_tokens=add_special_tokens)
        expected_ids = expected.ids if max_tokens else []
        options = EncodeOptions(add_special_tokens=add_special_tokens, max_tokens=max_tokens, truncation_side=side)
        (ids_only,) = synthetic.encode([TEXT], options)
        assert ids_of(ids_only) == expected_ids
        assert ids_only.n_tokens == len(expected_ids)
        detailed = replace(
            EVERYTHING, add_special_tokens=add_special_tokens, max_tokens=max_tokens, truncation_side=side
        )
        (document,) = synthetic.encode([TEXT], detailed)
        assert ids_of(document) == expected_ids
        assert document.truncated is ids_only.truncated
        if max_tokens:
            assert document.char_offsets is not None
            assert [tuple(row) for row in document.char_offsets.tolist()] == expected.offsets
            assert document.token_strings == expected.tokens


@pytest.mark.parametrize("synthetic", ["byte_bpe"], indirect=True)
def test_truncated_says_whether_something_was_cut(synthetic: Tokenizer) -> None:
    """True exactly when ids of the document are missing."""
    (whole,) = synthetic.encode([TEXT], EncodeOptions())
    for max_tokens, expected in ((whole.n_tokens + 1, False), (whole.n_tokens, False), (whole.n_tokens - 1, True)):
        for options in (EncodeOptions(max_tokens=max_tokens), replace(EVERYTHING, max_tokens=max_tokens)):
            assert synthetic.encode([TEXT], options)[0].truncated is expected


@all_synthetic
def test_room_for_special_tokens(synthetic: Tokenizer) -> None:
    """Fewer tokens than the special tokens alone, or a negative number, cannot be honoured."""
    n_special = reference_of(synthetic).num_special_tokens_to_add(False)
    for options in (EncodeOptions(), EVERYTHING):
        with pytest.raises(InvalidOption, match="must not be negative"):
            synthetic.encode(["a"], replace(options, max_tokens=-1))
        if n_special:
            with pytest.raises(InvalidOption, match=f"adds {n_special} special tokens"):
                synthetic.encode(["a"], replace(options, max_tokens=n_special - 1))


@all_synthetic
def test_count_only(synthetic: Tokenizer) -> None:
    """A count is the number of ids that the same options give, without the ids."""
    for options in (EncodeOptions(), PLAIN, EncodeOptions(max_tokens=7), EncodeOptions(token_strings=True)):
        (document,) = synthetic.encode([TEXT], options)
        (count,) = synthetic.encode([TEXT], replace(options, count_only=True))
        assert (count.ids, count.n_tokens, count.truncated) == (b"", document.n_tokens, document.truncated)


def test_offsets_of_parts_of_characters(embedded: Tokenizer) -> None:
    """A token that is a part of a character spans the whole character, in characters and in bytes."""
    text = "\u00e9\U000130f8 x"
    (document,) = embedded.encode([text], replace(EVERYTHING, add_special_tokens=False))
    assert document.char_offsets is not None
    assert document.byte_offsets is not None
    spans = [tuple(row) for row in document.char_offsets.tolist()]
    assert spans.count((1, 2)) > 1
    data = text.encode()
    for (start, end), (first, last) in zip(spans, document.byte_offsets.tolist(), strict=True):
        assert data[first:last].decode() == text[start:end]


@pytest.mark.parametrize("text", ["", "\0", "a\0b", "\0" * 100, "\ufeff", "\U0010ffff", "\ue000", "\r"])
def test_unusual_text_is_text(embedded: Tokenizer, text: str) -> None:
    """Empty text and NUL are encoded as the reference does."""
    expected = reference_of(EMBEDDED).encode(text, add_special_tokens=False).ids
    for options in (PLAIN, replace(EVERYTHING, add_special_tokens=False)):
        assert ids_of(embedded.encode([text], options)[0]) == expected


@pytest.mark.parametrize("synthetic", ["split_bpe", "word_piece", "repeating"], indirect=True)
@pytest.mark.parametrize("options", [PLAIN, EncodeOptions(), EncodeOptions(max_tokens=8), EVERYTHING])
@pytest.mark.parametrize(("text", "position"), [("\ud800", 0), ("ab\udfff", 2), ("\u00e9" * 2000 + "\ud83d x", 2000)])
def test_lone_surrogate(synthetic: Tokenizer, options: EncodeOptions, text: str, position: int) -> None:
    """A str that is no Unicode text is refused with the position, never with the text."""
    with pytest.raises(InvalidText, match=rf"lone surrogate at character {position}$"):
        synthetic.encode([text], options)
    assert synthetic.counters().engine_faults == 0


@pytest.mark.parametrize("engine", ["auto", "fastokens", "gigatoken", "reference"])
def test_lone_surrogate_with_each_engine(engine: str) -> None:
    """The same whichever engine serves."""
    tokenizer = load_tokenizer(tokenizer_json("split_bpe"), engine=engine, cache_dir=None)
    with pytest.raises(InvalidText, match=r"at character 1$"):
        tokenizer.encode(["a\ud800"], PLAIN)
    with pytest.raises(InvalidText, match=r"at character 1$"):
        tokenizer.reference_encode("a\ud800", PLAIN)


def test_many_documents_and_none(embedded: Tokenizer) -> None:
    """One result per document, in order."""
    texts = ["one", "", "two words", "one"]
    assert [ids_of(d) for d in embedded.encode(texts, PLAIN)] == [ids_of(embedded.encode([t], PLAIN)[0]) for t in texts]
    assert embedded.encode([], PLAIN) == []


@all_synthetic
@pytest.mark.parametrize("skip_special_tokens", [True, False])
def test_decode_equals_the_reference(synthetic: Tokenizer, skip_special_tokens: bool) -> None:
    """Texts of encoded documents, of cut ones, and of arbitrary ids are the reference's."""
    reference = reference_of(synthetic)
    rng = np.random.default_rng(5)
    sequences = [np.frombuffer(d.ids, "<u4") for d in synthetic.encode([TEXT, "", "x"], EncodeOptions())]
    sequences += [sequences[0][:n] for n in range(6)]
    sequences += [rng.integers(0, synthetic.max_id + 1, n, dtype=np.uint32) for n in (1, 2, 50)]
    expected = [reference.decode(s.tolist(), skip_special_tokens=skip_special_tokens) for s in sequences]
    assert synthetic.decode(sequences, skip_special_tokens) == expected


@pytest.mark.parametrize("unknown", [129_280, 999_999, 2**32 - 1])
def test_unknown_ids_are_left_out(embedded: Tokenizer, unknown: int) -> None:
    """Ids that the tokenizer does not have are dropped from a text and have no string, as in the reference."""
    known = np.frombuffer(embedded.encode(["Hello, world"], PLAIN)[0].ids, "<u4")
    mixed = np.insert(known, 1, unknown).astype(np.uint32)
    assert embedded.decode([mixed], True) == ["Hello, world"]
    assert embedded.tokens_of(mixed)[1] is None
    assert reference_of(EMBEDDED).decode(mixed.tolist()) == "Hello, world"


def test_strings_and_ids(embedded: Tokenizer) -> None:
    """`tokens_of` and `token_to_id` are each other's inverse, added tokens included."""
    ids = np.array([0, 1, 100, 127_999, 128_000, embedded.max_id], dtype=np.uint32)
    tokens = embedded.tokens_of(ids)
    assert [embedded.token_to_id(token) for token in tokens if token is not None] == ids.tolist()
    assert embedded.token_to_id("no such token") is None


@all_synthetic
def test_sizes(synthetic: Tokenizer) -> None:
    """Vocabulary size and largest id are the reference's."""
    vocabulary = reference_of(synthetic).get_vocab(with_added_tokens=True)
    assert (synthetic.vocab_size, synthetic.max_id) == (len(vocabulary), max(vocabulary.values()))


@pytest.mark.parametrize("synthetic", ["split_bpe", "repeating", "word_level"], indirect=True)
@pytest.mark.parametrize(
    "options", [PLAIN, EncodeOptions(), EncodeOptions(max_tokens=9, truncation_side="left"), EVERYTHING]
)
def test_the_judge_gives_the_same(synthetic: Tokenizer, options: EncodeOptions) -> None:
    """`reference_encode`, which the shadow check compares with, agrees and counts nothing."""
    (document,) = synthetic.encode([TEXT], options)
    before = synthetic.counters()
    assert_equal(synthetic.reference_encode(TEXT, options), document)
    assert synthetic.counters() == before


def test_threads_mix_options() -> None:
    """Requests with and without truncation and offsets do not disturb one another: no setting is shared state."""
    tokenizer = load_tokenizer(tokenizer_json("byte_bpe"), cache_dir=None)
    mixed = [
        PLAIN,
        EncodeOptions(),
        EncodeOptions(max_tokens=5),
        replace(EVERYTHING, max_tokens=6, truncation_side="left"),
        EVERYTHING,
        EncodeOptions(count_only=True, max_tokens=9),
    ]
    expected = [tokenizer.encode([TEXT], options)[0] for options in mixed]
    failures: list[BaseException] = []

    def work(turn: int) -> None:
        try:
            for i in range(60):
                n = (i + turn) % len(mixed)
                assert_equal(tokenizer.encode([TEXT], mixed[n])[0], expected[n])
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work, args=(turn,)) for turn in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


def test_file_settings_are_switched_off() -> None:
    """Truncation and padding that stand in the file do not apply: a request says itself what it wants."""
    tokenizer = load_tokenizer(tokenizer_json("word_level"), cache_dir=None)
    assert tokenizer.encode(["a b c d e f g h"], EncodeOptions())[0].n_tokens == 8
    assert tokenizer.encode(["a"], EncodeOptions())[0].n_tokens == 1


def test_long_documents_are_truncated_at_bounded_cost() -> None:
    """A few ids of a long document with offsets: the library's objects for what was cut off stay few."""
    data = tokenizer_json("split_bpe")
    reference = ReferenceEngine(data.decode())
    options = replace(EVERYTHING, max_tokens=1)
    for side in ("left", "right"):
        encoding, truncated = reference.encoding("ab 1! " * 30_000, replace(options, truncation_side=side))
        assert truncated
        assert len(encoding.ids) == 1
        assert len(encoding.overflowing) < 200


@pytest.mark.parametrize("synthetic", ["byte_bpe", "split_bpe", "repeating"], indirect=True)
@pytest.mark.parametrize("max_tokens", [None, IDS_PER_PIECE + 9])
@pytest.mark.parametrize("add_special_tokens", [True, False])
def test_offsets_of_many_ids(synthetic: Tokenizer, max_tokens: int | None, add_special_tokens: bool) -> None:
    """Offsets that are read one by one are those of the library's list."""
    options = EncodeOptions(add_special_tokens=add_special_tokens, char_offsets=True, max_tokens=max_tokens)
    text = TEXT * (4 * IDS_PER_PIECE // len(TEXT))
    (document,) = synthetic.encode([text], options)
    assert document.n_tokens > IDS_PER_PIECE
    reference = reference_of(synthetic)
    if max_tokens:
        reference.enable_truncation(max_tokens)
    expected = np.array(reference.encode(text, add_special_tokens=add_special_tokens).offsets)
    np.testing.assert_array_equal(document.char_offsets, expected)
