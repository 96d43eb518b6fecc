"""The committed decompositions are what they were generated as, and do what the installed reference does."""

from __future__ import annotations

import itertools
import random

import numpy as np
import pytest
from tokenizers import normalizers

from gpu_core import normal_tables
from gpu_core.classes import NOT_NORMAL, normal_form_classes
from gpu_core.spec import read_spec
from gpu_core.tables import Tables, build_tables
from gpu_core.twin_normal import normal_form
from tests.data import FULL, families, tokenizer_json

NFC, NFD = normalizers.NFC().normalize_str, normalizers.NFD().normalize_str
SURROGATES, HANGUL = range(0xD800, 0xE000), range(0xAC00, 0xD7A4)


def ours(text: str) -> str:
    """The normal form by the tables."""
    return "".join(map(chr, normal_form(list(map(ord, text)))))


def test_committed_file_has_its_pinned_digest() -> None:
    """A table that changes by accident is noticed."""
    assert normal_tables.digest(normal_tables.read_decompositions()) == normal_tables.DIGEST


def test_decompositions_are_those_of_the_reference_at_every_code_point() -> None:
    """All of Unicode but Hangul; and what the quick check doubts has a decomposition or a combining class."""
    known, classes = normal_tables.read_decompositions(), normal_form_classes()
    for code in (*range(0xD800), *range(0xE000, 0x110000)):
        if code in HANGUL:
            continue
        assert "".join(map(chr, known.parts.get(code, (code,)))) == NFD(chr(code))
        assert (classes[code] != NOT_NORMAL) or ((code in known.parts) != (code in known.marks))


def test_single_characters_have_the_normal_form_of_the_reference() -> None:
    """Whatever has a class or a decomposition, all Hangul, and some of the rest (in the full run all)."""
    known = normal_tables.read_decompositions()
    codes = {
        *known.parts,
        *np.flatnonzero(normal_form_classes()).tolist(),
        *HANGUL,
        *range(0, 0x110000, 1 if FULL else 61),
    }
    for code in sorted(codes - {*SURROGATES}):
        assert ours(chr(code)) == NFC(chr(code)), hex(code)


def test_marks_have_the_order_of_the_reference() -> None:
    """Each character with a class, among marks of low, middle and high classes."""
    for code in np.flatnonzero(normal_form_classes()).tolist():
        for text in ("a\u0345{}\u0334", "a{}\u0316\u0301", "\u0323{}", "가{}"):
            assert ours(text.format(chr(code))) == NFC(text.format(chr(code))), hex(code)


def test_pairs_compose_as_the_reference_composes_them() -> None:
    """Every pair that does, also beside a mark that stands between; and many that do not."""
    known, rng = normal_tables.read_decompositions(), random.Random(1)
    pairs = known.pairs()
    assert len(pairs) > 900
    seconds = list(known.marks)
    others = [(rng.choice(list(known.parts)), rng.choice(seconds)) for _ in range(20_000 if FULL else 2_000)]
    for first, second in itertools.chain(pairs, others):
        for between in ("", "\u0334", "\u0301", "\u0345", "x"):
            text = chr(first) + between + chr(second)
            assert ours(text) == NFC(text), ascii(text)


def test_random_sequences_have_the_normal_form_of_the_reference() -> None:
    """Letters, marks, jamo and syllables side by side."""
    known, rng = normal_tables.read_decompositions(), random.Random(2)
    pools = [list(known.parts), list(known.marks), np.flatnonzero(normal_form_classes()).tolist()]
    pools += [[*range(0x1100, 0x1200), *HANGUL[:600]], [*range(0x20, 0x250)]]
    for _ in range(200_000 if FULL else 10_000):
        text = "".join(chr(rng.choice(rng.choice(pools))) for _ in range(rng.randrange(2, 9)))
        assert ours(text) == NFC(text), ascii(text)


def test_the_device_tables_hold_every_decomposition_and_every_pair() -> None:
    """Rows carry the combining class of each part; a pair lies in one of its two slots."""
    known, classes, tables = normal_tables.read_decompositions(), normal_form_classes(), normal_tables.normal_tables()
    pages, blocks = tables.arrays["detail_pages"], tables.arrays["detail_blocks"]
    for code, parts in known.parts.items():
        row = tables.arrays["decompositions"][blocks[pages[code >> 8], code & 255]].tolist()
        expected = [known.marks.get(part, int(classes[part])) << normal_tables.CLASS_AT | part for part in parts]
        assert row == expected + [0] * (4 - len(parts))
    for code, ccc in known.marks.items():
        assert blocks[pages[code >> 8], code & 255] == normal_tables.ITSELF | ccc
    slots, n = tables.arrays["compositions"], tables.numbers
    for (first, second), composed in known.pairs().items():
        hashes = [first * n[f"{side}0"] + second * n[f"{side}1"] for side in "ab"]
        found = {int(slots[(value & 0xFFFFFFFF) >> n["shift"]]) for value in hashes}
        assert first << 42 | second << 21 | composed in found


def test_characters_of_added_tokens_are_told_by_two_masks() -> None:
    """Those that end one, and all of them."""
    struct = normal_tables.normal_tables().struct({"class_pages": 7}, [b"<|K|>", b"ab"])
    assert struct["class_pages"] == 7
    assert [chr(i) for i in range(128) if struct["endings"][i // 32] >> (i % 32) & 1] == [">", "b"]
    assert [chr(i) for i in range(128) if struct["letters"][i // 32] >> (i % 32) & 1] == sorted("<|K>ab")


@pytest.mark.parametrize(
    "family", [f for f in families() if f in {"split_bpe", "byte_bpe"} | ({"qwen3", "llama3_1"} if FULL else set())]
)
def test_obstacles(family: str) -> None:
    """Only tokenizers whose normalizer is NFC and whose added tokens are ASCII are served; these are found again."""
    data = tokenizer_json(family)
    spec = read_spec(data)
    tables = build_tables(data, spec)
    literals = normal_tables.literals_of(tables)
    assert sorted(literals) == sorted(token.content.encode() for token in spec.added_tokens)
    assert (normal_tables.obstacle(tables) == "") == (spec.normalizers == ("NFC",))
    strange = tables.arrays | {
        "pool": np.frombuffer("é!".encode() + b"\0", "<u4"),
        "literal_slots": np.array([[0, 0, 3, 1]]),
    }
    other = Tables(strange, tables.numbers, tables.defines | {"SIDETOK_NFC": 1})
    assert normal_tables.obstacle(other) == "an added token that is not ASCII"
