#!/usr/bin/env python3
"""Writes gpu_core/data/classes.bin, normal_form.bin and decompositions.bin from what the reference engine does.

Usage: scripts/make_class_tables.py [--check]     --check writes nothing and fails when a file differs
"""

from __future__ import annotations

import itertools
import random
import sys
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from tokenizers import Regex, normalizers
from tokenizers.pre_tokenizers import Split

sys.path.insert(0, str(Path(__file__).parent.parent))

from gpu_core import classes, normal_tables
from gpu_core.twin_normal import normal_form

N_CODE_POINTS = 0x110000
SURROGATES = range(0xD800, 0xE000)
HANGUL = range(0xAC00, 0xD7A4)


def members(char_class: str) -> NDArray[np.bool_]:
    """Which code points the reference's regex engine counts to a class."""
    found = np.zeros(N_CODE_POINTS, dtype=bool)
    split = Split(Regex(char_class), behavior="removed", invert=True)
    for first, text in _chunks():
        for _piece, (start, end) in split.pre_tokenize_str(text):
            found[first + start : first + end] = True
    return found


def base_classes() -> NDArray[np.uint8]:
    """The base class of every code point, as `gpu_core.classes` names them."""
    table = np.full(N_CODE_POINTS, classes.OTHER, dtype=np.uint8)
    for code, char_class in (
        (classes.UPPER, r"[\p{Lu}\p{Lt}]"),
        (classes.LOWER, r"\p{Ll}"),
        (classes.LETTER, r"[\p{Lm}\p{Lo}]"),
        (classes.MARK, r"\p{M}"),
        (classes.NUMBER, r"\p{N}"),
        (classes.PUNCTUATION, r"[\p{P}\p{S}]"),
        (classes.SPACE, r"\s"),
    ):
        members_ = members(char_class)
        if (table[members_] != classes.OTHER).any():
            raise SystemExit(f"{char_class} overlaps another class")
        table[members_] = code
    table[members(r"\p{Han}")] |= classes.HAN
    return table


def normal_form_classes() -> NDArray[np.uint8]:
    """For NFC: 255 = not "yes" in the quick check, else the canonical combining class (0 = starter)."""
    nfc, nfd = normalizers.NFC(), normalizers.NFD()
    table = _combining_classes(nfd)
    for code in _code_points():
        char = chr(code)
        composed, parts = nfc.normalize_str(char), nfd.normalize_str(char)
        if composed != char:
            table[code] = classes.NOT_NORMAL
        elif parts != char:
            table[[ord(part) for part in parts[1:]]] = classes.NOT_NORMAL
    return table


def decompositions() -> normal_tables.Decompositions:
    """Full canonical decompositions, and combining classes of characters that the quick check doubts."""
    nfd, combining = normalizers.NFD(), _combining_classes(normalizers.NFD())
    parts, marks = {}, {}
    doubtful = normal_form_classes() == classes.NOT_NORMAL
    for code in _code_points():
        decomposed = nfd.normalize_str(chr(code))
        if decomposed != chr(code) and code not in HANGUL:
            parts[code] = tuple(map(ord, decomposed))
        elif decomposed == chr(code) and doubtful[code]:
            marks[code] = int(combining[code])
    return normal_tables.Decompositions(parts, marks)


def check_normal_forms() -> None:
    """The committed decompositions do what the reference does: every code point, every pair that may compose, and
    random texts.
    """
    nfc = normalizers.NFC()
    known = normal_tables.read_decompositions()
    # What a character does beside others, its decomposition and its class say; so these are all that may differ.
    special = sorted({*known.parts, *known.marks, *itertools.chain.from_iterable(known.parts.values())})
    marks = [code for code in _code_points() if classes.normal_form_classes()[code]]
    texts = ["a" + chr(code) + "\u0334\u0301" for code in _code_points()]
    texts += [chr(code) for code in _code_points()]
    texts += [chr(first) + chr(second) for first in special for second in known.marks]
    rng = random.Random(1)
    pools = [special, marks, list(known.marks), [*range(0x1100, 0x1200), *HANGUL], [*range(0x20, 0x250)]]
    for _ in range(300_000):
        texts.append("".join(chr(rng.choice(rng.choice(pools))) for _ in range(rng.randrange(2, 9))))
    for text in texts:
        if "".join(map(chr, normal_form(list(map(ord, text))))) != nfc.normalize_str(text):
            raise SystemExit(f"differs from the reference engine: normal form of {text!a}")


