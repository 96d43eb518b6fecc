"""Pieces of long documents: short enough, nothing lost, and the ids of the whole."""

from __future__ import annotations

import pytest

from dispatcher.engines.reference_engine import ReferenceEngine
from dispatcher.errors import InvalidText, TextTooLarge
from dispatcher.pieces import Cutter, cutter_of
from dispatcher.request import EncodeOptions
from dispatcher.tokenizer import LARGE_CHARS, PIECE_BYTES, Tokenizer, load_tokenizer
from gpu_core.errors import UnsupportedTokenizer
from gpu_core.spec import read_spec
from tests.data import EMBEDDED, corpus_windows, tokenizer_json

LONG_S = " it'\u017f "


def test_the_ids_of_the_pieces_are_those_of_the_whole() -> None:
    """Real text of several languages in small pieces: joined it is the text, and the ids are the same."""
    data = tokenizer_json(EMBEDDED)
    reference, cutter = ReferenceEngine(data.decode()), Cutter(read_spec(data), 200)
    for sample in corpus_windows(4, 2000):
        pieces = cutter.pieces(sample.text)
        if pieces is None:
            continue
        assert "".join(pieces) == sample.text
        assert all(len(piece.encode()) <= 200 for piece in pieces)
        assert len(pieces) >= len(sample.text.encode()) // 200
        assert b"".join(map(reference.encode, pieces)) == reference.encode(sample.text)


def test_text_without_a_safe_cut_stays_whole() -> None:
    """There are no pieces of what has no place to be cut; a short text is one piece."""
    cutter = Cutter(read_spec(tokenizer_json(EMBEDDED)), 10)
    assert cutter.pieces("!" * 11) is None
    assert cutter.pieces("!" * 10) == ["!" * 10]
    assert cutter.pieces("") == [""]


def test_tokenizers_without_known_cuts() -> None:
    """A tokenizer of another kind has no cutter."""
    spec = read_spec(tokenizer_json("unigram"))
    with pytest.raises(UnsupportedTokenizer):
        Cutter(spec, 100)
    assert cutter_of(spec, 100) is None


def test_a_long_document_that_the_engine_may_not_answer(embedded: Tokenizer) -> None:
    """Its pieces go to the engine, but for those with what is guarded; the ids are the reference's."""
    text = "some words of a text " * (PIECE_BYTES // 20) + LONG_S + "end"
    reference = ReferenceEngine(tokenizer_json(EMBEDDED).decode())
    before = embedded.counters().documents["reference"]
    (document,) = embedded.encode([text], EncodeOptions(add_special_tokens=False))
    assert document.ids == reference.encode(text)
    assert embedded.counters().documents["reference"] == before + 1
    with pytest.raises(InvalidText, match="lone surrogate"):
        embedded.encode([text + "\ud800"], EncodeOptions())


def test_documents_that_take_too_much_memory_are_refused() -> None:
    """Over the limit, in bytes of UTF-8, offsets are refused; ids are not where cuts are known."""
    tokenizer = load_tokenizer(tokenizer_json(EMBEDDED), engine="reference", cache_dir=None, max_reference_bytes=1000)
    offsets = EncodeOptions(char_offsets=True)
    for text, fits in (("x" * 1000, True), ("x" * 1001, False), ("\u00e9" * 500, True), ("\u00e9" * 501, False)):
        if fits:
            assert tokenizer.encode([text], offsets)[0].n_tokens > 0
        else:
            with pytest.raises(TextTooLarge, match=r"at most 1000 bytes.*--max-reference-bytes"):
                tokenizer.encode([text], offsets)
    text = "ab " * (LARGE_CHARS // 3 + 1)
    assert tokenizer.encode([text, "x"], EncodeOptions(count_only=True))[0].n_tokens > LARGE_CHARS // 6
