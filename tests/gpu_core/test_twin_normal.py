"""The normalizing kernel's twin: what it writes is the reference's normal form, and what it flags is what it must."""

from __future__ import annotations

import random
import re
import unicodedata

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers import normalizers

from gpu_core.normal_layout import MAX_PARTS, MAX_SEGMENT
from gpu_core.twin_normal import Normalized, normalize
from tests.gpu_core.marked_texts import LITERALS, random_document

NFC = normalizers.NFC().normalize_str
ROOM = 1 << 20


def one(document: str, *literals: bytes) -> str | None:
    """A document by itself; None when it is flagged."""
    result = normalize([document.encode()], literals, ROOM)
    return None if result.flagged[0] else result.text.decode()


def parts_of(result: Normalized) -> list[bytes]:
    """The text of each document."""
    return [result.text[a:b] for a, b in zip(result.starts[:-1], result.starts[1:], strict=True)]


def test_random_documents_are_in_the_normal_form_of_the_reference() -> None:
    """And hardly any is flagged while no segment is long."""
    rng = random.Random(1)
    documents = [random_document(rng, rng.choice((0, 1, 3, 10))) for _ in range(2000)]
    result = normalize(documents, (), ROOM)
    for document, text, flagged in zip(documents, parts_of(result), result.flagged, strict=True):
        if not flagged:
            assert text.decode() == NFC(document.decode())
    assert sum(result.flagged) < 40


@settings(max_examples=300, derandomize=True, database=None, deadline=None, suppress_health_check=list(HealthCheck))
@given(st.text(st.one_of(st.characters(exclude_categories=["Cs"]), st.characters(categories=["M"])), max_size=40))
def test_any_text_is_in_the_normal_form_of_the_reference(text: str) -> None:
    """Any character of any version of Unicode, marks more often than others."""
    normal = one(text)
    assert normal in {NFC(text), None}
    assert normal is not None or len(text) > 8


def test_a_gap_between_added_tokens_is_normalized_by_itself() -> None:
    """Split at its added tokens, a result has the same ones, and gaps in the reference's normal form."""
    rng = random.Random(2)
    splitter = re.compile("|".join(f"(?:{re.escape(literal.decode())})" for literal in LITERALS))
    n_flagged = n_tokens = 0
    for _ in range(6000):
        document = random_document(rng, rng.choice((3, 10)))
        result = one(document.decode(), *LITERALS)
        if result is None:
            n_flagged += 1
            continue
        assert splitter.findall(result) == splitter.findall(document.decode())
        assert splitter.split(result) == [NFC(gap) for gap in splitter.split(document.decode())]
        n_tokens += len(splitter.findall(result))
    assert n_flagged < 1200
    assert n_tokens > 900


@pytest.mark.parametrize(
    ("document", "literals", "expected"),
    [
        ("x\u212a9", (b"K9",), None),
        ("x\u212a9", (b"<K>",), None),
        ("x\u212a9", (b"k9",), "xK9"),
        ("a\u037e", (b"<;>",), None),
        ("a\u037e", (), "a;"),
        ("</s>\u0338", (b"</s>",), None),
        ("<\u0338/s>", (b"</s>",), "≮/s>"),
        ("</s>\u0316\u0334", (b"</s>",), "</s>\u0334\u0316"),
        ("abc\u0327", (b"abc",), None),
        ("a\u0301bc", (b"abc",), "ábc"),
        ("\u0301\u0334abc", (b"abc",), "\u0334\u0301abc"),
    ],
)
def test_added_tokens_are_neither_made_nor_broken(
    document: str, literals: tuple[bytes, ...], expected: str | None
) -> None:
    """A character of one may not come into being, and its last one may not be composed with what follows."""
    assert one(document, *literals) == expected


def test_long_segments_are_flagged_where_they_are_doubtful() -> None:
    """By their parts and by their bytes; one that NFC leaves alone may have any length."""
    assert one("a" + "\u0301" * (MAX_PARTS - 1)) == "á" + "\u0301" * (MAX_PARTS - 2)
    assert one("a" + "\u0301" * MAX_PARTS) is None
    assert one("ệ" + "\u0301" * (MAX_PARTS - 2)) is None
    wide = "\U0001d165" * (MAX_SEGMENT // 4 - 1)
    assert one("😀" + wide + "") == "😀" + wide
    assert one("\U0001d15e" + wide) is None
    assert one("a" + "\u0334" * 500) == "a" + "\u0334" * 500
    assert one("a" + "\u0334" * 500 + "\u0301") is None


def test_bytes_that_are_no_utf8_stay_what_they_are() -> None:
    """Each is a segment of its own; a document border is one for marks, too."""
    documents = [b"\xff\xcc\x81", b"e", "\u0301".encode(), b"\xcc", b"\x81", b"e\xcc", b"e\xcc\x81"]
    result = normalize(documents, (), ROOM)
    assert parts_of(result) == [*documents[:-1], "é".encode()]
    assert result.flagged == [True, *[False] * 6]
    assert unicodedata.normalize("NFC", "\u0301") == "\u0301"


def test_text_beyond_the_room_flags_all() -> None:
    """Normal form may be three times as long."""
    document = "\U0001d160".encode()
    assert normalize([b"a", document], (), 13).flagged == [False, False]
    result = normalize([b"a", document], (), 12)
    assert (result.text, result.starts.tolist(), result.flagged) == (b"", [0, 0, 0], [True, True])
