"""The committed class tables are what they were generated as, and what the installed reference says."""

import itertools
from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray
from tokenizers import Regex, normalizers
from tokenizers.pre_tokenizers import Split

from gpu_core import classes


@pytest.mark.parametrize(
    ("name", "table"), [("classes.bin", classes.base_classes), ("normal_form.bin", classes.normal_form_classes)]
)
def test_committed_tables_have_their_pinned_digest(name: str, table: Callable[[], NDArray[np.uint8]]) -> None:
    """A table that changes by accident is noticed."""
    assert classes.digest(table()) == classes.DIGESTS[name]


@pytest.mark.parametrize(
    ("char_class", "codes"),
    [
        (r"\p{L}", {classes.UPPER, classes.LOWER, classes.LETTER}),
        (r"\p{M}", {classes.MARK}),
        (r"\p{N}", {classes.NUMBER}),
        (r"[\p{P}\p{S}]", {classes.PUNCTUATION}),
        (r"\s", {classes.SPACE}),
    ],
)
def test_classes_agree_with_the_installed_reference_at_every_code_point(char_class: str, codes: set[int]) -> None:
    """All of Unicode, class by class."""
    points = [*range(0xD800), *range(0xE000, 0x110000)]
    pieces = Split(Regex(char_class), "removed", invert=True).pre_tokenize_str("".join(map(chr, points)))
    found = np.zeros(len(points), dtype=bool)
    for _piece, (start, end) in pieces:
        found[start:end] = True
    table = classes.base_classes()[points] & ~np.uint8(classes.HAN)
    np.testing.assert_array_equal(found, np.isin(table, list(codes)))


def test_text_that_passes_the_quick_check_is_left_alone_by_the_reference() -> None:
    """Random strings of marks, jamo and letters: when the check passes, NFC changes nothing; and it does pass often."""
    table = classes.normal_form_classes()
    rng = np.random.default_rng(7)
    pool = [
        *range(0x300, 0x370),
        *range(0x591, 0x5C0),
        *range(0x64B, 0x653),
        0x41,
        0xE9,
        0x1EC7,
        0xAC00,
        0x1161,
        0x0E38,
    ]
    nfc, n_passed = normalizers.NFC(), 0
    for _ in range(20_000):
        points = rng.choice(pool, size=rng.integers(1, 4))
        values = table[points]
        in_order = all(b == 0 or a <= b for a, b in itertools.pairwise(values))
        if in_order and not (values == classes.NOT_NORMAL).any():
            text = "".join(map(chr, points))
            assert nfc.normalize_str(text) == text
            n_passed += 1
    assert n_passed > 2_000


def test_a_table_packs_and_unpacks_to_itself() -> None:
    """Runs of length one and long runs, first and last value included."""
    table = np.array([3, 3, 3, 0, 7, 7, 0, 255], dtype=np.uint8)
    np.testing.assert_array_equal(classes.unpack(classes.pack(table), len(table)), table)


def test_two_stages_hold_every_value() -> None:
    """The device's form of a table gives each code point its own value."""
    table = classes.family_classes("cl100k")
    pages, blocks = classes.two_stage(table)
    points = np.arange(0x110000)
    np.testing.assert_array_equal(blocks[pages[points >> 8], points & 255], table)
