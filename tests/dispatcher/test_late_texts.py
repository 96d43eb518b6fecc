"""Documents that came as UTF-8: a GPU gets what came, and text is there for whoever asks."""

from __future__ import annotations

import re

import pytest

from dispatcher.costs import ASCII, MIXED, content_kind
from dispatcher.errors import InvalidText
from dispatcher.late_texts import LateTexts
from dispatcher.request import EncodeOptions, EncodeRequest
from tests.fakes import FakeTokenizer


def test_a_sequence_of_texts() -> None:
    """Of the same texts, each made once."""
    utf8 = ["é".encode(), b"", b"abc"]
    texts = LateTexts(utf8)
    assert [*texts] == ["é", "", "abc"]
    assert (len(texts), texts[-1], texts[:2]) == (3, "abc", ["é", ""])
    assert texts[2] is texts[2]
    assert not LateTexts([])
    with pytest.raises(IndexError):
        texts[3]


def test_what_is_no_utf8_is_said_late() -> None:
    """When it is to become text, by its name."""
    texts = LateTexts([b"a", b"b\xff"], lambda i: f"field[{i}]")
    assert texts[0] == "a"
    with pytest.raises(InvalidText, match=re.escape("`field[1]` is not UTF-8: byte 1 cannot stand there.")):
        texts[1]
    with pytest.raises(InvalidText, match="text 0"):
        LateTexts([b"\xed\xa0\x80"])[0]


def test_a_request_gives_both_forms() -> None:
    """UTF-8 as it came, and a sample of it; a tokenizer takes the texts."""
    tokenizer = FakeTokenizer()
    data = "aé".encode()
    late = EncodeRequest("m", tokenizer, LateTexts([data]), EncodeOptions())
    usual = EncodeRequest("m", tokenizer, ["aé"], EncodeOptions())
    assert late.texts()[0] is data
    assert [*late.texts()] == [*usual.texts()]
    assert (late.sample, usual.sample) == (data, "aé")
    assert content_kind(late.sample) == content_kind(usual.sample) == MIXED
    assert content_kind(b"a") == ASCII
    results = [tokenizer.encode(request.documents, request.options) for request in (late, usual)]
    assert results[0] == results[1]