def _combining_classes(nfd: normalizers.NFD) -> NDArray[np.uint8]:
    """Each code point's combining class, told from how it is ordered against one mark of every class."""
    table = np.zeros(N_CODE_POINTS, dtype=np.uint8)
    goes_before: Callable[[str, str], bool] = lambda a, b: nfd.normalize_str(f"X{b}{a}") == f"X{a}{b}"  # noqa: E731
    # The normalizer may follow an older Unicode than the classes do: a mark that it does not reorder tells nothing.
    probes = {ccc: mark for ccc, mark in _probes().items() if ccc == 240 or goes_before(mark, chr(0x345))}
    for code in _code_points():
        char = chr(code)
        if nfd.normalize_str(char) != char:
            continue
        if goes_before(char, probes[240]) or goes_before(probes[1], char):
            # The class is the largest one whose probe the code point does not go before.
            table[code] = max(ccc for ccc in probes if char == probes[ccc] or not goes_before(char, probes[ccc]))
    return table


def _probes() -> dict[int, str]:
    """One mark for each combining class.

    The values are stable by Unicode's own promise; the order is checked by use.
    """
    marks = {
        1: 0x334, 6: 0x16FF0, 7: 0x93C, 8: 0x3099, 9: 0x94D, 10: 0x5B0, 11: 0x5B1, 12: 0x5B2, 13: 0x5B3, 14: 0x5B4,
        15: 0x5B5, 16: 0x5B6, 17: 0x5B7, 18: 0x5B8, 19: 0x5B9, 20: 0x5BB, 21: 0x5BC, 22: 0x5BD, 23: 0x5BF, 24: 0x5C1,
        25: 0x5C2, 26: 0xFB1E, 27: 0x64B, 28: 0x64C, 29: 0x64D, 30: 0x64E, 31: 0x64F, 32: 0x650, 33: 0x651, 34: 0x652,
        35: 0x670, 36: 0x711, 84: 0xC55, 91: 0xC56, 103: 0xE38, 107: 0xE48, 118: 0xEB8, 122: 0xEC8, 129: 0xF71, 130:
        0xF72, 132: 0xF74, 202: 0x321, 214: 0x1DCE, 216: 0x31B, 218: 0x302A, 220: 0x316, 222: 0x59A, 224: 0x302E, 226:
        0x1D16D, 228: 0x5AE, 230: 0x300, 232: 0x315, 233: 0x35C, 234: 0x35D, 240: 0x345,
    }  # fmt: skip
    return {ccc: chr(code) for ccc, code in sorted(marks.items())}


def _code_points() -> Iterator[int]:
    return (code for code in range(0x80, N_CODE_POINTS) if code not in SURROGATES)


def _chunks() -> Iterator[tuple[int, str]]:
    for first in range(0, N_CODE_POINTS, 0x8000):
        codes = range(first, first + 0x8000)
        # An unassigned code point stands in for a surrogate, which no text can hold; both are in no class.
        yield first, "".join("\u0378" if code in SURROGATES else chr(code) for code in codes)


def main() -> None:
    """Write the files, or compare them."""
    stale: list[str] = []
    for name, table in (("classes.bin", base_classes()), ("normal_form.bin", normal_form_classes())):
        stale += _write(name, classes.pack(table))
        print(f"{name}: digest {classes.digest(table)}")
    found = decompositions()
    stale += _write(normal_tables.FILE, zlib.compress(normal_tables.pack(found), 9))
    print(f"{normal_tables.FILE}: digest {normal_tables.digest(found)}")
    if stale:
        raise SystemExit(f"differs from the reference engine: {', '.join(stale)}")
    check_normal_forms()


def _write(name: str, data: bytes) -> list[str]:
    """Write a file, or say that it differs."""
    path = classes.DATA / name
    if "--check" in sys.argv[1:]:
        return [] if path.read_bytes() == data else [name]
    path.write_bytes(data)
    return []


if __name__ == "__main__":
    main()
